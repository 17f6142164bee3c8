"""Records of a job: events, steps, traffic."""
