"""Send messages and file descriptors between the processes of one host, over Unix sockets."""
import array
import contextlib
import json
import os
import resource
import select
import socket
import struct
import threading
import time
from typing import Any, List, Optional, Tuple

from ..base import json_text
from ..base.errors import JobError
from ..base.proc import boot_id

#: Largest message on a connection, in bytes.
_MESSAGE_BYTES = 1 << 16
_LEFT = 'a process of this host has closed its connection, or died'
#: Seconds within which a listening process must accept a connection.
_CONNECT_S = 60


class Left(JobError):
    """The process at the other end of a connection has gone; the job monitor will report the reason."""


class Connection:
    """A connection between two processes of one host, for messages that are lists of JSON values.

    It takes over a connected Unix socket of type SOCK_SEQPACKET.  Any thread may send.
    """

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=sock.close)

    def fileno(self) -> int:
        """Return the file descriptor, to wait for messages with a selector."""
        return self._sock.fileno()

    @property
    def peer(self) -> int:
        """The process id of the other end; 0 if this process cannot see it."""
        return _credentials(self._sock)[0]

    def send(self, message: List[Any], descriptor: Optional[int] = None) -> None:
        """Send a message, with a file descriptor if given; wait while the other side has too many messages to read.

        Raises Left like :meth:`receive`, and JobError for a message that is too long to be received.
        """
        data, ancillary = json.dumps(message).encode(), []
        if len(data) > _MESSAGE_BYTES:
            raise JobError('a message to another process of this host has %d bytes, but at most %d can be sent: %s...: '
                           'report this as a bug of mxhybrid' % (len(data), _MESSAGE_BYTES, data[:100].decode()))
        if descriptor is not None:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [descriptor]))]
        try:
            with self._lock:
                self._sock.sendmsg([data], ancillary)
        except ConnectionError:
            raise Left(_LEFT) from None

    def tell(self, message: List[Any], descriptor: Optional[int] = None) -> None:
        """Send to a process that may have left or died; ignore that, because the job monitor notices it."""
        with contextlib.suppress(OSError, Left):
            self.send(message, descriptor)

    def receive(self, timeout: Optional[float] = None) -> Tuple[List[Any], Optional[int]]:
        """Wait for a message, up to `timeout` seconds; return it with its file descriptor, if it has one.

        Left if the other process has closed the connection, or died; JobError if a part of the message was lost.
        """
        if timeout is not None and not _readable(self, timeout):
            raise socket.timeout('no message within %g s' % timeout)
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(_MESSAGE_BYTES,
                                                           socket.CMSG_SPACE(array.array('i').itemsize))
        except ConnectionError:
            data, ancillary, flags = b'', [], 0
        if not data:
            raise Left(_LEFT)
        if flags & socket.MSG_TRUNC:
            raise JobError('a message of another process of this host has more than %d bytes: report this as a bug of '
                           'mxhybrid' % _MESSAGE_BYTES)
        if flags & socket.MSG_CTRUNC:
            raise JobError('this process has too many open files to take another one from a worker of its host: raise '
                           'their number with ulimit -n (it is %d now)' % resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        descriptor = None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptor = array.array('i', content[:array.array('i').itemsize])[0]
        return json_text.parse(data), descriptor

    def close(self) -> None:
        """End the connection for this process."""
        self._sock.close()


def _readable(source: Any, timeout: float) -> bool:
    """Return whether `source` can be read within `timeout` seconds; False if that is negative."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return timeout >= 0 and bool(poll.poll(1000 * timeout))


def _credentials(sock: socket.socket) -> Tuple[int, ...]:
    """Return the ids of process, user and group at the other end."""
    return struct.unpack('3i', sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('3i')))


def _own_peer(sock: socket.socket) -> bool:
    return _credentials(sock)[1] == os.getuid()


class Listener:
    """A listening socket, by `name`, for other processes of this host; it accepts only those of the same user.

    Without a name the kernel chooses one.  Both are abstract names, which vanish with the socket.
    """

    def __init__(self, name: str = '') -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.bind(b'\0' + os.fsencode(name) if name else '')
        self.name = os.fsdecode(self._sock.getsockname()[1:])
        self._sock.listen(128)
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor, to wait for connections with a selector."""
        return self._sock.fileno()

    def accept_one(self) -> Optional[Connection]:
        """Accept one connection without waiting; None if there is none, or its process is another user's."""
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return None
        if not _own_peer(sock):
            sock.close()
            return None
        sock.setblocking(True)
        return Connection(sock)

    def accept(self, timeout: float) -> Connection:
        """Wait up to `timeout` seconds for a connection, or raise socket.timeout."""
        deadline = time.monotonic() + timeout
        while _readable(self, deadline - time.monotonic()):
            connection = self.accept_one()
            if connection is not None:
                return connection
        raise socket.timeout('no process of this user connected within %g s' % timeout)

    def close(self) -> None:
        """Accept no more connections."""
        self._sock.close()


def connect(name: str) -> Connection:
    """Connect to the :class:`Listener` with a name, of the same host and user; Left if there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # A connecting process waits while processes of any user fill the queue.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', _CONNECT_S, 0))
        sock.connect(b'\0' + os.fsencode(name))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 0, 0))
        if not _own_peer(sock):
            raise PermissionError('the process that listens as %r belongs to user %d, and this one to user %d: start '
                                  'all processes of a job on this host as one user'
                                  % (name, _credentials(sock)[1], os.getuid()))
    except ConnectionError:
        sock.close()
        raise Left(_LEFT) from None
    except BlockingIOError:
        sock.close()
        raise JobError('the process that listens as %r accepted no connection within %d s: see what else on this host '
                       'connects to it (ss -xp)' % (name, _CONNECT_S)) from None
    except BaseException:
        sock.close()
        raise
    return Connection(sock)


def memory_domain() -> str:
    """Return a name that is equal in processes that can share memory: of one user, kernel and network namespace."""
    return '%s/%d/%d' % (boot_id(), os.stat('/proc/self/ns/net').st_ino, os.getuid())


def user_of_domain(domain: str) -> str:
    """Return the id of the user whose processes are in a memory domain."""
    return domain.rpartition('/')[2]


def differ_in_user(domain: str, other: str) -> bool:
    """Return whether two memory domains are on the same host, but belong to two users."""
    return domain != other and domain.rpartition('/')[0] == other.rpartition('/')[0]
