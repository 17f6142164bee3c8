"""The store as MXNet and Gluon see it, and the hooks in Trainer and Parameter."""
