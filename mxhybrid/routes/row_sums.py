"""Sums of rows by allreduce: each worker writes its rows to a dense buffer, and the buffers are summed.

MXNet's lazy optimizers change only rows that have a gradient, even if it is zero.  So the buffer has a further element
for each row, which marks the row as touched.
"""
from typing import Any, Tuple

import mxnet as mx
import numpy as np

from ..comm.collective import Collective
from ..comm.float16 import OverflowAlarm
from ..native.arrays import host_view
from .costs import ring_share

#: Largest number of elements of an array in the wheel of MXNet 1.9.1.
MAX_ELEMENTS = 2 ** 31 - 1


def buffer_elements(rows: int, width: int) -> int:
    """Return the number of elements that :class:`RowSum` sums."""
    return rows * (width + 1)


class RowSum:
    """Sums the rows that workers push; they travel as `dtype`, to which they may be `rounded`."""

    def __init__(self, rows: int, width: int, dtype: Any, name: str, collective: Collective, rounded: bool = False):
        self.name = name
        self._alarm = OverflowAlarm(name) if rounded else None
        self._shape = (rows, width)
        self._collective = collective
        self._buffer = mx.nd.zeros(buffer_elements(rows, width), dtype=dtype, ctx=mx.cpu())
        self._touched = np.empty(0, np.int64)
        self._summing = False
        moved_bytes = ring_share(buffer_elements(rows, width) * np.dtype(dtype).itemsize, collective.size)
        #: The bytes that a sum moves, and saves by rounding, as arguments of :meth:`Traffic.add`: float32 would move
        #: twice as many.
        self.moved = {'pushed': moved_bytes, 'pulled': moved_bytes, 'saved': 2 * moved_bytes if rounded else 0}

    def _views(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return the rows and the marks of the buffer; waits for a sum that is under way."""
        elements = host_view(self._buffer)
        count = self._shape[0] * self._shape[1]
        return elements[:count].reshape(self._shape), elements[count:]

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Start to sum rows over all workers (collective); returns before the sum is complete."""
        self._wait()
        values, marks = self._views()
        values[self._touched], marks[self._touched] = 0, 0
        values[ids], marks[ids] = rows, 1
        self._collective.allreduce_(self._buffer, self.name, priority)
        self._summing = True

    def touched(self) -> np.ndarray:
        """Return the sorted ids of the rows that any worker touched in the last push (blocks)."""
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
