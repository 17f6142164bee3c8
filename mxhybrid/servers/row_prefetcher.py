"""Prefetch rows of a table: request them before they are needed, so that they travel during other work."""
import threading
from typing import Callable, List, Optional, Tuple

import numpy as np

#: Most pulls of one table that may be under way: each takes memory, here and in an agent of the host.
MAX_PENDING_PULLS = 4

#: Waits for rows and writes them to an array.
Write = Callable[[np.ndarray], None]
#: Requests rows by ids (sorted, unique) and priority, for use after a number of pushes, by default none.
Request = Callable[..., Write]


class RowPrefetcher:
    """Pulls of one table with `width` elements a row, answered from rows that were requested earlier if possible.

    Rows change with every push.  A prefetch after the rows of a step were pulled is for the next step, and waits for
    the push; a prefetch before the pull is sent at once.

    If `lag` returns more than 0, rows may lack pushes of other workers, so a prefetch for the next step is sent at
    once, too, without the rows that the step uses.  These, and other rows that this worker pushes, are requested after
    the push.
    """

    def __init__(self, request: Request, width: int, dtype: np.dtype, lag: Callable[[], int] = lambda: 0):
        self._request, self._lag = request, lag
        self._width = width
        self._dtype = dtype
        #: Whether the rows of this step were pulled.
        self._pulled = False
        #: Ids and priority of a prefetch that has not been sent, ids of a request and the function that waits for its
        #: rows, and ids of rows that have arrived with the rows.
        self._unsent: Optional[Tuple[np.ndarray, int]] = None
        self._requested: Optional[Tuple[np.ndarray, Write]] = None
        self._rows: Optional[Tuple[np.ndarray, np.ndarray]] = None
        #: Ids and priority of a prefetch for the pull after the next push, which of them were requested before it,
        #: and the function that waits for these rows.
        self._ahead: Optional[Tuple[np.ndarray, int, np.ndarray, Write]] = None
        #: The ids of the last pull.
        self._used: Optional[np.ndarray] = None
        #: Whether rows that were requested earlier may lack pushes.
        self._may_lack_pushes = False
        #: The ids of the push that is being made; None if it may change all rows.
        self._pushed: Optional[np.ndarray] = None
        #: Events of pulls that another thread completes, set once it has.
        self._unwritten: List[threading.Event] = []

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool = False) -> None:
        """Request rows for the next pull, or, with `after_push`, for the next pull after the next push.

        The request replaces an earlier one that has not been sent.
        """
        self._unsent = (ids, priority)
        if not self._pulled and not after_push:
            self._send_unsent()
        elif self._lag() > 0 and self._ahead is None and len(ids):
            self._unsent = None
            # The step will probably push the rows that it uses, so these have to be requested after it.
            used = self._requested[0] if self._requested is not None else self._used
            early = np.ones(len(ids), bool) if used is None else ~np.isin(ids, used, assume_unique=True)
            if early.any():
                self._ahead = ids, priority, early, self._request(ids[early], priority, 1)
            else:
                self._unsent = ids, priority

    def before_push(self, ids: Optional[np.ndarray] = None) -> None:
        """Prepare for a push, after which all rows that have arrived or are under way are outdated.

        With `ids`, those of the push, rows that were requested for the pull after it stay, except these.
        """
        self._pushed = ids
        if ids is None:
            self.collect()
            if self._ahead is not None:
                self._unsent = self._unsent or self._ahead[:2]
                self._ahead = None
        else:
            self._store_requested()
        self._rows = None

    def after_push(self) -> None:
        """Send a prefetch of rows after a push."""
        self._pulled = False
        if self._ahead is not None:
            ids, priority, early, write = self._ahead
            self._ahead = None
            self._requested = ids, self._with_late_rows(ids, priority, early, write)
            self._may_lack_pushes = True
        self._send_unsent()

    def _with_late_rows(self, ids: np.ndarray, priority: int, early: np.ndarray, write_early: Write) -> Write:
        """Request rows that the last push changed or nobody requested; return the function that writes all rows."""
        assert self._pushed is not None
        late = ~early | np.isin(ids, self._pushed, assume_unique=True)
        if not late.any():
            return write_early
        write_late = self._request(ids[late], priority)

        def write_all(result: np.ndarray) -> None:
            result[early] = self._received(np.count_nonzero(early), write_early)
            result[late] = self._received(np.count_nonzero(late), write_late)
        return write_all

    def _received(self, count: int, write: Write) -> np.ndarray:
        """Wait for that number of rows and return them."""
        rows = np.empty((count, self._width), self._dtype)
        write(rows)
        return rows

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
        self._pulled, self._used = True, ids
        if self._may_lack_pushes and self._lag() == 0:
            return self._request(ids, priority)
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
                result[~is_present] = self._received(np.count_nonzero(~is_present), write_missing)
        return write_all

    def _send_unsent(self) -> None:
        if self._unsent is not None:
            self._store_requested()
            ids, priority = self._unsent
            self._unsent = None
            if len(ids):
                self._requested = (ids, self._request(ids, priority))
                self._may_lack_pushes = self._may_lack_pushes or self._lag() > 0

    def settle(self) -> None:
        """Wait until other threads have written the rows of all pulls."""
        while self._unwritten:
            self._unwritten.pop().wait()

    def collect(self) -> None:
        """Wait for all rows that are under way, and keep the prefetched ones."""
        self.settle()
        self._store_requested()
        if self._ahead is not None:
            ids, priority, early, write = self._ahead
            rows = self._received(np.count_nonzero(early), write)
            self._ahead = ids, priority, early, lambda result: np.copyto(result, rows)

    def _store_requested(self) -> None:
        if self._requested is not None:
            ids, write = self._requested
            self._rows = ids, self._received(len(ids), write)
            self._requested = None
