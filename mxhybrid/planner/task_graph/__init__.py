"""A training step as tasks: what each operator, transfer and update of a plan puts into the simulator."""
