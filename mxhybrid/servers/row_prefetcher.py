"""Rows of a table that are asked for before they are needed, so that they travel while other work is done."""
import threading
from typing import Callable, List, Optional, Tuple

import numpy as np

#: Pulls of one table that may be under way: each takes memory, here and with an agent of the host.
MAX_PENDING_PULLS = 4

#: Asks for rows by ids (sorted, unique) and priority; what it returns waits for them and writes them to an array.
Request = Callable[[np.ndarray, int], Callable[[np.ndarray], None]]


class RowPrefetcher:
    """Pulls of one table, of `width` elements a row, answered from rows asked for earlier where possible.

    Rows change with every push.  So a wish that is made after the rows of this step were pulled is for the next step,
    and waits for the push; one that is made before is sent at once.
    """

    def __init__(self, request: Request, width: int, dtype: np.dtype):
        self._request = request
        self._width = width
        self._dtype = dtype
        self._pulled = False
        self._wanted: Optional[Tuple[np.ndarray, int]] = None
        self._requested: Optional[Tuple[np.ndarray, Callable[[np.ndarray], None]]] = None
        self._rows: Optional[Tuple[np.ndarray, np.ndarray]] = None
        #: Of pulls that another thread ends: set when it has.
        self._unwritten: List[threading.Event] = []

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool = False) -> None:
        """Rows that the next pull, or with `after_push` that after the next push, wants; replaces an earlier wish."""
        self._wanted = (ids, priority)
        if not self._pulled and not after_push:
            self._send_wanted()

    def before_push(self) -> None:
        """To be called before every push: what is here or under way gets stale."""
        self.collect()
        self._rows = None

    def after_push(self) -> None:
        """To be called after every push: wishes for the new rows can be sent."""
        self._pulled = False
        self._send_wanted()

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int) -> None:
        """Write rows to `result`, see :meth:`mxhybrid.servers.table.Table.pull`."""
        self._start(ids, priority)(result)

    def pull_later(self, ids: np.ndarray, result: np.ndarray, priority: int) -> Callable[[], None]:
        """Ask for rows; what it returns waits for them and writes them to `result`, in another thread.

        It has to be called: the next push waits for that, and so do pulls when there are too many under way.
        """
        while len(self._unwritten) >= MAX_PENDING_PULLS:
            self._unwritten.pop(0).wait()
        write, written = self._start(ids, priority), threading.Event()
        self._unwritten = [event for event in self._unwritten if not event.is_set()] + [written]

        def deliver() -> None:
            write(result)
            written.set()
        return deliver

    def has_rows(self) -> bool:
        """Whether rows are here, or were asked for, from which a pull may be answered."""
        return self._requested is not None or self._rows is not None

    def mark_pulled(self) -> None:
        """The rows of this step were pulled, though not here."""
        self._pulled = True

    def _start(self, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        self._pulled = True
        if self._requested is not None and np.array_equal(self._requested[0], ids):
            (_, write), self._requested = self._requested, None
            return write
        self._store_requested()
        if self._rows is None:
            return self._request(ids, priority)
        held, rows = self._rows
        at = np.minimum(np.searchsorted(held, ids), len(held) - 1)
        found = held[at] == ids
        write_others = None if found.all() else self._request(ids[~found], priority)

        def write_all(result: np.ndarray) -> None:
            result[found] = rows[at[found]]
            if write_others is not None:
                others = np.empty((np.count_nonzero(~found), self._width), self._dtype)
                write_others(others)
                result[~found] = others
        return write_all

    def _send_wanted(self) -> None:
        if self._wanted is not None:
            self._store_requested()
            ids, priority = self._wanted
            self._wanted = None
            if len(ids):
                self._requested = (ids, self._request(ids, priority))

    def settle(self) -> None:
        """Wait until other threads have written what they are to."""
        while self._unwritten:
            self._unwritten.pop().wait()

    def collect(self) -> None:
        """Wait for the rows that are under way, and keep those that were asked for early."""
        self.settle()
        self._store_requested()

    def _store_requested(self) -> None:
        if self._requested is not None:
            ids, write = self._requested
            rows = np.empty((len(ids), self._width), self._dtype)
            write(rows)
            self._requested, self._rows = None, (ids, rows)
