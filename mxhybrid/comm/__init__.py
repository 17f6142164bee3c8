"""Collective operations of the workers: sums, broadcasts and gathers, by Horovod, sockets and shared memory."""
