"""What a job records: events, steps, traffic."""
