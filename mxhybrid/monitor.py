"""The end of all lifelines: notices when a process of the job dies, tells the others, sees to an orderly end."""
import json
import os
import selectors
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import scheduler
from .admission import HELLO_BYTES, STRANGERS, Admission
from .heartbeat import Limits, Vigil
from .lifeline import send
from .log import Sparingly, get_logger

logger = get_logger(__name__)

#: Seconds between two looks at who lives.
LOOK_S = 0.5

#: Seconds that the others have at most to hear of a failure, and servers to leave after the last worker.
SETTLE_S = 2.0

#: Seconds that a parent has to say how its child died.
PARENT_S = 1.5


class Monitor:
    """The listening end, one thread in rank 0's process.

    Parameters
    ----------
    host : str
        Address to listen on.
    workers, servers : int
        Processes that will connect.
    secret : str
        What they know, see :mod:`mxhybrid.admission`.
    limits : Limits, optional
        When a process counts as silent.
    """

    def __init__(self, host: str, workers: int, servers: int, secret: str, limits: Optional[Limits] = None):
        self._listener = socket.create_server((host, 0), backlog=workers + servers + STRANGERS)
        self.address: Tuple[str, int] = self._listener.getsockname()[:2]
        self._workers = workers
        self._servers = servers
        self._selector = selectors.DefaultSelector()
        self._peers: Dict[socket.socket, Dict[str, Any]] = {}
        self._buffers: Dict[socket.socket, bytes] = {}
        self._admission = Admission(secret, workers + servers + 1)
        self._warn = Sparingly(logger)
        self._first_failure: Optional[str] = None
        self._finished: Dict[int, int] = {}
        self._released = False
        #: Ranks that have left in order, and when the last worker had.
        self._left: Set[int] = set()
        self._left_at = 0.0
        #: Whether the watch has ended, since all have left.
        self._parted = False
        #: Deaths that a parent may still explain, and until when.
        self._deaths: List[Tuple[float, str]] = []
        self._lock = threading.Lock()
        self._vigil = Vigil(workers, limits or Limits())
        self._looked = 0.0
        self._listeners: Dict[str, Callable[[Dict[str, Any], Any], Optional[Dict[str, Any]]]] = {
            'beat': self._vigil.beat, 'children': self._vigil.expect}
        #: Called again and again once all workers have ended: whether processes may leave; or once the job has failed.
        self.may_end: Callable[[], bool] = lambda: True
        self.after_failure: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name='mxhybrid-monitor', daemon=True)
        self._selector.register(self._listener, selectors.EVENT_READ)
        os.register_at_fork(after_in_child=self._close_in_child)
        self._thread.start()

    def _close_in_child(self) -> None:
        """A forked child, a data loader say, must not hold connections open that its parent's death would close."""
        for sock in [self._listener] + list(self._buffers):
            sock.close()
        self._admission.close()

    def watch_scheduler(self, address: Tuple[str, int], limit: float) -> None:
        """Also look every few seconds whether the scheduler at `address` lives, and misses it for at most `limit`."""
        scheduler.watch(address, limit, self.report_failure, lambda: self._released)

    def listen(self, kind: str, act: Callable[[Dict[str, Any], Any], Optional[Dict[str, Any]]]) -> None:
        """Have the monitor's thread call ``act(who, message[kind])`` for messages with `kind` and send what it returns.

        `who` describes the peer: its name and rank (-1 for a server), and what else `act` puts there.
        """
        self._listeners[kind] = act

    def peers(self) -> List[Dict[str, Any]]:
        """Who is connected."""
        with self._lock:
            return list(self._peers.values())

    def tell(self, message: Dict[str, Any]) -> None:
        """Send a message to everybody."""
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            self._try_send(peer, message)

    @property
    def failure(self) -> Optional[str]:
        """What the job failed of, None while it has not."""
        return self._first_failure

    def report_failure(self, text: str, **more: Any) -> None:
        """Record `text` as the job's failure, unless one was recorded before, and tell everybody, with `more`."""
        with self._lock:
            if self._first_failure is not None or self._parted:
                return
            self._first_failure = text
        self.tell(dict(more, abort=text))

    def settle(self) -> None:
        """After a failure, wait until all have heard of it: what they have not read is lost with the process."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline and any(who['rank'] and not who.get('bye') for who in self.peers()):
            time.sleep(0.01)

    def _all_have_left(self) -> bool:
        """Whether all workers have, and, in a moment more, all servers: what a server has not read yet is lost with
        this process, and the end of its connection looks like a death."""
        if not self._left.issuperset(range(self._workers)):
            return False
        now = time.monotonic()
        self._left_at = self._left_at or now
        return now - self._left_at > SETTLE_S or all(who.get('bye') for who in self.peers())

    def _take_leave(self) -> None:
        """All workers have left the job in order: the watch ends."""
        with self._lock:
            if self._first_failure is not None:
                return
            self._parted = True
            # Worker 0 last: its process ends, and the monitor with it, once it has heard.
            peers = sorted(self._peers, key=lambda peer: self._peers[peer]['rank'] == 0)
        for peer in peers:
            self._try_send(peer, {'farewell': True})

    def _look_at_lives(self) -> None:
        """Report deaths that nobody explained, and processes that are silent; not after each single message."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        for deadline, text in self._deaths:
            if now > deadline:
                self.report_failure(text)
        verdict = self._vigil.look(self.peers())
        if verdict is not None:
            self.report_failure(verdict.text, silent=verdict.silent)

    def _try_send(self, peer: socket.socket, message: Dict[str, Any]) -> None:
        try:
            send(peer, message)
        except OSError:
            pass

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # a monitor that is gone would notice no death any more
            self.report_failure('the job monitor in worker 0 failed: %s: %s' % (type(error).__name__, error))
            raise

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            for peer in self._admission.overdue():
                self._refuse(peer)
            self._look_at_lives()
            if len(self._finished) == self._workers and not self._released and self.may_end():
                self._release()
            if self._released and not self._parted and self._all_have_left():
                self._take_leave()
            if self._first_failure is not None:
                self.after_failure()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # it has gone again, or this process has no descriptor left for it
            return
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffers[peer] = b''
        self._selector.register(peer, selectors.EVENT_READ)
        self._try_send(peer, self._admission.challenge(peer))

    def _forget(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        self._buffers.pop(peer, None)
        self._admission.forget(peer)

    def _refuse(self, peer: socket.socket) -> None:
        self._warn('the job monitor hangs up on a stranger: %s', self._address_of(peer))
        self._forget(peer)
        peer.close()

    def _read(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(65536)
        except OSError:
            data = b''
        if not data:
            self._forget(peer)
            with self._lock:
                who = self._peers.pop(peer, None)
            peer.close()
            if who is not None and not who.get('bye'):
                self._died(who)
            return
        if peer in self._peers:
            self._vigil.heard(self._peers[peer])
        lines = (self._buffers[peer] + data).split(b'\n')
        self._buffers[peer] = lines.pop()
        for line in lines:
            if peer in self._admission:
                if not self._admit(peer, line):
                    return
                continue
            try:
                message = json.loads(line.decode())
            except ValueError:
                continue
            try:
                self._handle(peer, message)
            except (AttributeError, KeyError, TypeError, ValueError):
                logger.warning('the job monitor ignores a malformed message from %s', self._address_of(peer))
        if peer in self._admission and len(self._buffers[peer]) > HELLO_BYTES:
            self._refuse(peer)

    def _admit(self, peer: socket.socket, line: bytes) -> bool:
        who = self._admission.admit(peer, line)
        if who is None:
            self._refuse(peer)
            return False
        self._vigil.joined(who)
        with self._lock:
            self._peers[peer] = who
            failure = self._first_failure
        if failure is not None:
            self._try_send(peer, {'abort': failure})
        return True

    def _died(self, who: Dict[str, Any]) -> None:
        text = '%s died without a word (killed, or crashed in native code)' % who['name']
        if self._vigil.has_parent(who):
            self._deaths.append((time.monotonic() + PARENT_S, text))
        else:
            self.report_failure(text)

    @staticmethod
    def _address_of(peer: socket.socket) -> str:
        try:
            return '%s:%d' % peer.getpeername()[:2]
        except OSError:
            return 'a closed connection'

    def _handle(self, peer: socket.socket, message: Dict[str, Any]) -> None:
        who = self._peers[peer]
        if 'fail' in message:
            who['bye'] = True
            self.report_failure('%s failed: %s' % (who['name'], message['fail']))
        elif 'child_died' in message:
            self.report_failure(str(message['child_died']))
        elif 'done' in message:
            rank = who['rank']
            self._finished[rank] = message['done']
            who['done'] = True
            for other in list(self._peers):
                self._try_send(other, {'finished': rank, 'calls': message['done']})
        elif 'waiting' in message:
            who['waiting'] = message['waiting']
            self._look_for_deadlock()
        elif 'bye' in message:
            who['bye'] = True
            self._left.add(who['rank'])
        for kind, act in self._listeners.items():
            if kind in message:
                answer = act(who, message[kind])
                if answer is not None:
                    self._try_send(peer, answer)

    def _look_for_deadlock(self) -> None:
        waiting = {who['rank']: who.get('waiting') for who in self._peers.values() if who['rank'] >= 0}
        if len(waiting) == self._workers and None not in waiting.values() and len(set(waiting.values())) > 1:
            calls = ', '.join('worker %d in %s' % item for item in sorted(waiting.items()))
            self.report_failure('all workers wait for each other in different calls (%s): make the same calls of the '
                                'store in the same order on every worker' % calls)

    def _release(self) -> None:
        with self._lock:
            self._released = True
            peers = list(self._peers)
        for peer in peers:
            self._try_send(peer, {'release': True})
