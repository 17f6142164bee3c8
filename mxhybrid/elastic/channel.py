"""The connection of a worker with its keeper while it trains, and the call after which all workers leave.

Workers leave together, after the same call of :meth:`mxhybrid.elastic.State.commit`, though none waits for the others
in a step: the launcher sends a *pin*.  Each worker answers at once, also in the middle of a step, with the number of
the call that it will make next, and does not return from this call until it knows the *target*, the largest of these
numbers.  Workers with a lower number continue, so no two workers wait for each other.
"""
import os
import signal
import socket
import threading
import time
from typing import Any, List, Optional

from ..base.errors import HybridError, JobError
from ..base.log import get_logger
from ..messaging.keeper_channel import TooLateError, open_channel
from ..messaging.local_sockets import Connection

logger = get_logger(__name__)

#: Seconds for the launcher to say after which call the workers leave.
TARGET_S = 30.0
#: Seconds from SIGTERM to the end of this worker, unless the launcher lets all workers leave together.
SIGTERM_S = 1.0


class Channel:
    """The connection; without a keeper it has no `folder`, and messages are dropped."""

    def __init__(self, rank: int):
        self._rank = rank
        self._connection: Optional[Connection] = None
        #: The folder of the keeper, '' if there is no keeper.
        self.folder = ''
        self._changed = threading.Condition()
        self._calls = 0
        self._is_pinned = False
        self._target: Optional[int] = None
        self.connect()
        if self.folder:
            self._watch_sigterm()

    def connect(self) -> None:
        """Connect again if the keeper has ended; TooLateError if this generation has ended."""
        if self._connection is not None:
            return
        self.folder = ''
        try:
            self._connection, self.folder = open_channel('state')
        except TooLateError:
            raise
        except (JobError, OSError) as error:
            logger.warning('no keeper answers on this host: %s', error)
        else:
            threading.Thread(target=self._listen, args=[self._connection], name='mxhybrid-keeper', daemon=True).start()

    def tell(self, kind: str, *content: Any) -> None:
        """Send a message to the keeper, if there is one."""
        if self._connection is not None:
            self._connection.tell([kind, *content])

    def _listen(self, connection: Connection) -> None:
        try:
            while True:
                message, _ = connection.receive()
                self._handle(message)
        except (OSError, HybridError, ValueError, IndexError):
            with self._changed:  # the keeper has ended
                self._connection, self._is_pinned = None, False
                self._changed.notify_all()
            connection.close()

    def _handle(self, message: List[Any]) -> None:
        with self._changed:
            if message[0] == 'pin':
                self._is_pinned = True
                self.tell('call', [self._rank, self._calls + 1])
            elif message[0] == 'target':
                self._is_pinned, self._target = False, message[1]
            self._changed.notify_all()

    def leaves_after_call(self) -> bool:
        """Count a call; return whether the workers leave after it."""
        deadline = time.monotonic() + TARGET_S
        with self._changed:
            while self._is_pinned and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            self._is_pinned = False
            self._calls += 1
            return self._target is not None and self._calls >= self._target

    def _watch_sigterm(self) -> None:
        """Report SIGTERM at once, also while the script is in native code; a handler of the script is kept."""
        if signal.getsignal(signal.SIGTERM) not in (None, signal.SIG_DFL):
            return
        reader, writer = socket.socketpair()
        reader.setblocking(True)
        writer.setblocking(False)
        try:
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            return

        def reset() -> None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        os.register_at_fork(after_in_child=reset)
        threading.Thread(target=self._leave_on_sigterm, args=[reader, writer], name='mxhybrid-sigterm',
                         daemon=True).start()

    def _leave_on_sigterm(self, reader: socket.socket, writer: socket.socket) -> None:
        while signal.SIGTERM not in reader.recv(16):
            pass
        self.tell('leaving', 'SIGTERM of worker %d' % self._rank)
        deadline = time.monotonic() + SIGTERM_S
        with self._changed:
            while self._target is None and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            if self._target is not None:
                return
        os._exit(128 + signal.SIGTERM)
