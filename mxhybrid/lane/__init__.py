"""The compiled wire: rows in memory that a host's servers and workers share, one connection between two hosts."""
