"""What routes ask of the wire: sums of dense arrays over all workers, and rows of a table, wherever it lies.

:class:`mxhybrid.comm.collective.Collective` gives the sums; tables are :class:`mxhybrid.servers.table.Table` on the
servers and :class:`mxhybrid.routes.replicated.Replica` in every worker.  Whatever else is to move bytes has to offer
this.  Besides, routes have tables made (:func:`mxhybrid.servers.lifecycle.create_table`) and cut anew
(:func:`mxhybrid.servers.repartition.repartition`).
"""
from typing import Any, Callable, Iterator, List, Protocol, Sequence

import numpy as np


class Sums(Protocol):
    """Workers among themselves.  Names are unique among what is under way, and the same on all workers."""

    rank: int
    size: int

    def allreduce_(self, array: Any, name: str, priority: int = 0) -> None:
        """Sum a dense array over all workers in place; returns before the sum is there."""

    @property
    def sums_together(self) -> bool:
        """Whether several arrays on CPUs can be summed together; then the next two serve."""

    def allreduce_buffer(self, name: str, count: int, dtype: Any) -> Any:
        """Where `count` values are summed that are handed over together, see :mod:`mxhybrid.lane.gradient_bucket`."""

    def allreduce_bucket(self, bucket: Any, given: Any, name: str, priority: int) -> None:
        """Make the sum of a bucket whose values will be in `given`; returns before it is there."""

    def broadcast_(self, array: Any, name: str, priority: int = 0) -> None:
        """Overwrite a dense array with worker 0's in place; returns before it is there."""

    def allgather(self, values: np.ndarray, name: str, dtype: Any = np.int32) -> List[np.ndarray]:
        """Give every worker the integers of all workers, in rank order (blocks)."""

    def any(self, flag: bool, name: str) -> bool:
        """Whether `flag` is true on any worker (blocks)."""

    def allgather_json(self, value: Any, name: str) -> List[Any]:
        """Give every worker the JSON `value` of all workers, in rank order (blocks)."""


class Rows(Protocol):
    """A table of rows, with the optimizer that updates them.

    Row ids are int64, sorted and unique; rows are arrays of shape (ids, width).  A push is made by all workers; a pull
    is this worker's own affair, and sees all pushes that it made before.
    """

    dtype: np.dtype

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Sum rows over all workers and update with them, or replace by them; returns before that is done."""

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write rows into `result` (blocks)."""

    def pull_exactly(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """As :meth:`pull`, but never rounded."""

    def pull_uncached(self, ids: np.ndarray, result: np.ndarray) -> None:
        """As :meth:`pull_exactly`, for large parts of the table, which nobody keeps (worker 0 only)."""

    def prefetch(self, ids: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Ask for rows before they are pulled."""

    def assign(self, values: Callable[[np.ndarray], np.ndarray], slot: int = -1) -> None:
        """Overwrite the rows, or those of optimizer state `slot`, by worker 0's `values` of ids (collective)."""

    def read_rows(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Rows ``first:last`` of optimizer state `slot`, `width` elements each (worker 0 only)."""

    def can_read(self, width: int) -> bool:
        """Whether rows of optimizer state of `width` elements can be read."""

    @property
    def has_optimizer(self) -> bool:
        """Whether there is optimizer state."""

    def state_maker(self) -> Any:
        """An optimizer that makes such state as the table has."""

    def check_optimizer(self, optimizer: Any, wd: float) -> None:
        """Refuse settings with which the next update cannot be made."""

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int) -> None:
        """Bring the optimizer up to date; `count` updates were made before the one to come."""

    def expect_count(self, count: int) -> None:
        """Correct the number of updates made."""

    def forget_optimizer(self) -> None:
        """Drop optimizer and state."""


class ServerRows(Rows, Protocol):
    """A table on the servers, where rows have a way to go, and where a push may also mean a sum of gradients."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on its way."""

    def pull_later(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> Callable[[], None]:
        """As :meth:`pull`, but it only asks; what it returns waits, in another thread."""

    def deliver(self, ids: np.ndarray, array: Any, rows: np.ndarray, priority: int = 0) -> None:
        """As :meth:`pull`, but it only asks, and the engine writes to `rows`, the memory of `array`."""

    def deliver_copies(self, ids: np.ndarray, outs: List[Any], priority: int = 0) -> bool:
        """As :meth:`deliver`, of few rows, and the engine copies them to row_sparse `outs`; False where it will not."""

    def chunks(self) -> Iterator[np.ndarray]:
        """Ids of all rows, in portions that are not too large to pull at once."""

    def take_state(self, widths: Sequence[int]) -> List[np.ndarray]:
        """All optimizer state, so many elements a row in each array, for every worker; the rows are lost (collective).
        """

    def hold_sums(self) -> None:
        """Drop optimizer and state: a push replaces its rows by their sum."""
