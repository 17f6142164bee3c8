"""Memory that the processes of one host share, and the connections over which they share it.

A segment is an anonymous file (``memfd_create``) whose descriptor travels over a Unix socket.  It has no name,
so nothing is left behind however its owners end, and no limit of ``/dev/shm`` applies to it.
"""
import array
import contextlib
import json
import mmap
import os
import resource
import select
import socket
import struct
import threading
from typing import Any, List, Optional, Tuple

import numpy as np

from ..base.errors import JobError

#: Growth of a segment beyond what is needed, so that slowly growing demands seldom make a new one.
HEADROOM = 1.25

#: Largest message on a connection, in bytes.
_MESSAGE_BYTES = 4096

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


class Left(JobError):
    """The process at the other end of a connection is not there any more."""


class Connection:
    """Messages, each a list of JSON values, between two processes of one host, over a connected Unix socket of type
    SOCK_SEQPACKET, which it takes over; any thread may send.
    """

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=sock.close)

    def fileno(self) -> int:
        """Descriptor, to wait for messages with a selector."""
        return self._sock.fileno()

    def send(self, message: List[Any], descriptor: Optional[int] = None) -> None:
        """Send a message, with a descriptor if given; waits while the other side has too many to read."""
        ancillary = []
        if descriptor is not None:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [descriptor]))]
        with self._lock:
            self._sock.sendmsg([json.dumps(message).encode()], ancillary)

    def tell(self, message: List[Any], descriptor: Optional[int] = None) -> None:
        """Send to a process that may have left, or died, which the job monitor notices."""
        try:
            self.send(message, descriptor)
        except OSError:
            pass

    def readable(self, timeout: float) -> bool:
        """Whether there is something to receive within `timeout` seconds."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(1000 * max(0.0, timeout)))

    def receive(self, timeout: Optional[float] = None) -> Tuple[List[Any], Optional[int]]:
        """Wait for a message, up to `timeout` seconds; also returns the descriptor that came with it, if one did.

        Left says that the other process has closed the connection, or died, a JobError that a descriptor was lost.
        """
        if timeout is not None and not self.readable(timeout):
            raise socket.timeout('no message within %g s' % timeout)
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(_MESSAGE_BYTES,
                                                           socket.CMSG_SPACE(array.array('i').itemsize))
        except ConnectionError:
            data, ancillary, flags = b'', [], 0
        if not data:
            raise Left('a worker of this host has left its local aggregation')
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise JobError('this process has too many open files to take another one from a worker of its host: raise '
                           'their number with ulimit -n (it is %d now)' % resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        descriptor = None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptor = array.array('i', content[:array.array('i').itemsize])[0]
        return json.loads(data.decode()), descriptor

    def hang_up(self) -> None:
        """End the connection for both sides: threads that wait for a message learn that, too."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection for this process."""
        self._sock.close()


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


def _own_peer(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('3i'))
    return struct.unpack('3i', credentials)[1] == os.getuid()


class Listener:
    """Where the other workers of a host connect to, by `name`; only processes of the same user get through."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # An abstract name, chosen by the kernel, vanishes with the socket.
        self._sock.bind('')
        self.name = os.fsdecode(self._sock.getsockname()[1:])
        self._sock.listen(128)

    def accept(self, timeout: float) -> Connection:
        """Wait up to `timeout` seconds for the next connection, or raise socket.timeout."""
        while True:
            self._sock.settimeout(timeout)
            sock, _ = self._sock.accept()
            if _own_peer(sock):
                sock.settimeout(None)
                return Connection(sock)
            sock.close()

    def close(self) -> None:
        """Accept no more."""
        self._sock.close()


def connect(name: str) -> Connection:
    """Connect to the :class:`Listener` of that name, of the same host and user; OSError where there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(b'\0' + os.fsencode(name))
        if not _own_peer(sock):
            raise PermissionError('the process that listens as %r belongs to another user' % name)
    except BaseException:
        sock.close()
        raise
    return Connection(sock)


def place_of_host() -> str:
    """A name for what can share memory: equal in processes that share a kernel and its Unix sockets."""
    with open('/proc/sys/kernel/random/boot_id') as handle:
        boot = handle.read().strip()
    return '%s/%d' % (boot, os.stat('/proc/self/ns/net').st_ino)
