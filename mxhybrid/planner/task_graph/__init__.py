"""Tasks of a training step: those of each operator, transfer and update of a plan, for the simulator."""
