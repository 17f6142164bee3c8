"""Notice at once when a process of the job dies, and end all the others.

ps-lite never notices a dead node: everyone would hang.  So every worker and server keeps one TCP connection
to a monitor in rank 0's process, :mod:`mxhybrid.monitor`.  The kernel closes the connection of a process that
dies, however it dies; the monitor then tells everybody who failed first, and they leave with a message and exit
status 1.  Beats find out those that are silent without having died, see :mod:`mxhybrid.heartbeat`.

The same connections carry the orderly end: a worker whose script has ended says how many collective calls it
made and waits until all have ended.  A worker that is past that count could only hang, and is told so.  The watch
goes on until each process has left the job and said so: the native exit barriers would wait for the dead, too.

So does a deadlock among calls that need everybody: a worker that has waited long in one says in which, and
when all workers wait in different ones, none of them can ever return.

Messages are JSON objects, one a line.  Other parts may use the connections for messages of their own: see `listen`
of either end.
"""
import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import heartbeat
from .admission import introduction
from .errors import JobError
from .log import get_logger

logger = get_logger(__name__)

#: Exit status of a process that ends because another one of its job failed.
ABORT_STATUS = 1

#: Seconds that an error which may only be the echo of another process's death waits for the true cause.
ECHO_DELAY_S = 1.0

#: Seconds in a call that needs all workers after which a worker says that it waits.
PATIENCE_S = 10.0

#: Seconds that a process told to end gets to finish a message of its own: often all workers find the same error.
LAST_WORDS_S = 0.5

#: Seconds after which a process gives up sending to a monitor that does not read.
SEND_TIMEOUT_S = 5

#: Seconds after which a process that is to leave has left, whatever holds it up.
LEAVE_S = 10.0

#: Held by the thread that ends this process.
_leaving = threading.Lock()


def send(sock: socket.socket, message: Dict[str, Any]) -> None:
    """Send a message over a connection."""
    sock.sendall(json.dumps(message).encode() + b'\n')


def _plain(value: Any) -> Any:
    """A JSON value for a NumPy number, or for anything else."""
    return value.item() if hasattr(value, 'item') else str(value)


def leave(text: str, cleanup: Optional[Callable[[], None]] = None, grace: float = 0.0) -> None:
    """End this process with `text` on stderr, after `grace` seconds; native exit barriers would wait for the dead.

    The first reason is the cause: another thread that calls this later waits for the end, and says nothing.
    """
    try:
        if not _leaving.acquire(blocking=False):
            time.sleep(LEAVE_S)
            return
        end_in_time()
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.write('[mxhybrid] %s\n' % text)
        flush()
        time.sleep(grace)
        if cleanup is not None:
            cleanup()
        flush()
    finally:
        os._exit(ABORT_STATUS)


def end_in_time() -> None:
    """Have this process end in :data:`LEAVE_S` at the latest: output that nobody reads, say, could hold it up."""
    timer = threading.Timer(LEAVE_S, os._exit, [ABORT_STATUS])
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # an interpreter that ends starts no threads
        timer.start()


def flush() -> None:
    """Have the script's output leave this process, where anybody takes it: its reader may have gone."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


class Lifeline:
    """The connecting end in a worker or server.

    Parameters
    ----------
    address : (str, int)
        The monitor.
    name : str
        How failures name this process, for example ``'worker 2 (host a, pid 71)'``.
    rank : int
        Rank of the worker, or -1 for a server.
    timeout : float
        Seconds to wait for the connection.
    secret : str
        The job's, see :mod:`mxhybrid.admission`; not kept.
    on_abort : callable, optional
        Called just before the process leaves.
    """

    def __init__(self, address: Tuple[str, int], name: str, rank: int, timeout: float, secret: str,
                 on_abort: Optional[Callable[[], None]] = None):
        self._sock = self._connect(address, timeout, lambda sock: introduction(sock, secret, name, rank))
        self._name = name
        self._rank = rank
        self._on_abort = on_abort
        self._released = threading.Event()
        self._stopping = False
        #: Whether a closed connection says nothing new: this process has said bye, or that it fails.
        self._said_all = False
        self._parted = threading.Event()
        self._lock = threading.Lock()
        self._calls = 0
        self._call = ''
        self._ended: Dict[int, int] = {}
        self._pulse = heartbeat.Pulse(timeout, rank >= 0)
        self._listeners: Dict[str, Callable[[Any], None]] = {'beat': self._pulse.answered}
        self._sending = threading.Lock()
        self._torn = False
        #: Called about every second by the lifeline's thread, and by whoever leaves because the job failed.
        self.on_tick: Callable[[], None] = lambda: None
        self.before_leaving: Callable[[], None] = lambda: None
        #: Name of the call that needs all workers in which this one is, set by the caller.
        self.waiting_for: Optional[str] = None
        #: Whether this worker does something for all that may take long, set by the caller: no stall.
        self.busy = False
        self._beat()
        os.register_at_fork(after_in_child=self._sock.close)
        self._thread = threading.Thread(target=self._run, name='mxhybrid-lifeline', daemon=True)
        self._thread.start()

    @staticmethod
    def _connect(address: Tuple[str, int], timeout: float,
                 introduce: Callable[[socket.socket], Dict[str, Any]]) -> socket.socket:
        deadline = time.monotonic() + timeout
        while True:
            sock = None
            try:
                sock = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
                send(sock, introduce(sock))
                break
            except OSError as error:
                if sock is not None:
                    sock.close()
                if time.monotonic() >= deadline:
                    raise JobError('no connection to the job monitor at %s:%d within %g s: %s'
                                   % (address[0], address[1], timeout, error)) from error
                time.sleep(0.05)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', SEND_TIMEOUT_S, 0))
        return sock

    def listen(self, kind: str, act: Callable[[Any], None]) -> None:
        """Have the lifeline's thread call ``act(message[kind])`` for messages of the monitor with `kind`."""
        self._listeners[kind] = act

    def send(self, message: Dict[str, Any]) -> bool:
        """Send a message to the monitor; whether it left."""
        if not self._sending.acquire(timeout=SEND_TIMEOUT_S):
            return False
        try:
            # The rest of a message that was given up must not spoil the next one.
            text = b'\n' * self._torn + json.dumps(message, default=_plain).encode() + b'\n'
            self._torn = True
            self._sock.sendall(text)
            self._torn = False
            return True
        except OSError:
            return False
        finally:
            self._sending.release()

    def count_call(self, call: str) -> None:
        """Count one collective call; raises JobError when a worker that already ended cannot take part."""
        with self._lock:
            self._calls += 1
            self._call = call
            late = self._behind()
        if late is not None:
            raise JobError(late)

    def _behind(self) -> Optional[str]:
        for rank, calls in self._ended.items():
            if self._calls > calls:
                return ('worker %d ended its script after %d collective calls, this worker is at number %d: '
                        'give every worker the same number of steps' % (rank, calls, self._calls))
        return None

    def fail(self, text: str, echo: bool = False) -> None:
        """Tell everybody that this process fails with `text`.

        With `echo`, first wait a moment for the cause: a death elsewhere surfaces here as a native error.
        """
        if echo:
            time.sleep(ECHO_DELAY_S)
        self._said_all = True
        try:
            if self.send({'fail': text}):
                self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def finish(self) -> bool:
        """Say that this worker's script has ended and wait until all have; a death meanwhile ends this process."""
        with self._lock:
            calls = self._calls
        return self.send({'done': calls}) and self._released.wait()

    def bye(self) -> None:
        """Say that this process has left the job in order: nobody waits for it any more."""
        self._said_all = True
        self.send({'bye': True})

    def part(self) -> None:
        """Say so, and wait until all workers have: whoever is silent or dies meanwhile ends this process."""
        self.bye()
        while self._thread.is_alive() and not self._parted.wait(0.5):
            pass

    def _beat(self) -> None:
        """Say that this process lives, and end it if the monitor does not."""
        if not self._pulse.due():
            return
        self.send({'beat': self._pulse.beat(self._calls, self._call, self.waiting_for, self.busy)})
        text = self._pulse.silence()
        if text is not None and not self._parted.is_set():
            self.fail(text)
            heartbeat.end_processes([self._pulse.monitor])
            self._abort(text)

    def _run(self) -> None:
        try:
            self._listen()
        except Exception as error:  # without this thread the process would wait for the dead
            self._abort('its connection to the job monitor failed: %s: %s' % (type(error).__name__, error))

    def _listen(self) -> None:
        buffer = b''
        seen: Optional[Tuple[str, int]] = None
        since, said = 0.0, False
        readable = select.poll()
        readable.register(self._sock, select.POLLIN)
        while True:
            self._beat()
            self.on_tick()
            if not readable.poll(1000):
                now, name = time.monotonic(), self.waiting_for
                waiting = None if name is None else (name, self._calls)  # names come again and again
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
                if not self._said_all and not self._parted.is_set():
                    self._abort(self._pulse.death())
                return
            self._pulse.heard()
            lines: List[bytes] = (buffer + data).split(b'\n')
            buffer = lines.pop()
            for line in lines:
                self._handle(json.loads(line.decode()))

    def _handle(self, message: Dict[str, Any]) -> None:
        if 'abort' in message:
            heartbeat.end_processes(message.get('silent', ()))
            self._abort(message['abort'])
        elif 'finished' in message:
            with self._lock:
                self._ended[message['finished']] = message['calls']
                late = self._behind()
            if late is not None:
                text = '%s cannot go on: %s' % (self._name, late)
                self.fail(text)
                self._abort(late)
        elif 'release' in message:
            self._released.set()
        elif 'farewell' in message:
            self._parted.set()
        for kind, act in self._listeners.items():
            if kind in message:
                try:
                    act(message[kind])
                except (AttributeError, KeyError, TypeError, ValueError):
                    logger.warning('ignoring a malformed message of the job monitor: %.100r', message)

    def _abort(self, text: str) -> None:
        if self._stopping or self._parted.is_set():
            return
        self._stopping = True
        self.send({'bye': True})
        try:
            self.before_leaving()
        finally:
            leave('%s ends, because %s' % (self._name, text), self._on_abort, LAST_WORDS_S)
