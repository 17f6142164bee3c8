"""Tries shared memory as local aggregation uses it, in a process of its own, since NumPy may be broken: status 0 says
that a segment and what was written into it arrived over a Unix socket.
"""
import os
import sys

from ...base.local_sockets import Listener, connect
from ...comm.shared_memory import Segment

_NUMBERS, _WAIT_S = 1 << 18, 10.0


def main() -> None:
    """Send a piece of shared memory to this process itself."""
    listener = Listener()
    client = connect(listener.name)
    server = listener.accept(_WAIT_S)
    segment, descriptor = Segment.create(4 * _NUMBERS)
    segment.view(0, (_NUMBERS,), 'float32')[:] = 7
    client.send([segment.nbytes], descriptor)
    os.close(descriptor)
    (nbytes,), received = server.receive(_WAIT_S)
    if received is None or Segment(received, nbytes).view(0, (_NUMBERS,), 'float32').sum() != 7 * _NUMBERS:
        sys.exit('what was read from shared memory is not what was written')


if __name__ == '__main__':
    main()
