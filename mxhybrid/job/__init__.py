"""Join the job that a launcher started: ranks, addresses, server processes, the orderly end."""
