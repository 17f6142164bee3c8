"""The compiled wire: rows and dense sums in memory that a host's servers and workers share, one connection between two hosts."""
