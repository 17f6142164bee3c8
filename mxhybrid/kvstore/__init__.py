"""What MXNet and Gluon see: the store, and the hooks in Trainer and Parameter."""
