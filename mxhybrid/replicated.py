"""Tables that every worker holds: row_sparse gradients summed by allreduce, the update made in each worker alike.

For a table of which a step touches most rows, this moves fewer bytes than servers do (Parallax, section 3.1).

:class:`RowSum` spreads this worker's rows over a dense buffer and sums the buffers.  MXNet's lazy optimizers change
only rows that have a gradient, be it zero, so which rows anyone touched travels too, as one more element a row.

:class:`Replica` stands in for :class:`mxhybrid.ps.Table`: same methods, same optimizers, same code of the update as
in the servers.
"""
from typing import Any, Callable, Optional, Tuple

import mxnet as mx
import numpy as np

from .arrays import allocate_rows, host_view
from .collective import Collective
from .handler import Partition
from .optimizers import build, name_of, scalars
from .partition import chunks
from .wire import OverflowAlarm

#: Bytes of rows that travel in one broadcast while a table is filled.
BROADCAST_CHUNK_BYTES = 32 << 20

#: Elements that MXNet 1.9.1's wheel gives a shape to.
MAX_ELEMENTS = 2 ** 31 - 1


def buffer_elements(rows: int, width: int) -> int:
    """Elements that :class:`RowSum` reduces."""
    return rows * (width + 1)


class RowSum:
    """Sums the rows that workers push, by allreduce.

    Parameters
    ----------
    rows, width : int
        Shape of the table.
    dtype : numpy dtype
        What the rows travel as.
    name : str
        Unique name of the sum.
    collective : Collective
    rounded : bool
        Whether that is less than the rows are, see :mod:`mxhybrid.wire`.
    """

    def __init__(self, rows: int, width: int, dtype: Any, name: str, collective: Collective, rounded: bool = False):
        self.name = name
        self._alarm = OverflowAlarm(name) if rounded else None
        self._shape = (rows, width)
        self._collective = collective
        self._buffer = mx.nd.zeros(buffer_elements(rows, width), dtype=dtype)
        self._touched = np.empty(0, np.int64)
        self._summing = False

    def _views(self) -> Tuple[np.ndarray, np.ndarray]:
        """The buffer's rows and marks; waits for a sum that is under way."""
        everything = host_view(self._buffer)
        count = self._shape[0] * self._shape[1]
        return everything[:count].reshape(self._shape), everything[count:]

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Start to sum rows over all workers (collective); returns before the sum is there.

        Parameters are as for :meth:`mxhybrid.ps.Table.push`.
        """
        self._wait()
        values, marks = self._views()
        values[self._touched], marks[self._touched] = 0, 0
        values[ids], marks[ids] = rows, 1
        self._collective.allreduce_(self._buffer, self.name, priority)
        self._summing = True

    def touched(self) -> np.ndarray:
        """Ids (sorted) of the rows that anyone touched in the last push, the same on all workers (blocks)."""
        self._wait()
        return self._touched

    def take(self, out: np.ndarray) -> None:
        """Write the sums of the touched rows to `out`, of shape (touched, width) (blocks)."""
        self._wait()
        values = self._views()[0]
        if self._alarm is None:
            np.take(values, self._touched, axis=0, out=out, mode='clip')  # 'raise' copies once more
        else:
            halves = values[self._touched]
            self._alarm.look(halves, 'summed gradients')
            out[:] = halves

    def _wait(self) -> None:
        if self._summing:
            self._touched, self._summing = np.flatnonzero(self._views()[1]), False


class Replica:
    """A table of which every worker holds all rows and all optimizer state.

    An update is made when its result is first needed, so that sums of several tables overlap.

    Parameters
    ----------
    name : str
        Unique name.
    rows, width : int
    dtype : numpy dtype
    collective : Collective
    wire : numpy dtype, optional
        What gradients travel as; `dtype` by default.
    """

    #: No partitions, no servers.
    partitioning = None

    def __init__(self, name: str, rows: int, width: int, dtype: Any, collective: Collective, wire: Any = None):
        self.name = name
        self.dtype = np.dtype(dtype)
        self._collective = collective
        wire = self.dtype if wire is None else np.dtype(wire)
        self._sum = RowSum(rows, width, wire, name + '.rows', collective, wire != self.dtype)
        self._part = Partition(0, name, rows, width, 'optimize')
        self._part.stored, values = allocate_rows(np.arange(rows, dtype=np.int64), (rows, width), self.dtype)
        values[:] = 0
        self._rows: Optional[np.ndarray] = values
        self._optimizer: Any = None
        self._pending = False

    @property
    def has_optimizer(self) -> bool:
        """Whether there is optimizer state."""
        return self._optimizer is not None

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Sum rows over all workers and update with them (collective); returns before that is done."""
        self._settle()
        self._sum.push(ids, rows, priority)
        self._pending = True

    def _settle(self) -> None:
        """Make the update of the last push, if it has not been made."""
        if not self._pending:
            return
        self._pending = False
        ids = self._sum.touched()
        gradient, rows = allocate_rows(ids, self._part.shape, self.dtype)
        self._sum.take(rows)
        if self._optimizer is not None:
            self._part.update(self._optimizer, gradient)
            self._rows = None
            return
        self._view[:] = 0
        self._view[ids] = rows

    @property
    def _view(self) -> np.ndarray:
        """All rows, writable; finding them costs a copy of all ids, so it is done once per update."""
        if self._rows is None:
            self._rows = self._part.view
        return self._rows

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write the rows `ids` into `result`, after all earlier pushes (not collective)."""
        self._settle()
        np.take(self._view, ids, axis=0, out=result, mode='clip')

    pull_exactly = pull
    pull_aside = pull

    def prefetch(self, ids: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """All rows are here."""

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int) -> None:
        """Bring the table's optimizer up to date; parameters as for :meth:`mxhybrid.ps.Table.set_optimizer`."""
        self._settle()
        attributes = dict(scalars(optimizer), lr=float(lr), wd=float(wd))
        if self._optimizer is None or name_of(self._optimizer) != name_of(optimizer):
            self._optimizer = build(name_of(optimizer), attributes)
            self._part.forget_state()
        else:
            self._optimizer.__dict__.update(attributes)
        self.expect_count(count)

    def expect_count(self, count: int) -> None:
        """Correct the number of updates made."""
        self._optimizer._index_update_count[self._part.key] = count

    def forget_optimizer(self) -> None:
        """Drop optimizer and state."""
        self._settle()
        self._optimizer = None
        self._part.forget_state()

    def assign(self, values: Callable[[np.ndarray], np.ndarray], slot: int = -1) -> None:
        """Overwrite the weights, or optimizer state `slot`, with rank 0's values (collective).

        Parameters
        ----------
        values : callable
            Gives rows for ids; called on rank 0 only.
        """
        self._settle()
        rows, width = self._part.shape
        if slot >= 0:
            self._part.ensure_state(self._optimizer)
        for ids in chunks(rows, width * self.dtype.itemsize, BROADCAST_CHUNK_BYTES):
            chunk = mx.nd.zeros((len(ids), width), dtype=self.dtype)
            if self._collective.rank == 0:
                given = values(ids)
                host_view(chunk)[:, :given.shape[1]] = given
            self._collective.broadcast_(chunk, self.name + '.assign')
            if slot < 0:
                self._view[ids] = host_view(chunk)
            else:
                self._part.write_state(slot, ids, host_view(chunk))

    def read(self, slot: int, width: int) -> np.ndarray:
        """All rows of optimizer state `slot`, each of `width` elements (not collective)."""
        return self.read_rows(slot, width, 0, self._part.shape[0])

    def read_rows(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Rows ``first:last`` of optimizer state `slot`, each of `width` elements (not collective)."""
        self._settle()
        rows: Optional[np.ndarray] = self._part.read(slot, first, last, self._optimizer)
        return np.array(rows).reshape(last - first, width)
