"""The roll call of workers before Horovod starts, which waits for all workers and does not name missing ones.

Each worker puts a mark on horovodrun's notice board.  Under an MPI there is no board: no missing worker is named.

Until a worker has its lifeline, the board also shows that the job has not ended: horovodrun leaves workers on other
hosts behind, because ssh does not end the processes that it started.
"""
import socket
import threading
import time
from typing import Any, List, Optional, Tuple

from ..base.text import listed
from ..messaging.notice_board import NoticeBoard, UnknownAnswerError
from ..watchdog.leaving import leave

#: Seconds that a connection to the launcher may take, and between two checks that the launcher still runs.
_CONNECT_S, WATCH_S = 3.0, 1.0
#: Most missing workers that a message names.
_NAMED = 8
#: The limit of a wait that is extended since workers still arrive, as a multiple of the original limit.
MOST_EXTENSION = 10


class RollCall:
    """The marks of the workers that have started; `address` is the notice board's, None if there is none."""

    def __init__(self, address: Optional[Tuple[str, int]], rank: int, size: int):
        #: The notice board; None if there is none.
        self.board = None if address is None else NoticeBoard(address, 'mxhybrid')
        self._rank, self._size = rank, size
        #: Set once the lifeline watches: it ends the watch for the launcher.
        self.joined = threading.Event()
        self._extended_s = 0.0

    def answer(self) -> None:
        """Put up the mark of this worker; without a board do nothing."""
        if self.board is not None:
            try:
                self.board.put(str(self._rank), {'host': socket.gethostname(), 'time': time.time()})
            except UnknownAnswerError:
                self.board = None
            except OSError:
                pass  # the thread of watch() notices it

    def watch(self) -> None:
        """Start a thread that ends this process, until :attr:`joined`, if the launcher ends."""
        if self.board is not None:
            threading.Thread(target=self._watch, args=[self.board.address], name='mxhybrid-launcher',
                             daemon=True).start()

    def _watch(self, address: Tuple[str, int]) -> None:
        while not self.joined.wait(WATCH_S):
            try:
                socket.create_connection(address, timeout=_CONNECT_S).close()
            except ConnectionRefusedError:
                if not self.joined.is_set():
                    leave('worker %d ends, because the launcher at %s:%d has ended' % ((self._rank,) + address))
            except OSError:
                pass  # the main thread has a deadline

    def extension(self, limit_s: float) -> float:
        """Return the seconds until the last worker that came has been here for `limit_s`; 0 if that is past.

        Many workers on few cores take long to import MXNet, and Horovod takes long to connect them: a limit counts from
        the last arrival.  The clocks of hosts may differ, so the sum of all extensions is limited.
        """
        if self.board is None:
            return 0.0
        try:
            times = [mark['time'] for mark in self._marks() if mark is not None]
        except (OSError, KeyError, TypeError):
            return 0.0
        extension_s = min(limit_s, max(times, default=0.0) + limit_s - time.time(),
                          MOST_EXTENSION * limit_s - self._extended_s)
        self._extended_s += max(0.0, extension_s)
        return max(0.0, extension_s)

    def _marks(self) -> List[Any]:
        assert self.board is not None
        return [self.board.get(str(rank)) for rank in range(self._size)]

    def missing(self) -> str:
        """Return a sentence about the workers that have not started; empty if they are not known."""
        if self.board is None:
            return ''
        try:
            missing = ['worker %d' % rank for rank, mark in enumerate(self._marks()) if mark is None]
        except UnknownAnswerError:
            return ''
        except OSError:
            return 'the launcher at %s:%d does not answer' % self.board.address
        return listed(missing, _NAMED) + ' did not join' if missing else ''
