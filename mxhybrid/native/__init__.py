"""MXNet 1.9.1's private side: arrays, engine, optimizers, Trainers and stores."""
