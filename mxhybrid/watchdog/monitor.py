"""The job monitor: notices when a process of the job dies, tells all others, and coordinates the orderly end."""
import contextlib
import os
import selectors
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ..base.log import Sparingly, get_logger
from ..base.settings import Limits
from .activity import SAMPLE_INTERVAL_S
from .admission import HELLO_BYTES, STRANGERS, Admission
from .call_log import checked_calls
from .failure_detector import FailureDetector
from .messages import LineBuffer, decode, send
from .peers import Peer
from .scheduler import watch_scheduler

logger = get_logger(__name__)

#: Seconds between two checks of the processes.
CHECK_S = 0.5
#: Most seconds for all processes to hear of a failure, and for servers to leave after the last worker.
SETTLE_S = 2.0
#: Seconds for a worker to report how a server that it started has ended.
PARENT_S = 1.5
#: A handler of a message, which may return an answer.
Act = Callable[[Peer, Any], Optional[Dict[str, Any]]]


class Monitor:
    """The job monitor: a thread in worker 0's process that listens at `host` for processes that know the `secret`."""

    def __init__(self, host: str, workers: int, servers: int, secret: str, limits: Optional[Limits] = None):
        self._listener = socket.create_server((host, 0), backlog=workers + servers + STRANGERS)
        self.address: Tuple[str, int] = self._listener.getsockname()[:2]
        self._workers = workers
        self._selector = selectors.DefaultSelector()
        self._lines: Dict[socket.socket, LineBuffer] = {}
        self._peers: Dict[socket.socket, Peer] = {}
        self._admission = Admission(secret, workers + servers + 1)
        self._warn = Sparingly(logger)
        #: Why the job failed; None while it has not.
        self.failure: Optional[str] = None
        #: Ranks of the workers whose scripts have ended, and whether all have been told that they may leave.
        self._finished: Set[int] = set()
        self._released = False
        #: Ranks of the workers that need the servers no more.
        self._settled: Set[int] = set()
        #: Ranks that have left in order, and when the last worker had left.
        self._ranks_left: Set[int] = set()
        self._workers_left_at = 0.0
        #: Whether the watch has ended, because all processes have left.
        self._all_left = False
        #: Deaths of servers that their parents may still explain: deadline and message.
        self._deaths: List[Tuple[float, str]] = []
        self._lock = threading.Lock()
        self._detector = FailureDetector(workers, limits or Limits())
        self._last_check = self._last_request = 0.0
        self._listeners: Dict[str, Act] = {
            'beat': self._detector.handle_heartbeat, 'servers': self._detector.expect_servers,
            'samples': lambda peer, samples: self._detector.add_samples(self.peers(), samples)}
        #: Whether the workers may leave, once all scripts have ended.
        self.may_release: Callable[[], bool] = lambda: True
        #: The thread calls this again and again, once the job has failed.
        self.after_failure: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name='mxhybrid-monitor', daemon=True)
        self._selector.register(self._listener, selectors.EVENT_READ)
        os.register_at_fork(after_in_child=self._close_in_child)
        self._thread.start()

    def _close_in_child(self) -> None:
        """Close all connections in a forked child, such as a data loader: its parent's death must close them."""
        for sock in [self._listener] + list(self._lines):
            sock.close()
        self._admission.close()

    # -- for other modules ---------------------------------------------------------------------------------------

    def watch_scheduler(self, address: Tuple[str, int], limit: float) -> None:
        """Watch the scheduler at `address`, too; the job fails once it has been silent for `limit` seconds."""
        threading.Thread(target=watch_scheduler, args=(address, limit, self.report_failure, lambda: self._released),
                         name='mxhybrid-scheduler', daemon=True).start()

    def listen(self, kind: str, act: Act) -> None:
        """Register ``act(peer, message[kind])`` for messages with `kind`; the monitor's thread sends its answer."""
        self._listeners[kind] = act

    def peers(self) -> List[Peer]:
        """Return the processes that are connected."""
        with self._lock:
            return list(self._peers.values())

    def tell(self, message: Dict[str, Any]) -> None:
        """Send a message to all processes."""
        with self._lock:
            connections = list(self._peers)
        for sock in connections:
            _try_send(sock, message)

    def report_failure(self, text: str, **more: Any) -> None:
        """Record `text` as the job's failure, unless it has failed already, and send it, with `more`, to all.

        The process `writer` writes it in full, otherwise this one does.
        """
        with self._lock:
            if self.failure is not None or self._all_left:
                return
            self.failure = text
        self.tell(dict(more, abort=text))

    def settle(self) -> None:
        """Wait, after a failure, until all processes have heard of it: unread messages are lost with this process."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and any(peer.rank and not peer.has_left for peer in self.peers()):
            time.sleep(0.01)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without this thread no death would be noticed any more
            self.report_failure('the job monitor in worker 0 failed: %s: %s' % (type(error).__name__, error))
            raise

    def _watch(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(timeout=CHECK_S)]
            if self._listener in ready:
                ready.remove(self._listener)
                self._accept()
            # Handle ends of connections after messages: a message from before a death may explain it.
            for sock in [sock for sock in ready if not self._read(sock)]:  # type: ignore[arg-type]
                self._close_connection(sock)  # type: ignore[arg-type]
            for sock in self._admission.overdue():
                self._refuse(sock)
            self._check_processes()
            if not self._released and len(self._finished) == self._workers and self.may_release():
                self._released = True
                self.tell({'release': True})
            if self._released and not self._all_left and self._all_have_left():
                self._end_watch()
            if self.failure is not None:
                self.after_failure()

    def _check_processes(self) -> None:
        """Report unexplained deaths, and the findings of the failure detector, every :data:`CHECK_S` at most."""
        now = time.monotonic()
        if now - self._last_check < CHECK_S:
            return
        self._last_check = now
        for deadline, text in self._deaths:
            if now > deadline:
                self.report_failure(text)
        peers = self.peers()
        failure = self._detector.detect(peers)
        if failure is not None:
            self.report_failure(failure.reason, silent=failure.silent)
        # There must be two samples of a process before the limit is over.
        if now - self._last_request > SAMPLE_INTERVAL_S:
            for sampler, processes in self._detector.sample_requests(peers):
                self._last_request = now
                for sock, peer in list(self._peers.items()):
                    if peer is sampler:
                        _try_send(sock, {'sample': processes})

    def _all_have_left(self) -> bool:
        """Return whether all workers have left, and also all servers, or :data:`SETTLE_S` have passed since.

        A server that has not read all messages when this process ends would take the end of its connection for a death.
        """
        if not self._ranks_left.issuperset(range(self._workers)):
            return False
        now = time.monotonic()
        self._workers_left_at = self._workers_left_at or now
        return now - self._workers_left_at > SETTLE_S or all(peer.has_left for peer in self.peers())

    def _end_watch(self) -> None:
        """End the watch, after all workers have left the job in order."""
        with self._lock:
            if self.failure is not None:
                return
            self._all_left = True
            # Worker 0 comes last: its process, and the monitor with it, ends once it has read the message.
            connections = sorted(self._peers, key=lambda sock: self._peers[sock].rank == 0)
        for sock in connections:
            _try_send(sock, {'all_left': True})

    # -- connections ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the client has gone, or this process has no file descriptor left
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines[sock] = LineBuffer()
        self._selector.register(sock, selectors.EVENT_READ)
        _try_send(sock, self._admission.challenge(sock))

    def _read(self, sock: socket.socket) -> bool:
        """Read from a connection; return False if the other side has closed it."""
        try:
            data = sock.recv(65536)
        except OSError:
            data = b''
        if not data:
            return False
        if sock in self._peers:
            self._detector.mark_heard(self._peers[sock])
        lines = self._lines[sock]
        for line in lines.feed(data):
            if sock not in self._admission:
                self._handle_line(sock, line)
            elif not self._admit(sock, line):
                return True
        if sock in self._admission and lines.pending > HELLO_BYTES:
            self._refuse(sock)
        return True

    def _admit(self, sock: socket.socket, line: bytes) -> bool:
        admitted = self._admission.admit(sock, line)
        if admitted is None:
            self._refuse(sock)
            return False
        peer = self._detector.add_process(*admitted)
        with self._lock:
            self._peers[sock] = peer
            failure = self.failure
        if failure is not None:
            _try_send(sock, {'abort': failure})
        return True

    def _refuse(self, sock: socket.socket) -> None:
        self._warn('the job monitor closes a connection from %s, which is no process of this job', _address_of(sock))
        self._close_connection(sock)

    def _close_connection(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        self._lines.pop(sock, None)
        self._admission.forget(sock)
        with self._lock:
            peer = self._peers.pop(sock, None)
        sock.close()
        if peer is None or peer.has_left:
            return
        text = '%s died unexpectedly (killed, or crashed in native code)' % peer.name
        if self._detector.has_parent(peer):
            self._deaths.append((time.monotonic() + PARENT_S, text))
        else:
            self.report_failure(text)

    # -- messages ------------------------------------------------------------------------------------------------

    def _handle_line(self, sock: socket.socket, line: bytes) -> None:
        try:
            message = decode(line)
        except ValueError:
            return
        try:
            self._handle(sock, self._peers[sock], message)
        except (AttributeError, KeyError, TypeError, ValueError):
            logger.warning('the job monitor ignores a malformed message from %s', _address_of(sock))

    def _handle(self, sock: socket.socket, peer: Peer, message: Dict[str, Any]) -> None:
        if 'fail' in message:
            peer.has_left = True
            self.report_failure('%s failed: %s' % (peer.name, message['fail']), writer=peer.name)
        elif 'server_died' in message:
            self.report_failure(str(message['server_died']), writer=peer.name)
        elif 'done' in message:
            peer.log = checked_calls(message['done'])
            self._finished.add(peer.rank)
            peer.has_ended = True
            self.tell({'finished': peer.rank, 'log': peer.log})
        elif 'settled' in message:
            self._settled.add(peer.rank)
            if self._settled.issuperset(range(self._workers)):
                self.tell({'all_settled': True})
        elif 'bye' in message:
            peer.has_left = True
            self._ranks_left.add(peer.rank)
        for kind, act in list(self._listeners.items()):  # another thread may add a listener
            if kind in message:
                answer = act(peer, message[kind])
                if answer is not None:
                    _try_send(sock, answer)


def _try_send(sock: socket.socket, message: Dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        send(sock, message)


def _address_of(sock: socket.socket) -> str:
    try:
        return '%s:%d' % sock.getpeername()[:2]
    except OSError:
        return 'a closed connection'
