"""Tests shared memory as workers and servers of a host use it, in its own process, since NumPy may be broken.

Exit status 0 means that a piece of shared memory and its content arrived over a Unix socket.
"""
import mmap
import os
import sys

import numpy as np

from ...messaging.local_sockets import Listener, connect

_NUMBERS, _WAIT_S = 1 << 18, 10.0


def main() -> None:
    """Send a piece of shared memory to this process itself."""
    listener = Listener()
    client = connect(listener.name)
    server = listener.accept(_WAIT_S)
    descriptor = os.memfd_create('mxhybrid')
    os.ftruncate(descriptor, 4 * _NUMBERS)
    np.frombuffer(mmap.mmap(descriptor, 4 * _NUMBERS), 'float32')[:] = 7
    client.send([], descriptor)
    _, received = server.receive(_WAIT_S)
    if received is None or np.frombuffer(mmap.mmap(received, 4 * _NUMBERS), 'float32').sum() != 7 * _NUMBERS:
        sys.exit('the values that were read from shared memory are not those that were written')


if __name__ == '__main__':
    main()
