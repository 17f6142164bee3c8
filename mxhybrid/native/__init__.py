"""Access to private parts of MXNet 1.9.1: arrays, engine, optimizers, Trainers and stores."""
