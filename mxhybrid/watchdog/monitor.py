"""The end of all lifelines: notices when a process of the job dies, tells the others, sees to an orderly end."""
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
from .messages import LineBuffer, decode, send
from .peers import Peer
from .scheduler import watch_scheduler
from .failure_detector import FailureDetector

logger = get_logger(__name__)

#: Seconds between two looks at who lives.
CHECK_S = 0.5
#: Seconds that the others have at most to hear of a failure, and servers to leave after the last worker.
SETTLE_S = 2.0
#: Seconds that a parent has to say how its child died.
PARENT_S = 1.5
#: What is done with a message: it may return an answer.
Act = Callable[[Peer, Any], Optional[Dict[str, Any]]]


class Monitor:
    """The listening end at `host`, one thread in worker 0's process, for workers and servers that know the `secret`."""

    def __init__(self, host: str, workers: int, servers: int, secret: str, limits: Optional[Limits] = None):
        self._listener = socket.create_server((host, 0), backlog=workers + servers + STRANGERS)
        self.address: Tuple[str, int] = self._listener.getsockname()[:2]
        self._workers = workers
        self._selector = selectors.DefaultSelector()
        self._lines: Dict[socket.socket, LineBuffer] = {}
        self._peers: Dict[socket.socket, Peer] = {}
        self._admission = Admission(secret, workers + servers + 1)
        self._warn = Sparingly(logger)
        #: What the job failed of, None while it has not.
        self.failure: Optional[str] = None
        #: Ranks whose scripts have ended, and whether all have been told that they may leave.
        self._finished: Set[int] = set()
        #: Workers that need the servers no more.
        self._settled: Set[int] = set()
        self._released = False
        #: Ranks that have left in order, and when the last worker had.
        self._ranks_left: Set[int] = set()
        self._workers_left_at = 0.0
        #: Whether the watch has ended, since all have left.
        self._all_left = False
        #: Deaths that a parent may still explain, and until when.
        self._deaths: List[Tuple[float, str]] = []
        self._lock = threading.Lock()
        self._detector = FailureDetector(workers, limits or Limits())
        self._last_check = self._last_request = 0.0
        self._listeners: Dict[str, Act] = {
            'beat': self._detector.handle_heartbeat, 'servers': self._detector.expect_servers,
            'samples': lambda peer, seen: self._detector.add_samples(self.peers(), seen)}
        self._duties: List[Callable[[], bool]] = []
        self._after_failure: List[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name='mxhybrid-monitor', daemon=True)
        self._selector.register(self._listener, selectors.EVENT_READ)
        os.register_at_fork(after_in_child=self._close_in_child)
        self._thread.start()

    def _close_in_child(self) -> None:
        """A forked child, a data loader say, must not hold connections open that its parent's death would close."""
        for sock in [self._listener] + list(self._lines):
            sock.close()
        self._admission.close()

    # -- for other parts -----------------------------------------------------------------------------------------

    def watch_scheduler(self, address: Tuple[str, int], limit: float) -> None:
        """Also look every few seconds whether the scheduler at `address` lives, and misses it for at most `limit`."""
        watch_scheduler(address, limit, self.report_failure, lambda: self._released)

    def listen(self, kind: str, act: Act) -> None:
        """Have the monitor's thread call ``act(peer, message[kind])`` for messages with `kind`, and send its answer."""
        self._listeners[kind] = act

    def before_release(self, is_done: Callable[[], bool]) -> None:
        """Have the monitor's thread call `is_done`, once all workers have ended, until true: nobody leaves before."""
        self._duties.append(is_done)

    def after_failure(self, act: Callable[[], None]) -> None:
        """Have the monitor's thread call `act` again and again once the job has failed."""
        self._after_failure.append(act)

    def peers(self) -> List[Peer]:
        """Who is connected."""
        with self._lock:
            return list(self._peers.values())

    def tell(self, message: Dict[str, Any]) -> None:
        """Send a message to everybody."""
        with self._lock:
            socks = list(self._peers)
        for sock in socks:
            _try_send(sock, message)

    def report_failure(self, text: str, **more: Any) -> None:
        """Record `text` as the job's failure, unless one was recorded before, and tell everybody, with `more`."""
        with self._lock:
            if self.failure is not None or self._all_left:
                return
            self.failure = text
        self.tell(dict(more, abort=text))

    def settle(self) -> None:
        """After a failure, wait until all have heard of it: what they have not read is lost with the process."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and any(peer.rank and not peer.has_left for peer in self.peers()):
            time.sleep(0.01)

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # a monitor that is gone would notice no death any more
            self.report_failure('the job monitor in worker 0 failed: %s: %s' % (type(error).__name__, error))
            raise

    def _watch(self) -> None:
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(timeout=CHECK_S)]
            if self._listener in ready:
                ready.remove(self._listener)
                self._accept()
            # Ends after messages: what was said before a death explains it.
            for sock in [sock for sock in ready if not self._read(sock)]:  # type: ignore[arg-type]
                self._close_connection(sock)  # type: ignore[arg-type]
            for sock in self._admission.overdue():
                self._refuse(sock)
            self._check_processes()
            if not self._released and len(self._finished) == self._workers and all(done() for done in self._duties):
                self._released = True
                self.tell({'release': True})
            if self._released and not self._all_left and self._all_have_left():
                self._end_watch()
            if self.failure is not None:
                for act in self._after_failure:
                    act()

    def _check_processes(self) -> None:
        """Report deaths that nobody explained, and processes that are silent; not after each single message."""
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
        # Two looks have to be there before the limit is over.
        if now - self._last_request > SAMPLE_INTERVAL_S:
            for witness, processes in self._detector.sample_requests(peers):
                self._last_request = now
                for sock, peer in list(self._peers.items()):
                    if peer is witness:
                        _try_send(sock, {'sample': processes})

    def _all_have_left(self) -> bool:
        """Whether all workers have, and, in a moment more, all servers: what a server has not read yet is lost with
        this process, and the end of its connection looks like a death."""
        if not self._ranks_left.issuperset(range(self._workers)):
            return False
        now = time.monotonic()
        self._workers_left_at = self._workers_left_at or now
        return now - self._workers_left_at > SETTLE_S or all(peer.has_left for peer in self.peers())

    def _end_watch(self) -> None:
        """All workers have left the job in order: the watch ends."""
        with self._lock:
            if self.failure is not None:
                return
            self._all_left = True
            # Worker 0 last: its process ends, and the monitor with it, once it has heard.
            socks = sorted(self._peers, key=lambda sock: self._peers[sock].rank == 0)
        for sock in socks:
            _try_send(sock, {'all_left': True})

    # -- connections ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone again, or this process has no descriptor left for it
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines[sock] = LineBuffer()
        self._selector.register(sock, selectors.EVENT_READ)
        _try_send(sock, self._admission.challenge(sock))

    def _read(self, sock: socket.socket) -> bool:
        """Whether the connection goes on, or has been hung up already."""
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
        found = self._admission.admit(sock, line)
        if found is None:
            self._refuse(sock)
            return False
        peer = self._detector.add_process(*found)
        with self._lock:
            self._peers[sock] = peer
            failure = self.failure
        if failure is not None:
            _try_send(sock, {'abort': failure})
        return True

    def _refuse(self, sock: socket.socket) -> None:
        self._warn('the job monitor hangs up on a stranger: %s', _address_of(sock))
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
        text = '%s died without a word (killed, or crashed in native code)' % peer.name
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
            peer.mark_left()
            self.report_failure('%s failed: %s' % (peer.name, message['fail']))
        elif 'server_died' in message:
            self.report_failure(str(message['server_died']))
        elif 'done' in message:
            self._finished.add(peer.rank)
            peer.mark_ended()
            log = {} if 'log' not in message else {'log': message['log']}
            if log:
                peer.set_log(checked_calls(message['log']))
            self.tell({'finished': peer.rank, 'calls': message['done'], **log})
        elif 'settled' in message:
            self._settled.add(peer.rank)
            if self._settled.issuperset(range(self._workers)):
                self.tell({'all_settled': True})
        elif 'waiting' in message:
            peer.set_waiting(message['waiting'])
            self._detect_deadlock()
        elif 'bye' in message:
            peer.mark_left()
            self._ranks_left.add(peer.rank)
        for kind, act in list(self._listeners.items()):  # others may be added meanwhile
            if kind in message:
                answer = act(peer, message[kind])
                if answer is not None:
                    _try_send(sock, answer)

    def _detect_deadlock(self) -> None:
        waiting = {peer.rank: peer.waiting for peer in self._peers.values() if peer.is_worker}
        if len(waiting) == self._workers and None not in waiting.values() and len(set(waiting.values())) > 1:
            calls = ', '.join('worker %d in %s' % item for item in sorted(waiting.items()))
            self.report_failure('all workers wait for each other in different calls (%s): make the same calls of the '
                                'store in the same order on every worker' % calls)


def _try_send(sock: socket.socket, message: Dict[str, Any]) -> None:
    try:
        send(sock, message)
    except OSError:
        pass


def _address_of(sock: socket.socket) -> str:
    try:
        return '%s:%d' % sock.getpeername()[:2]
    except OSError:
        return 'a closed connection'
