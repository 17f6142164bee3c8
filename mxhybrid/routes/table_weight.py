"""A weight in a table with its optimizer state, on the servers or in every worker: the calls that both have."""
from typing import Any, Callable, Iterable, List, Sequence, Tuple, Union

import numpy as np

from ..native.optimizer_state import count_update, rates_of, state_shapes, state_widths, update_count
from ..servers.table import Table
from .replica import Replica
from .route import Route
from .rows import count_pushed


class TableWeight(Route):
    """The common part of three routes whose table updates the weight, with the live optimizer's settings."""

    has_table = weight_in_table = True
    _table: Union[Table, Replica]

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, updater: Any, priority: int) -> None:
        """Let the table update with the gradients of all workers, or replace its rows by their sum without an updater.
        """
        if updater is not None:
            self._prepare(updater.optimizer)
        self._table.push(ids, rows, priority)
        self._count_push(len(ids))

    def _prepare(self, optimizer: Any, devices: Iterable[int] = ()) -> None:
        """Bring the table's optimizer up to date for the next update, and count the update."""
        self.check_optimizer(optimizer)
        count = update_count(optimizer, self.key)
        count_update(optimizer, self.key, devices)
        self._table.set_optimizer(optimizer, *rates_of(optimizer, self.key), count)

    def _count_push(self, rows: int) -> None:
        count_pushed(self, rows)

    def prefetch(self, ids: np.ndarray, priority: int, after_push: bool) -> None:
        self._table.prefetch(ids, priority, after_push)

    def check_optimizer(self, optimizer: Any) -> None:
        """Refuse settings with which the table cannot make the next update."""
        self._table.check_optimizer(optimizer, rates_of(optimizer, self.key)[1])

    def forget_optimizer(self) -> None:
        """Drop optimizer and state (on all workers)."""
        self._table.forget_optimizer()

    @property
    def has_state(self) -> bool:
        """True if the table has an optimizer, and so the state of that optimizer."""
        return self._table.has_optimizer

    def state_maker(self) -> Any:
        """Return an optimizer that makes state of the table's kind: MXNet makes it only once."""
        return self._table.state_maker()

    def state_shapes(self, maker: Any) -> List[Tuple[int, ...]]:
        """Return the shapes of the arrays of state that an optimizer makes for this weight."""
        return state_shapes(maker, self.key, self.shape, self.dtype)

    def state_widths(self) -> List[int]:
        """Return the elements per row of each array of state."""
        return state_widths(self.state_maker(), self.key, self.shape, self.dtype) if self.has_state else []

    def read_weight(self, first: int, last: int) -> np.ndarray:
        """Return rows ``first:last`` of the weight (worker 0 only; not collective)."""
        rows = np.empty((last - first, self.width), self.dtype)
        self._table.pull_uncached(np.arange(first, last, dtype=np.int64), rows)
        return rows

    def read_state(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Return rows ``first:last`` of an array of state, each of `width` elements (worker 0 only; not collective)."""
        return self._table.read_rows(slot, width, first, last)

    def write_weight(self, values: Callable[[np.ndarray], np.ndarray]) -> None:
        """Overwrite all rows by worker 0's: `values` returns rows for ids (collective)."""
        self._table.assign(values)

    def write_state(self, maker: Any, optimizer: Any, slots: Sequence[Callable[[np.ndarray], np.ndarray]]) -> None:
        """Give the table worker 0's state, of as many updates as `optimizer` has made (collective).

        `maker` makes arrays of that kind.  For each array `slots` has a function that returns rows for ids, as wide as
        rows of the weight.
        """
        count = update_count(optimizer, self.key)
        self._table.set_optimizer(maker, optimizer.learning_rate, optimizer.wd, count)
        self._table.expect_count(count)
        for slot, values in enumerate(slots):
            self._table.assign(values, slot)
