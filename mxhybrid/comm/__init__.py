"""Workers talk with workers: sums, broadcasts and gathers, over Horovod, sockets and shared memory."""
