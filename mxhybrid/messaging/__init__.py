"""Messages between processes of a job: addresses, sockets, and proofs of the job's secret."""
