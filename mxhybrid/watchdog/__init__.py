"""Detect processes that die, hang or stay away, and end the job."""
