"""The rendezvous server of a job: a store of values over HTTP, by which Horovod's workers learn each other's addresses.

Horovod asks for a value that is missing every 10 ms, with a connection for each request
(``horovod/common/gloo/http_store.cc``).  This server answers such a request when the value arrives, so each value is
asked for about once.  horovodrun's server answers at once, and its backlog is 5: the kernel drops connections of many
workers, which try again after a second or more.

It serves one start of Horovod.  Under horovodrun, a script that later adds a process set, or starts Horovod again, uses
horovodrun's server, whose address is in the environment again; under launch.py there is none, so these calls are errors
(:meth:`mxhybrid.comm.collective.Collective.refuse_new_connections`).
"""
import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from typing import Dict, List, Optional, Tuple

from ..base import log
from ..base.launcher import Launch
from ..messaging.notice_board import NoticeBoard

logger = log.get_logger(__name__)

#: The connections that wait for the server at a time.
_BACKLOG = 4096
#: Seconds that a request waits for a missing value before the answer says so, and that a request may take to arrive.
_HOLD_S, _REQUEST_S = 5.0, 30.0
#: Seconds between two checks for connections that have waited too long.
_CHECK_S = 1.0
#: Errors of accept() if this process or the machine lacks descriptors or memory: the connection stays in the backlog.
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: The largest request in bytes.  Horovod's values have about a hundred bytes for each worker.
_MAX_REQUEST_BYTES = 1 << 24
#: Seconds between two looks at the notice board for the address of worker 0's server: the first and the longest pause.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
_OK, _MISSING, _BAD = '200 OK', '404 Not Found', '400 Bad Request'


class _Connection:
    """A connection with its request so far, and the time by which it ends."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.received = bytearray()
        self.path = ''
        self.is_closed = False
        self.deadline = time.monotonic() + _REQUEST_S


class RendezvousServer:
    """A server at an address of this host, which one thread serves until :meth:`close` or the end of the process."""

    def __init__(self, host: str):
        self._values: Dict[str, bytes] = {}
        #: Connections that wait for a value, by its path.
        self._waiting: Dict[str, List[_Connection]] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        #: Whether the selector watches the listener.
        self._is_accepting = True
        self._has_warned = False
        self._next_check = 0.0
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name='mxhybrid-rendezvous', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving, and close all connections."""
        self._waker.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                has_connections = len(self._selector.get_map()) > 2
                for key, _ in self._selector.select(
                        _CHECK_S if has_connections or not self._is_accepting else None):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif not key.data.is_closed:  # it may have been answered since select() returned
                        self._receive(key.data)
                if time.monotonic() >= self._next_check:
                    self._end_late_requests()
                    self._accept_again()
                    self._next_check = time.monotonic() + _CHECK_S
        finally:
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._listener.close()
            self._selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _LACKING:
                self._pause(error)
            return  # otherwise the client has gone
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))

    def _pause(self, error: OSError) -> None:
        """Watch the listener no more until the next check: it stays readable, so the thread would never sleep."""
        self._selector.unregister(self._listener)
        self._is_accepting = False
        self._next_check = time.monotonic() + _CHECK_S
        if not self._has_warned:
            self._has_warned = True
            logger.warning('worker 0 cannot accept a connection of a worker that starts Horovod (%s): it tries again '
                           'every %g s; raise the limit of open files (ulimit -n) of worker 0', error.strerror,
                           _CHECK_S)

    def _accept_again(self) -> None:
        if not self._is_accepting:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._is_accepting = True

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b''
        connection.received += data
        if not data or len(connection.received) > _MAX_REQUEST_BYTES:
            self._drop(connection)
        elif not connection.path:  # otherwise the connection waits for a value
            try:
                request = parse_request(connection.received)
            except ValueError:
                self._answer(connection, _BAD)
                return
            if request is not None:
                self._handle(connection, *request)

    def _handle(self, connection: _Connection, method: str, path: str, body: bytes) -> None:
        if method == 'PUT':
            self._values[path] = body
            self._answer(connection, _OK)
            for waiting in self._waiting.pop(path, []):
                self._answer(waiting, _OK, body)
        elif method == 'GET' and path not in self._values:
            connection.path, connection.deadline = path, time.monotonic() + _HOLD_S
            self._waiting.setdefault(path, []).append(connection)
        elif method in ('GET', 'DELETE'):  # Horovod deletes nothing that another worker does not need
            self._answer(connection, _OK, self._values[path] if method == 'GET' else b'')
        else:
            self._answer(connection, _BAD)

    def _answer(self, connection: _Connection, status: str, body: bytes = b'') -> None:
        """Answer a request and close its connection."""
        connection.is_closed = True
        self._selector.unregister(connection.sock)
        with connection.sock as sock, contextlib.suppress(OSError):  # the client may have gone
            sock.settimeout(_REQUEST_S)  # the answer fits into the buffer of the socket
            sock.sendall(b'HTTP/1.0 %s\r\nContent-Length: %d\r\n\r\n%s' % (status.encode(), len(body), body))

    def _drop(self, connection: _Connection) -> None:
        if connection.path:
            self._waiting[connection.path].remove(connection)
        connection.is_closed = True
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _end_late_requests(self) -> None:
        """Answer requests that have waited long for a value, and drop those that have not arrived in time."""
        now = time.monotonic()
        late = [key.data for key in self._selector.get_map().values() if key.data and key.data.deadline < now]
        for connection in late:
            if connection.path:
                self._waiting[connection.path].remove(connection)
                self._answer(connection, _MISSING)
            else:
                self._drop(connection)


def parse_request(received: bytes) -> Optional[Tuple[str, str, bytes]]:
    """Return method, path and body of an HTTP request; None if more is to come, ValueError if it is no request."""
    head, end, body = bytes(received).partition(b'\r\n\r\n')
    if not end:
        return None
    lines = head.decode('latin-1').split('\r\n')
    words = lines[0].split(' ')
    if len(words) != 3 or not words[2].startswith('HTTP/1.'):
        raise ValueError('not a request of HTTP/1: %r' % lines[0])
    length = 0
    for line in lines[1:]:
        name, _, value = line.partition(':')
        if name.strip().lower() == 'content-length':
            length = int(value)
            if length < 0:
                raise ValueError('a negative length: %r' % value)
    return (words[0], words[1], body[:length]) if len(body) >= length else None


def replace_rendezvous(launch: Launch, board: Optional[NoticeBoard], host: str) -> Optional[RendezvousServer]:
    """Let the workers of a job meet at a server of worker 0, at its address `host`, not at horovodrun's.

    All workers call this before Horovod starts; returns the server on worker 0, and None elsewhere and in other jobs.
    The address is on horovodrun's notice board.  The caller has a deadline.
    """
    if board is None or launch.several_hosts is None or launch.workers == 1 or 'HOROVOD_ELASTIC' in os.environ:
        return None
    server = RendezvousServer(host) if launch.rank == 0 else None
    pause_s, address = _FIRST_PAUSE_S, None
    while address is None:
        try:
            if server is not None:
                board.put('rendezvous', [host, server.port])
                address = [host, server.port]
            else:
                address = board.get('rendezvous')
        except OSError:
            pass  # the board is busy; if it has ended, a thread of the roll call ends this process
        if address is None:
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
    os.environ.update(HOROVOD_GLOO_RENDEZVOUS_ADDR=address[0], HOROVOD_GLOO_RENDEZVOUS_PORT=str(address[1]))
    return server
