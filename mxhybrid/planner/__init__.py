"""Plans found instead of guessed: a simulated training step, and a search for the plan with the shortest one."""
