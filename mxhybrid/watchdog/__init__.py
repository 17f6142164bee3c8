"""Notices who died, hangs or stays away, and ends the job."""
