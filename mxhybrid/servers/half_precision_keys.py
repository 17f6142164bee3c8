"""The wire format of a table's rows by ps-lite: as they are, or as float16 over keys of their own.

A partition of weights whose rows travel as float16 has three native keys:

* Gradients are pushed to a key of type float16, because a server merges pushes by adding them up.  For keys of other
  types than float32 a server copies the whole stored array after every push, unless a flag that it never initialises
  happens to be false (``multi_precision_`` in ``kvstore_dist_server.h``).  So this key stores one row only, and
  :mod:`mxhybrid.servers.handler` applies the gradients to the rows of another key.
* Rows are pulled from a key of type float32, each element of which holds a pair of float16.
* The third key holds the weights themselves, float32, for all that must be exact; sums of gradients need no such key.

With the setting `wire_dtype` that flag is set, so servers add in float32.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..comm.float16 import OverflowAlarm
from ..native.engine import write_after


def packed_width(width: int) -> int:
    """Return the number of float32 elements that hold `width` float16 elements."""
    return (width + 1) // 2


def unpack(pairs: np.ndarray, width: int) -> np.ndarray:
    """View rows of pairs, float32 and contiguous, as rows of `width` float16 elements."""
    return pairs.view(np.float16)[:, :width]


def half_pairs(values: Callable[[np.ndarray], np.ndarray], width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that gives rows as pairs of float16, from a function that gives float32 rows."""
    def pairs(ids: np.ndarray) -> np.ndarray:
        result = np.zeros((len(ids), packed_width(width)), np.float32)
        unpack(result, width)[:] = values(ids)
        return result
    return pairs


class WireFormat:
    """The wire format of the table `name`, whose rows have `width` elements.

    With `push_keys`, float16 rows are pushed to these, and `keys` hold pairs of float16.  Otherwise rows travel
    unchanged, in both directions over `keys`.  Rows are pushed with the dtype `pushed_as`.  Tables whose keys show each
    other's changes share an `ordering`.
    """

    def __init__(self, name: str, dtype: np.dtype, width: int, keys: Tuple[int, ...],
                 push_keys: Optional[Tuple[int, ...]] = None, ordering: Optional['PullOrdering'] = None):
        self._is_half = push_keys is not None
        self._width = width
        self._alarm = OverflowAlarm(name)
        self.keys = keys
        self.push_keys = keys if push_keys is None else push_keys
        self.pushed_as = np.dtype(np.float16) if self._is_half else dtype
        #: Bytes of a row on the wire.
        self.row_bytes = width * self.pushed_as.itemsize
        self.pulled_width = packed_width(width) if self._is_half else width
        self.ordering = ordering

    def narrow(self, rows: np.ndarray, target: np.ndarray) -> None:
        """Cast rows to the pushed dtype, into `target`; 1 to 2 ns per element (NumPy and MXNet take the same time)."""
        if rows is not target:
            target[:] = rows
            self._alarm.look(target, 'gradients pushed', rows)

    def widen(self, rows: np.ndarray) -> np.ndarray:
        """Return pulled rows as rows of elements."""
        if not self._is_half:
            return rows
        halves = unpack(rows, 2 * self.pulled_width)
        self._alarm.look(halves, 'rows pulled')
        return halves[:, :self._width]


class PullOrdering:
    """The order of pulls after pushes to other keys; the native store orders the operations of one key only.

    After every push a row is pulled from each of its keys, and later pulls begin once these rows have arrived.
    """

    def __init__(self) -> None:
        self._rows: Dict[Tuple[int, ...], List[Any]] = {}

    def pushed(self, native: Any, keys: Tuple[int, ...], arrays: List[Any]) -> None:
        """Register a push of row_sparse `arrays` to `keys`."""
        rows = [mx.nd.sparse.zeros('row_sparse', array.shape, dtype=array.dtype, ctx=mx.cpu()) for array in arrays]
        first_row = [mx.nd.zeros(1, dtype=np.int64, ctx=mx.cpu()) for _ in arrays]
        native.row_sparse_pull(list(keys), out=rows, row_ids=first_row)
        self._rows[keys] = rows

    def hold(self, row_ids: List[Any]) -> None:
        """Make pulls with these arrays of row ids wait for all pushes so far."""
        rows = [row for group in self._rows.values() for row in group]
        if rows:
            write_after(rows, row_ids)
