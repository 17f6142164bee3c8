"""The compiled wire: rows, sums and moves in memory that processes of a host share; one connection between hosts."""
