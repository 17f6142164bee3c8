"""The tasks of a training step by a plan, which the simulator executes: operators, transfers and updates."""
