"""The interface of a table, as routes use it: :class:`mxhybrid.servers.table.Table` has its rows on the servers, and
:class:`mxhybrid.routes.replica.Replica` in every worker.

Any other transport of rows has to implement it.  Besides, routes make dense sums
(:class:`mxhybrid.comm.collective.Collective`), create tables on servers
(:func:`mxhybrid.servers.lifecycle.create_table`) and change their partitions
(:func:`mxhybrid.servers.repartition.repartition`).
"""
from typing import Any, Callable, Protocol

import numpy as np


class Rows(Protocol):
    """A table of rows, with the optimizer that updates them.

    Row ids are int64, sorted and unique; rows are arrays of shape (ids, width).  All workers make a push together.  A
    worker pulls alone, after all of its own earlier pushes.
    """

    dtype: np.dtype
    #: Elements of a row.
    width: int

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Sum rows over all workers, and update with the sums or replace rows by them; returns before that is done."""

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write rows into `result` (blocks)."""

    def pull_uncached(self, ids: np.ndarray, result: np.ndarray) -> None:
        """Write many rows, never rounded and without caching them, into `result` (worker 0 only; blocks)."""

    def prefetch(self, ids: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Request rows before they are pulled."""

    def assign(self, values: Callable[[np.ndarray], np.ndarray], slot: int = -1) -> None:
        """Overwrite the rows, or optimizer state `slot`, by worker 0's `values`, rows for ids (collective)."""

    def read_rows(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Return rows ``first:last`` of optimizer state `slot`, `width` elements each (worker 0 only)."""

    @property
    def has_optimizer(self) -> bool:
        """True if there is optimizer state."""

    def state_maker(self) -> Any:
        """Return an optimizer that makes state of the table's kind."""

    def check_optimizer(self, optimizer: Any, wd: float) -> None:
        """Refuse settings with which the next update is impossible."""

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int) -> None:
        """Bring the optimizer up to date; `count` updates were made before the one to come."""

    def expect_count(self, count: int) -> None:
        """Correct the number of updates made."""

    def forget_optimizer(self) -> None:
        """Drop optimizer and state."""
