"""The compiled wire: rows and sums in memory that servers and workers of a host share; one connection between hosts."""
