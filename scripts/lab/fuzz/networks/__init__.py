"""Random networks: each is trained split over the workers of a job and in one process, and must not differ."""
