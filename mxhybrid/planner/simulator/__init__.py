"""A discrete-event simulator of tasks that use resources, compiled; it is independent of networks."""
