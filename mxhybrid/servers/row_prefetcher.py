"""Prefetch rows of a table: request them before they are needed, so that they travel during other work."""
import threading
from typing import Callable, List, Optional, Tuple

import numpy as np

#: Most pulls of one table that may be under way: each takes memory, here and in an agent of the host.
MAX_PENDING_PULLS = 4

#: Requests rows by ids (sorted, unique) and priority; the function returned waits for them and writes them to an array.
Request = Callable[[np.ndarray, int], Callable[[np.ndarray], None]]


class RowPrefetcher:
    """Pulls of one table with `width` elements a row, answered from rows that were requested earlier if possible.

    Rows change with every push.  A prefetch after the rows of a step were pulled is for the next step, and waits for
    the push; a prefetch before the pull is sent at once.
    """

    def __init__(self, request: Request, width: int, dtype: np.dtype):
        self._request = request
        self._width = width
        self._dtype = dtype
        #: Whether the rows of this step were pulled.
        self._pulled = False
        #: Ids and priority of a prefetch that has not been sent, ids of a request and the function that waits for its
        #: rows, and ids of rows that have arrived with the rows.
        self._wanted: Optional[Tuple[np.ndarray, int]] = None
        self._requested: Optional[Tuple[np.ndarray, Callable[[np.ndarray], None]]] = None
        self._rows: Optional[Tuple[np.ndarray, np.ndarray]] = None
        #: Events of pulls that another thread completes, set once it has.
        self._unwritten: List[threading.Event] = []

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool = False) -> None:
        """Request rows for the next pull, or, with `after_push`, for the next pull after the next push.

        The request replaces an earlier one that has not been sent.
        """
        self._wanted = (ids, priority)
        if not self._pulled and not after_push:
            self._send_wanted()

    def before_push(self) -> None:
        """Prepare for a push, after which all rows that have arrived or are under way are stale."""
        self.collect()
        self._rows = None

    def after_push(self) -> None:
        """Send a prefetch of rows after a push."""
        self._pulled = False
        self._send_wanted()

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int) -> None:
        """Write rows to `result`, see :meth:`mxhybrid.servers.table.Table.pull`."""
        self._start(ids, priority)(result)

    def pull_later(self, ids: np.ndarray, result: np.ndarray, priority: int) -> Callable[[], None]:
        """Request rows; the function returned waits for them and writes them to `result`, in another thread.

        It must be called: the next push waits for that, and so do pulls if too many are under way.
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
        """Return whether there are rows, arrived or requested, that may answer a pull."""
        return self._requested is not None or self._rows is not None

    def mark_pulled(self) -> None:
        """Record that the rows of this step were pulled without the prefetcher."""
        self._pulled = True

    def _start(self, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        """Request the rows that are missing; the function returned waits for them and writes all rows to an array."""
        self._pulled = True
        if self._requested is not None and np.array_equal(self._requested[0], ids):
            (_, write), self._requested = self._requested, None
            return write
        self._store_requested()
        if self._rows is None:
            return self._request(ids, priority)
        present_ids, rows = self._rows
        positions = np.minimum(np.searchsorted(present_ids, ids), len(present_ids) - 1)
        is_present = present_ids[positions] == ids
        write_missing = None if is_present.all() else self._request(ids[~is_present], priority)

        def write_all(result: np.ndarray) -> None:
            result[is_present] = rows[positions[is_present]]
            if write_missing is not None:
                missing = np.empty((np.count_nonzero(~is_present), self._width), self._dtype)
                write_missing(missing)
                result[~is_present] = missing
        return write_all

    def _send_wanted(self) -> None:
        if self._wanted is not None:
            self._store_requested()
            ids, priority = self._wanted
            self._wanted = None
            if len(ids):
                self._requested = (ids, self._request(ids, priority))

    def settle(self) -> None:
        """Wait until other threads have written the rows of all pulls."""
        while self._unwritten:
            self._unwritten.pop().wait()

    def collect(self) -> None:
        """Wait for all rows that are under way, and keep the prefetched ones."""
        self.settle()
        self._store_requested()

    def _store_requested(self) -> None:
        if self._requested is not None:
            ids, write = self._requested
            rows = np.empty((len(ids), self._width), self._dtype)
            write(rows)
            self._requested, self._rows = None, (ids, rows)
