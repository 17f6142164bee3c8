"""The roll call of workers before Horovod starts, which waits for all workers and does not name missing ones.

Each worker puts a mark on horovodrun's notice board.  Under an MPI there is no board: no missing worker is named.

Until a worker has its lifeline, the board also shows that the job has not ended: horovodrun leaves workers on other
hosts behind, because ssh does not end the processes that it started.
"""
import socket
import threading
from typing import Optional, Tuple

from ..base.rendezvous import NoticeBoard, UnknownAnswerError
from ..watchdog.leaving import leave

#: Seconds that a connection to the launcher may take, and between two checks that the launcher still runs.
_CONNECT_S, WATCH_S = 3.0, 1.0
#: Most missing workers that a message names.
_NAMED = 8


class RollCall:
    """The marks of the workers that have started; `address` is the notice board's, None if there is none."""

    def __init__(self, address: Optional[Tuple[str, int]], rank: int, size: int):
        self._board = None if address is None else NoticeBoard(address, 'mxhybrid')
        self._rank, self._size = rank, size
        self._joined = threading.Event()

    def answer(self) -> None:
        """Put up the mark of this worker; without a board do nothing."""
        if self._board is not None:
            try:
                self._board.put(str(self._rank), socket.gethostname())
            except UnknownAnswerError:
                self._board = None
            except OSError:
                pass  # the thread of watch() notices it

    def watch(self) -> None:
        """Start a thread that ends this process, until :meth:`joined`, if the launcher ends."""
        if self._board is not None:
            threading.Thread(target=self._watch, args=[self._board.address], name='mxhybrid-launcher',
                             daemon=True).start()

    def joined(self) -> None:
        """Stop the watch: the lifeline watches from now on."""
        self._joined.set()

    def _watch(self, address: Tuple[str, int]) -> None:
        while not self._joined.wait(WATCH_S):
            try:
                socket.create_connection(address, timeout=_CONNECT_S).close()
            except ConnectionRefusedError:
                if not self._joined.is_set():
                    leave('worker %d ends, because the launcher at %s:%d has ended' % ((self._rank,) + address))
            except OSError:
                pass  # the main thread has a deadline

    def missing(self) -> str:
        """Return a sentence about the workers that have not started; empty if they are not known."""
        if self._board is None:
            return ''
        try:
            missing = ['worker %d' % rank for rank in range(self._size) if self._board.get(str(rank)) is None]
        except UnknownAnswerError:
            return ''
        except OSError:
            return 'the launcher at %s:%d does not answer' % self._board.address
        more = ' and %d more' % (len(missing) - _NAMED) if len(missing) > _NAMED else ''
        return ', '.join(missing[:_NAMED]) + more + ' did not join' if missing else ''
