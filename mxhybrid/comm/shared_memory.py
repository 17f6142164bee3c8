"""Memory that the processes of one host share.

A segment is an anonymous file (``memfd_create``) whose descriptor travels over a Unix socket.  It has no name,
so nothing is left behind however its owners end, and no limit of ``/dev/shm`` applies to it.
"""
import mmap
import os
import socket
from typing import Any, Optional, Tuple

import numpy as np

#: Growth of a segment beyond what is needed, so that slowly growing demands seldom make a new one.
HEADROOM = 1.25

_PAGE = mmap.PAGESIZE


class Segment:
    """A piece of shared memory, as its owner or another process sees it; takes over and closes its descriptor."""

    def __init__(self, descriptor: int, nbytes: int):
        try:
            self._map = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        self.nbytes = nbytes

    @classmethod
    def create(cls, nbytes: int) -> Tuple['Segment', int]:
        """Make a segment of at least `nbytes`; also returns its descriptor, to be sent and then closed."""
        nbytes = -(-max(1, int(nbytes * HEADROOM)) // _PAGE) * _PAGE
        descriptor = os.memfd_create('mxhybrid')
        try:
            os.ftruncate(descriptor, nbytes)
            return cls(os.dup(descriptor), nbytes), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def give_back(self) -> None:
        """Have the kernel take the memory back; it reads as zeros then."""
        self._map.madvise(mmap.MADV_REMOVE)

    def view(self, offset: int, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array in the memory, from byte `offset` on; keeps the memory alive."""
        return np.ndarray(shape, dtype, buffer=self._map, offset=offset)


class Bell:
    """Wakes the thread that waits for it; rings that nobody heard yet count as one.  Any thread may ring.

    Made of its `clapper`, what is left of the bell of another process, it can be rung only.
    """

    def __init__(self, clapper: Optional[socket.socket] = None):
        self._sock: Optional[socket.socket] = None
        if clapper is None:
            self._sock, clapper = socket.socketpair()
        clapper.setblocking(False)
        self._clapper = clapper
        os.register_at_fork(after_in_child=self.close)

    @classmethod
    def of_other(cls, descriptor: int) -> 'Bell':
        """The bell of another process, which sent its descriptor; it is taken over."""
        return cls(socket.socket(fileno=descriptor))

    @property
    def descriptor(self) -> int:
        """For another process, to ring this bell."""
        return self._clapper.fileno()

    def fileno(self) -> int:
        """Descriptor, to wait with a selector."""
        assert self._sock is not None
        return self._sock.fileno()

    def ring(self) -> None:
        """Ring, without ever waiting."""
        try:
            self._clapper.send(b'!')
        except OSError:
            pass  # it rings already; or its process has left, or died, which the job monitor notices

    def hear(self) -> None:
        """Be ready for the next ring."""
        assert self._sock is not None
        self._sock.recv(1 << 16)

    def close(self) -> None:
        """Give it up."""
        self._clapper.close()
        if self._sock is not None:
            self._sock.close()
