"""Notices processes that die, hang or stay away, and ends the job."""
