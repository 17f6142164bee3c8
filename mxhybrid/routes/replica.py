"""A table of which every worker holds all rows: allreduce sums the gradients, and every worker makes the same update.

The optimizers and the code of the update are those of the servers.
"""
from typing import Any, Callable, Dict, Optional

import mxnet as mx
import numpy as np

from ..comm.collective import Collective
from ..native.arrays import allocate_rows, host_view
from ..native.optimizers import TableOptimizer
from ..servers.optimized_table import OptimizedTable
from ..servers.partition_state import Partition, updated_optimizer
from ..servers.partitioning import chunks
from ..servers.protocol import OPTIMIZE
from .row_sums import RowSum

#: Bytes of rows that travel in one broadcast while a table is filled.
BROADCAST_CHUNK_BYTES = 32 << 20


class Replica(OptimizedTable):
    """A table of which every worker holds all rows and all optimizer state, with the calls of a table on the servers.

    Gradients travel as `wire_dtype`, by default as `dtype`.  An update is made when its result is first needed, so that
    the sums of several tables overlap.
    """

    def __init__(self, name: str, rows: int, width: int, dtype: Any, collective: Collective, wire_dtype: Any = None):
        super().__init__(name, width, dtype)
        self._collective = collective
        wire_dtype = self.dtype if wire_dtype is None else np.dtype(wire_dtype)
        self.sum = RowSum(rows, width, wire_dtype, name + '.rows', collective, wire_dtype != self.dtype)
        self._part = Partition(0, name, rows, width, OPTIMIZE)
        stored, values = allocate_rows(np.arange(rows, dtype=np.int64), (rows, width), self.dtype)
        self._part.hold(stored)
        values[:] = 0
        self._rows: Optional[np.ndarray] = values
        self._optimizer: Optional[TableOptimizer] = None
        self._pending = False

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Sum rows over all workers and update with them (collective); returns before that is done."""
        self._settle()
        self.sum.push(ids, rows, priority)
        self._pending = True

    def _settle(self) -> None:
        """Make the update of the last push, if it has not been made."""
        if not self._pending:
            return
        self._pending = False
        ids = self.sum.touched()
        gradient, rows = allocate_rows(ids, self._part.shape, self.dtype)
        self.sum.take(rows)
        if self._optimizer is not None:
            self._part.update(self._optimizer, gradient)
            self._rows = None
            return
        self._view[:] = 0
        self._view[ids] = rows

    @property
    def _view(self) -> np.ndarray:
        """All rows, writable.  Reading them costs a copy of all ids, so it is done once per update."""
        if self._rows is None:
            self._rows = self._part.view
        return self._rows

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write the rows `ids` into `result`, after all earlier pushes (not collective)."""
        self._settle()
        np.take(self._view, ids, axis=0, out=result, mode='clip')

    pull_uncached = pull

    def prefetch(self, ids: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Do nothing: all rows are here."""

    def _tell_optimizer(self, reference: str, attributes: Dict[str, Any], count: Optional[int]) -> None:
        self._settle()
        assert self._made_with is not None
        self._optimizer = updated_optimizer(self._optimizer, [self._part], reference, attributes, count,
                                            self._made_with[1])

    def _drop_optimizer(self) -> None:
        self._settle()
        self._optimizer = None
        self._part.forget_state()

    def assign(self, values: Callable[[np.ndarray], np.ndarray], slot: int = -1) -> None:
        """Overwrite the weights, or optimizer state `slot`, by worker 0's `values`, rows for ids (collective)."""
        self._settle()
        rows, width = self._part.shape
        if slot >= 0:
            assert self._optimizer is not None
            self._part.ensure_state(self._optimizer)
        for ids in chunks(rows, width * self.dtype.itemsize, BROADCAST_CHUNK_BYTES):
            chunk = mx.nd.zeros((len(ids), width), dtype=self.dtype, ctx=mx.cpu())
            if self._collective.rank == 0:
                rows_of_ids = values(ids)
                host_view(chunk)[:, :rows_of_ids.shape[1]] = rows_of_ids
            self._collective.broadcast_(chunk, self.name + '.assign')
            if slot < 0:
                self._view[ids] = host_view(chunk)
            else:
                self._part.write_state(slot, ids, host_view(chunk))

    def read_rows(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Return rows ``first:last`` of optimizer state `slot`, each of `width` elements (not collective)."""
        self._settle()
        assert self._optimizer is not None
        rows: Optional[np.ndarray] = self._part.read(slot, first, last, self._optimizer)
        return np.array(rows).reshape(last - first, width)
