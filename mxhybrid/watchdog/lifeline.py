"""The end of the connection to the job monitor that every other process has: it tells, and leaves when told to.

ps-lite never notices a dead node: everyone would hang.  So every worker and server keeps one TCP connection to a
monitor in worker 0's process, :mod:`mxhybrid.watchdog.monitor`.  The kernel closes the connection of a process that
dies, however it dies; the monitor then tells everybody who failed first, and they leave with a message and exit
status 1; a server that launch.py started leaves with a status that shows launch.py that the server is not the cause.
Heartbeats reveal a process that is silent without having died, see :mod:`mxhybrid.watchdog.heartbeat`.

The same connections carry the orderly end: a worker whose script has ended says how many collective calls it
made and waits until all have ended.  A worker that is past that count could only hang, and is told so.  The watch
goes on until each process has left the job and said so: the native exit barriers would wait for the dead, too.

So does a deadlock among calls that need everybody: a worker that has waited long in one says in which, and
when all workers wait in different ones, none of them can ever return.  A worker that stands still says what its last
calls were, :mod:`mxhybrid.watchdog.call_log`, so that the monitor finds where workers differ.

Other parts may use the connections for messages of their own: see `listen` of either end.
"""
import contextlib
import os
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from ..base.errors import JobError
from ..base.log import get_logger
from . import identity
from .admission import answer_challenge
from .heartbeat import Heartbeat
from .call_log import CallLog, RecentCalls, checked_calls, difference_of_calls
from .leaving import ABORT_STATUS, ECHO_DELAY_S, LAST_WORDS_S, leave
from .messages import LineBuffer, Sender, decode, send
from .script import ScriptWatcher
from .liveness_probe import ProbeServer

logger = get_logger(__name__)

#: Seconds in a call that needs all workers after which a worker says that it waits.
PATIENCE_S = 10.0


class Lifeline:
    """The connecting end in a worker or server.

    `name` is how failures name this process, for example ``'worker 2 (host a, pid 71)'``; `rank` is the worker's, -1
    for a server; `timeout` are seconds to wait for the monitor at `address`; the job's `secret` is not kept;
    `cleanup` is called just before the process leaves because the job failed, and `told_status` is the exit status of a
    process that leaves because another one failed.
    """

    def __init__(self, address: Tuple[str, int], name: str, rank: int, timeout: float, secret: str,
                 cleanup: Optional[Callable[[], None]] = None, told_status: int = ABORT_STATUS):
        self._sock = _connect(address, timeout, secret, name, rank)
        self._sender = Sender(self._sock)
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._name, self._cleanup, self._told_status = name, cleanup, told_status
        self._released, self._all_settled = threading.Event(), threading.Event()
        #: Whether a closed connection says nothing new: this process has said bye, or that it fails.
        self._end_announced = False
        self._all_left = threading.Event()
        self._lock = threading.Lock()
        self._log = CallLog()
        #: Of the last log that was sent, how many calls had been made.
        self._logged = 0
        self._script_watcher = ScriptWatcher()
        #: Name of the call that needs all workers in which this one is.
        self._waiting: Optional[str] = None
        #: How many calls are under way that may take long.
        self._busy = 0
        #: Of workers whose scripts have ended: how many calls they made, and the last of these.
        self._ended: Dict[int, Tuple[int, Optional[RecentCalls]]] = {}
        self._rank = rank
        self._heartbeat = Heartbeat(timeout, rank >= 0)
        self._listeners: Dict[str, Callable[[Any], None]] = {'beat': self._handle_heartbeat_answer, 'sample': self._sample}
        self._ticks: List[Callable[[], None]] = []
        self._last_words: List[Callable[[], None]] = []
        self._send_heartbeat()
        os.register_at_fork(after_in_child=self._sock.close)
        self._thread = threading.Thread(target=self._run, name='mxhybrid-lifeline', daemon=True)
        self._thread.start()

    # -- for other parts -----------------------------------------------------------------------------------------

    def listen(self, kind: str, act: Callable[[Any], None]) -> None:
        """Have the lifeline's thread call ``act(message[kind])`` for messages of the monitor with `kind`."""
        self._listeners[kind] = act

    def every_second(self, act: Callable[[], None]) -> None:
        """Have the lifeline's thread call `act` about every second."""
        self._ticks.append(act)

    def before_leaving(self, act: Callable[[], None]) -> None:
        """Have `act` called before this process leaves because the job failed elsewhere."""
        self._last_words.append(act)

    def send(self, message: Dict[str, Any]) -> bool:
        """Send a message to the monitor; whether it left."""
        return self._sender.send(message)

    # -- what this process does ----------------------------------------------------------------------------------

    def count_call(self, call: str) -> None:
        """Count one collective call; raises JobError when a worker that already ended cannot take part."""
        with self._lock:
            self._log.add(call)
            late = self._missing_worker()
        if late is not None:
            raise JobError(late)

    def times(self, call: str) -> int:
        """How often this worker has made a call of this name."""
        return self._log.times(call)

    @contextlib.contextmanager
    def waiting(self, call: str) -> Iterator[None]:
        """Around a collective call that blocks until all workers make it; counts it."""
        self.count_call(call)
        self._waiting = call
        try:
            yield
        finally:
            self._waiting = None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Around what this process does for all and may take long: it does not count as a stall."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def fail(self, text: str, echo: bool = False) -> None:
        """Tell everybody that this process fails with `text`.  With `echo`, first wait a moment for the cause: a death
        elsewhere surfaces here as a native error.
        """
        if echo:
            time.sleep(ECHO_DELAY_S)
        self._end_announced = True
        try:
            if self.send({'fail': text}):
                self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def finish(self) -> bool:
        """Say that this worker's script has ended and wait until all have; a death meanwhile ends this process."""
        log = self._log.recent()
        return self.send({'done': log.last, 'log': log}) and self._released.wait()

    def settle(self) -> None:
        """Say that this worker needs the servers no more, and wait until no worker does."""
        if self.send({'settled': True}):
            self._all_settled.wait()

    def bye(self) -> None:
        """Say that this process has left the job in order: nobody waits for it any more."""
        self._end_announced = True
        self.send({'bye': True})

    def part(self) -> None:
        """Say so, and wait until all workers have: whoever is silent or dies meanwhile ends this process."""
        self.bye()
        while self._thread.is_alive() and not self._all_left.wait(0.5):
            pass

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without this thread the process would wait for the dead
            self._leave('its connection to the job monitor failed: %s: %s' % (type(error).__name__, error))

    def _watch(self) -> None:
        lines = LineBuffer()
        seen: Optional[Tuple[str, int]] = None
        since, said = 0.0, False
        while True:
            self._send_heartbeat()
            for act in list(self._ticks):
                act()
            if not self._readable.poll(1000):
                now, call = time.monotonic(), self._waiting
                waiting = None if call is None else (call, self._log.count)  # names come again and again
                if waiting != seen:
                    if said:
                        self.send({'waiting': None})
                    seen, since, said = waiting, now, False
                elif seen is not None and not said and now - since > PATIENCE_S:
                    self.send({'waiting': seen[0]})
                    said = True
                continue
            try:
                data = self._sock.recv(65536)
            except OSError:
                data = b''
            if not data:
                if not self._end_announced:
                    self._leave(self._heartbeat.death_reason())
                return
            self._heartbeat.mark_heard()
            for line in lines.feed(data):
                self._handle(decode(line))

    def _send_heartbeat(self) -> None:
        """Say that this process lives, and end it if the monitor does not."""
        if not self._heartbeat.due():
            return
        self.send({'beat': self._heartbeat_message()})
        text = self._heartbeat.silence_reason()
        # What came while this process did not run has not been read yet.
        if text is not None and not self._all_left.is_set() and not self._readable.poll(0):
            self.fail(text)
            self._leave(text, [self._heartbeat.monitor], heard=False)

    def _heartbeat_message(self) -> Dict[str, Any]:
        """The beat: what this process has done, and what it waits for."""
        log = self._log.recent()
        idle = self._heartbeat.is_worker and self._script_watcher.is_idle(log.last, time.monotonic())
        beat = self._heartbeat.message(log.last, log.names[-1] if log.names else '',
                                self._script_watcher.waits_for(self._waiting, idle), self._busy > 0)
        if idle and self._logged != log.last:
            beat['log'], self._logged = log, log.last
        return beat

    def _handle(self, message: Dict[str, Any]) -> None:
        if 'abort' in message:
            self._leave(message['abort'], message.get('silent', ()))
        elif 'finished' in message:
            log = None if message.get('log') is None else checked_calls(message['log'])
            with self._lock:
                self._ended[message['finished']] = message['calls'], log
                late = self._missing_worker()
            if late is not None:
                self.fail('%s cannot go on: %s' % (self._name, late))
                self._leave(late)
        elif 'release' in message:
            self._released.set()
        elif 'all_settled' in message:
            self._all_settled.set()
        elif 'all_left' in message:
            self._all_left.set()
        for kind, act in list(self._listeners.items()):  # others may be added meanwhile
            if kind in message:
                try:
                    act(message[kind])
                except (AttributeError, KeyError, TypeError, ValueError):
                    logger.warning('ignoring a malformed message of the job monitor: %.100r', message)

    def _missing_worker(self) -> Optional[str]:
        for rank, (calls, log) in self._ended.items():
            if self._log.count > calls:
                odd = difference_of_calls({rank: log, self._rank: self._log.recent()})
                return ('worker %d ended its script after %d collective calls, this worker is at number %d%s: '
                        'give every worker the same number of steps' % (rank, calls, self._log.count,
                                                                        odd and '; ' + odd))
        return None

    def _handle_heartbeat_answer(self, answer: Dict[str, Any]) -> None:
        self._heartbeat.handle_answer(answer)
        if 'process' in answer and self._heartbeat.sees_monitor():
            host = self._sock.getsockname()[0]
            if not host.startswith('127.'):  # where nobody is on another host
                with contextlib.suppress(OSError):
                    self._heartbeat.set_probe(ProbeServer(host, self._heartbeat.sample_monitor).address)

    def _sample(self, processes: List[Dict[str, Any]]) -> None:
        self.send({'samples': [[process, identity.sample_process(process)] for process in processes]})

    def _leave(self, text: str, silent: Iterable[Any] = (), heard: bool = True) -> None:
        if not self._all_left.is_set():
            # A monitor that does not read would hold up what is said to it until there is no time left for the reason.
            leave('%s ends, because %s' % (self._name, text), self._say_last_words if heard else None, self._cleanup,
                  LAST_WORDS_S, self._told_status, lambda: identity.kill_processes(silent))

    def _say_last_words(self) -> None:
        self.send({'bye': True})
        for act in self._last_words:
            act()


def _connect(address: Tuple[str, int], timeout: float, secret: str, name: str, rank: int) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        sock = None
        left = max(0.1, deadline - time.monotonic())
        try:
            sock = socket.create_connection(address, timeout=left)
            send(sock, answer_challenge(sock, secret, name, rank, left))
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            if time.monotonic() >= deadline:
                raise JobError('no connection to the job monitor at %s:%d within %g s: %s'
                               % (address[0], address[1], timeout, error)) from error
            time.sleep(0.05)
