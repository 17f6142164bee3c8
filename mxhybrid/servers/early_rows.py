"""Rows of a table that are asked for before they are needed, so that they travel while other work is done."""
import threading
from typing import Callable, List, Optional, Tuple

import numpy as np

#: Pulls of one table that may be under way: each takes memory, here and with an agent of the host.
MOST_UNDER_WAY = 4

#: Asks for rows by ids (sorted, unique) and priority; what it returns waits for them and writes them to an array.
Request = Callable[[np.ndarray, int], Callable[[np.ndarray], None]]


class Ahead:
    """Pulls of one table, of `width` elements a row, answered from rows asked for earlier where possible.

    Rows change with every push.  So a wish that is made after the rows of this step were pulled is for the next step,
    and waits for the push; one that is made before is sent at once.
    """

    def __init__(self, request: Request, width: int, dtype: np.dtype):
        self._request = request
        self._width = width
        self._dtype = dtype
        self._pulled = False
        self._wish: Optional[Tuple[np.ndarray, int]] = None
        self._asked: Optional[Tuple[np.ndarray, Callable[[np.ndarray], None]]] = None
        self._here: Optional[Tuple[np.ndarray, np.ndarray]] = None
        #: Of pulls that another thread ends: set when it has.
        self._unwritten: List[threading.Event] = []

    def want(self, ids: np.ndarray, priority: int, after_push: bool = False) -> None:
        """Rows that the next pull, or with `after_push` that after the next push, wants; replaces an earlier wish."""
        self._wish = (ids, priority)
        if not self._pulled and not after_push:
            self._ask()

    def before_push(self) -> None:
        """To be called before every push: what is here or under way gets stale."""
        self.collect()
        self._here = None

    def after_push(self) -> None:
        """To be called after every push: wishes for the new rows can be sent."""
        self._pulled = False
        self._ask()

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int) -> None:
        """Write rows to `result`, see :meth:`mxhybrid.servers.table.Table.pull`."""
        self._start(ids, priority)(result)

    def pull_later(self, ids: np.ndarray, result: np.ndarray, priority: int) -> Callable[[], None]:
        """Ask for rows; what it returns waits for them and writes them to `result`, in another thread.

        It has to be called: the next push waits for that, and so do pulls when there are too many under way.
        """
        while len(self._unwritten) >= MOST_UNDER_WAY:
            self._unwritten.pop(0).wait()
        write, written = self._start(ids, priority), threading.Event()
        self._unwritten = [event for event in self._unwritten if not event.is_set()] + [written]

        def deliver() -> None:
            write(result)
            written.set()
        return deliver

    def has_any(self) -> bool:
        """Whether rows are here, or were asked for, from which a pull may be answered."""
        return self._asked is not None or self._here is not None

    def pulled_otherwise(self) -> None:
        """The rows of this step were pulled, though not here."""
        self._pulled = True

    def _start(self, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        self._pulled = True
        if self._asked is not None and np.array_equal(self._asked[0], ids):
            (_, write), self._asked = self._asked, None
            return write
        self._keep()
        if self._here is None:
            return self._request(ids, priority)
        held, rows = self._here
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

    def _ask(self) -> None:
        if self._wish is not None:
            self._keep()
            ids, priority = self._wish
            self._wish = None
            if len(ids):
                self._asked = (ids, self._request(ids, priority))

    def settle(self) -> None:
        """Wait until other threads have written what they are to."""
        while self._unwritten:
            self._unwritten.pop().wait()

    def collect(self) -> None:
        """Wait for the rows that are under way, and keep those that were asked for early."""
        self.settle()
        self._keep()

    def _keep(self) -> None:
        if self._asked is not None:
            ids, write = self._asked
            rows = np.empty((len(ids), self._width), self._dtype)
            write(rows)
            self._asked, self._here = None, (ids, rows)
