"""A simulator of tasks that use resources: discrete events, in Python and compiled; it knows no network."""
