"""The lifeline of a process: its connection to the job monitor, over which it sends reports and gets the order to end.

ps-lite never notices a dead process: all others would hang.  So every worker and server keeps a TCP connection to a
monitor in worker 0's process, :mod:`mxhybrid.watchdog.monitor`.  The kernel closes the connection of a process that
dies, however it dies.  The monitor then tells all other processes which one failed first, and they end with a message
and exit status 1.  A server that launch.py started ends with a status that shows launch.py that it is not the cause.
Heartbeats reveal a process that is silent without having died, see :mod:`mxhybrid.watchdog.heartbeat`.

The orderly end of a job uses the same connections.  A worker whose script has ended reports the number of its
collective calls, and waits until all scripts have ended.  A worker that has made more calls than that could only hang,
and gets an error.  The watch lasts until each process has reported that it has left the job: the native exit barriers
would wait for dead processes, too.

Workers that wait for each other are found in the same way, see :mod:`mxhybrid.watchdog.standstill`.

Other modules may send messages of their own over these connections: see `listen` at either end.
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
from ..base.settings import variable
from . import identity
from .admission import answer_challenge
from .call_log import CallLog, RecentCalls, checked_calls, difference_of_calls
from .heartbeat import Heartbeat
from .leaving import ABORT_STATUS, ECHO_DELAY_S, LAST_WORDS_S, brief, leave
from .liveness_probe import serve_samples
from .messages import LineBuffer, Sender, decode, send
from .script import ScriptWatcher

logger = get_logger(__name__)

#: Seconds for the monitor to say which process has failed first.
_ANSWER_S = 0.3


class Lifeline:
    """The lifeline of a worker or server.

    `name` names this process in messages, for example ``'worker 2 (host a, pid 71)'``; `rank` is the worker's, or -1
    for a server; `timeout` is the number of seconds to wait for the monitor at `address`; the job's `secret` is not
    kept; `cleanup` is called just before the process ends because the job failed; `told_status` is the exit status of
    a process that ends because another one failed.
    """

    def __init__(self, address: Tuple[str, int], name: str, rank: int, timeout: float, secret: str,
                 cleanup: Optional[Callable[[], None]] = None, told_status: int = ABORT_STATUS):
        self._sock = _connect(address, timeout, secret, name, rank)
        self._sender = Sender(self._sock)
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._name, self._cleanup, self._told_status = name, cleanup, told_status
        self._released, self._all_settled = threading.Event(), threading.Event()
        #: Whether the end of the connection is expected: this process has sent 'bye' or its failure.
        self._end_announced = False
        #: Why the job failed, and whether this process knows.
        self._cause, self._knows_cause = '', threading.Event()
        self._all_left = threading.Event()
        self._lock = threading.Lock()
        #: The collective calls that this worker has made.
        self.calls = CallLog()
        #: The number of calls that had been made when a log was sent last.
        self._logged_calls = 0
        self._script_watcher = ScriptWatcher()
        #: The first error that the script of this worker got, perhaps caught, and when, '' for none: for messages if
        #: workers wait for each other.
        self.failure = ''
        #: Name of the blocking collective call that this worker is in.
        self._waiting: Optional[str] = None
        #: The number of blocks of :meth:`busy` that are under way.
        self._busy = 0
        #: The last calls of each worker whose script has ended.
        self._ended: Dict[int, RecentCalls] = {}
        self._rank = rank
        self._heartbeat = Heartbeat(timeout, rank >= 0)
        self._listeners: Dict[str, Callable[[Any], None]] = {
            'beat': self._handle_heartbeat_answer, 'sample': self._sample,
            'release': lambda _: self._released.set(), 'all_settled': lambda _: self._all_settled.set(),
            'all_left': lambda _: self._all_left.set()}
        #: The thread calls these about every second, and before this process ends because another one failed.
        self.every_second: Callable[[], None] = lambda: None
        self.before_leaving: Callable[[], None] = lambda: None
        self._send_heartbeat()
        os.register_at_fork(after_in_child=self._sock.close)
        self._thread = threading.Thread(target=self._run, name='mxhybrid-lifeline', daemon=True)
        self._thread.start()

    # -- for other modules ---------------------------------------------------------------------------------------

    def listen(self, kind: str, act: Callable[[Any], None]) -> None:
        """Register ``act(message[kind])`` to be called by the lifeline's thread for messages with `kind`."""
        self._listeners[kind] = act

    def send(self, message: Dict[str, Any]) -> bool:
        """Send a message to the monitor and return whether it was sent."""
        return self._sender.send(message)

    # -- reports of this process ---------------------------------------------------------------------------------

    def count_call(self, call: str) -> None:
        """Count a collective call; JobError if the script of another worker ended before that call."""
        with self._lock:
            self.calls.add(call)
            problem = self._missing_worker()
        if problem is not None:
            raise JobError(problem)

    @contextlib.contextmanager
    def waiting(self, call: str) -> Iterator[None]:
        """Count a collective call, and mark the block as the call, which blocks until all workers make it."""
        self.count_call(call)
        self._waiting = call
        try:
            yield
        finally:
            self._waiting = None

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Mark the block as work for all workers that may take long, and does not count as a stall."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def fail(self, text: str, echo: bool = False) -> None:
        """Report that this process fails with `text`, for the monitor to tell all others.

        With `echo`, first wait a moment for the cause: the death of another process appears here as a native error.
        """
        if echo:
            time.sleep(ECHO_DELAY_S)
        self._end_announced = True
        with contextlib.suppress(OSError):
            if self.send({'fail': text}):
                self._sock.shutdown(socket.SHUT_WR)

    def fails_like_another(self, text: str) -> bool:
        """Report that this process fails with `text`; return whether another one has failed before, with that text."""
        self.fail(text)
        return (self._knows_cause.wait(_ANSWER_S) and not self._cause.startswith(self._name)
                and self._cause.endswith(' failed: ' + text))

    def finish(self) -> bool:
        """Report the end of this worker's script, and wait until all scripts have ended.

        If another process dies during the wait, this process ends.
        """
        return self.send({'done': self.calls.recent()}) and self._released.wait()

    def settle(self) -> None:
        """Report that this worker needs the servers no more, and wait until no worker needs them."""
        if self.send({'settled': True}):
            self._all_settled.wait()

    def bye(self) -> None:
        """Report that this process has left the job in order, so that no process waits for it."""
        self._end_announced = True
        self.send({'bye': True})

    def part(self) -> None:
        """Report that this process has left, and wait until all workers have.

        If another process dies or becomes silent during the wait, this process ends.
        """
        self.bye()
        while self._thread.is_alive() and not self._all_left.wait(0.5):
            pass

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without this thread the process would wait for dead processes
            self._leave('its connection to the job monitor failed: %s: %s' % (type(error).__name__, error))

    def _watch(self) -> None:
        lines = LineBuffer()
        while True:
            self._send_heartbeat()
            self.every_second()
            if not self._readable.poll(1000):
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
        """Send a heartbeat if one is due, and end this process if the monitor is silent for too long."""
        if not self._heartbeat.due():
            return
        self.send({'beat': self._heartbeat_message()})
        reason = self._heartbeat.silence_reason()
        # Messages that arrived while this process did not run have not been read yet.
        if reason is not None and not self._all_left.is_set() and not self._readable.poll(0):
            self.fail(reason)
            self._leave(reason, [self._heartbeat.monitor], is_heard=False)

    def suspected_silence(self) -> Optional[str]:
        """Return why worker 0, which watches the job, seems to be silent, else None."""
        return self._heartbeat.suspected_silence()

    def _heartbeat_message(self) -> Dict[str, Any]:
        """Return the heartbeat to send: the calls of this process, and the call or array for which it waits."""
        log = self.calls.recent()
        idle = self._heartbeat.is_worker and self._script_watcher.is_idle(log.last, time.monotonic())
        beat = self._heartbeat.message(log.last, log.names[-1] if log.names else '',
                                       self._script_watcher.waits_for(self._waiting, idle), self._busy > 0)
        if self.failure:
            beat['failure'] = self.failure
        if idle and self._logged_calls != log.last:
            beat['log'], self._logged_calls = log, log.last
        return beat

    def _handle(self, message: Dict[str, Any]) -> None:
        if 'abort' in message:
            self._end_with_job(message['abort'], message.get('writer'), message.get('silent', ()))
        elif 'finished' in message:
            with self._lock:
                self._ended[message['finished']] = checked_calls(message['log'])
                problem = self._missing_worker()
            if problem is not None:
                self.fail('%s cannot go on: %s' % (self._name, problem))
                self._leave(problem)
        for kind, act in list(self._listeners.items()):  # another thread may add a listener
            if kind in message:
                try:
                    act(message[kind])
                except (AttributeError, KeyError, TypeError, ValueError):
                    logger.warning('ignoring a malformed message of the job monitor: %.100r', message)

    def _missing_worker(self) -> Optional[str]:
        """Return a sentence about a worker whose script ended before the last call of this one; None if none did."""
        for rank, log in self._ended.items():
            if self.calls.count > log.last:
                difference = difference_of_calls({rank: log, self._rank: self.calls.recent()})
                return ('worker %d ended its script after %d collective calls, this worker is at number %d%s: '
                        'give every worker the same number of steps' % (rank, log.last, self.calls.count,
                                                                        difference and '; ' + difference))
        return None

    def _handle_heartbeat_answer(self, answer: Dict[str, Any]) -> None:
        self._heartbeat.handle_answer(answer)
        if 'process' in answer and self._heartbeat.sees_monitor():
            host = self._sock.getsockname()[0]
            if not host.startswith('127.'):  # on loopback no process of another host needs the probe
                with contextlib.suppress(OSError):
                    self._heartbeat.probe = serve_samples(host, self._heartbeat.sample_monitor)

    def _sample(self, processes: List[Dict[str, Any]]) -> None:
        self.send({'samples': [[process, identity.sample_process(process)] for process in processes]})

    def _end_with_job(self, reason: str, writer: Optional[str], silent: Iterable[Any]) -> None:
        """End this process because the job failed; the `writer`, by default worker 0, writes the reason in full."""
        self._cause = reason
        self._knows_cause.set()
        if writer == self._name:
            time.sleep(LAST_WORDS_S)  # the thread that has reported the failure ends this process
        elif writer is not None or self._rank != 0:
            reason = brief(reason, writer or 'worker 0')
        self._leave(reason, silent)

    def _leave(self, text: str, silent: Iterable[Any] = (), is_heard: bool = True) -> None:
        if not self._all_left.is_set():
            # Messages to a monitor that does not read would block until there is no time left to write the reason.
            leave('%s ends, because %s' % (self._name, text), self._send_last_words if is_heard else None,
                  self._cleanup, LAST_WORDS_S, self._told_status, lambda: identity.kill_processes(silent))

    def _send_last_words(self) -> None:
        self.send({'bye': True})
        self.before_leaving()


def _connect(address: Tuple[str, int], timeout: float, secret: str, name: str, rank: int) -> socket.socket:
    """Connect to the monitor and answer its challenge; JobError if it does not admit this process in time."""
    deadline = time.monotonic() + timeout
    while True:
        sock = None
        left_s = max(0.1, deadline - time.monotonic())
        try:
            sock = socket.create_connection(address, timeout=left_s)
            send(sock, answer_challenge(sock, secret, name, rank, left_s))
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            if time.monotonic() >= deadline:
                raise JobError('no connection to the job monitor at %s:%d within %g s: %s. See the output of worker 0, '
                               'which runs it, or raise %s'
                               % (address[0], address[1], timeout, error, variable('timeout'))) from error
            time.sleep(0.05)
