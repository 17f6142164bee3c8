"""Who has come to Horovod's start, which waits for all workers and says nothing about those that are missing.

Each worker leaves a mark on horovodrun's notice board.  Under an MPI there is none, and nobody is named.

Until a worker has its lifeline, that board is also the sign that the job has not ended: horovodrun leaves workers on
other hosts behind, where ssh does not end what it started.
"""
import socket
import threading
from typing import Optional, Tuple

from ..base.rendezvous import NoticeBoard, UnknownAnswerError
from ..watchdog.leaving import leave

#: Seconds that a connection to the launcher may take, and between two looks whether it is still there.
_CONNECT_S, WATCH_S = 3.0, 1.0
#: Of so many missing workers the first are named.
_NAMED = 8


class RollCall:
    """Marks of the workers that came; `address` is that of the notice board, None if there is none."""

    def __init__(self, address: Optional[Tuple[str, int]], rank: int, size: int):
        self._board = None if address is None else NoticeBoard(address, 'mxhybrid')
        self._rank, self._size = rank, size
        self._joined = threading.Event()

    def answer(self) -> None:
        """Say that this worker has come; without a board nothing happens."""
        if self._board is not None:
            try:
                self._board.put(str(self._rank), socket.gethostname())
            except UnknownAnswerError:
                self._board = None
            except OSError:
                pass  # who watches will see

    def watch(self) -> None:
        """From now until :meth:`joined`, end this process when the launcher has ended."""
        if self._board is not None:
            threading.Thread(target=self._watch, args=[self._board.address], name='mxhybrid-launcher',
                             daemon=True).start()

    def joined(self) -> None:
        """Others watch from now on."""
        self._joined.set()

    def _watch(self, address: Tuple[str, int]) -> None:
        while not self._joined.wait(WATCH_S):
            try:
                socket.create_connection(address, timeout=_CONNECT_S).close()
            except ConnectionRefusedError:
                if not self._joined.is_set():
                    leave('worker %d ends, because the launcher at %s:%d has ended' % ((self._rank,) + address))
            except OSError:
                pass  # whoever waits has a deadline

    def missing(self) -> str:
        """Who has not come, in words; empty if nobody knows."""
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
