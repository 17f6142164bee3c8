"""The soak: a job of random steps that stays equal to NumPy and does not grow."""
