"""How rows of a table travel to the servers and back: as they are, or as float16 through keys of their own.

Weights whose rows travel as float16 have three native keys for each partition, for three reasons.  A server merges
pushes by adding them up, so gradients need a key of type float16; for keys of other types than float32 it copies
the whole stored array after every push, unless a flag that it never initialises happens to be false
(``multi_precision_`` in ``kvstore_dist_server.h``), so that key stores one row only and :mod:`mxhybrid.servers.handler`
applies what was pushed elsewhere.  Rows that workers pull are float16 too, but in pairs that pass for float32.  The
third key holds the weights themselves, float32, for all that must be exact; sums of gradients do without it.  The
flag is set where `wire_dtype` is, so servers add in float32.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..comm.float16 import OverflowAlarm
from ..native.engine import write_after


def packed_width(width: int) -> int:
    """float32 elements that hold `width` float16 ones."""
    return (width + 1) // 2


def unpack(pairs: np.ndarray, width: int) -> np.ndarray:
    """View rows of pairs, float32 and contiguous, as rows of `width` float16 elements."""
    return pairs.view(np.float16)[:, :width]


def half_pairs(values: Callable[[np.ndarray], np.ndarray], width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Rows as pairs of float16, from a function that gives float32 rows."""
    def pairs(ids: np.ndarray) -> np.ndarray:
        result = np.zeros((len(ids), packed_width(width)), np.float32)
        unpack(result, width)[:] = values(ids)
        return result
    return pairs


class WireFormat:
    """How rows, of `width` elements, of the table `name` travel: pushed as elements of type `pushed_as`.

    With `push_keys`, float16 rows are pushed to these, and `keys` hold pairs of float16; otherwise rows travel as they
    are, in both directions through `keys`.  Tables whose keys show each other's changes share an `ordering`.
    """

    def __init__(self, name: str, dtype: np.dtype, width: int, keys: Tuple[int, ...],
                 push_keys: Optional[Tuple[int, ...]] = None, ordering: Optional['PullOrdering'] = None):
        self._halves = push_keys is not None
        self._width = width
        self._alarm = OverflowAlarm(name)
        self.keys = keys
        self.push_keys = keys if push_keys is None else push_keys
        self.pushed_as = np.dtype(np.float16) if self._halves else dtype
        self.pulled_width = packed_width(width) if self._halves else width
        self.ordering = ordering

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on its way."""
        return self._width * self.pushed_as.itemsize

    def narrow(self, rows: np.ndarray, target: np.ndarray) -> None:
        """Cast rows to what is pushed; 1 to 2 ns per element (NumPy and MXNet take the same time)."""
        if rows is not target:
            target[:] = rows
            self._alarm.look(target, 'gradients pushed', rows)

    def warn(self, what: str) -> None:
        """Warn, once, of what the lane has found not to fit into float16."""
        self._alarm.sound(what)

    def widen(self, rows: np.ndarray) -> np.ndarray:
        """Rows as elements, from rows as pulled."""
        if not self._halves:
            return rows
        halves = unpack(rows, 2 * self.pulled_width)
        self._alarm.look(halves, 'rows pulled')
        return halves[:, :self._width]


class PullOrdering:
    """Has pulls wait for pushes to other keys; the native store orders those of one key only.  Behind every push a row
    is pulled from each of its keys, and later pulls begin when these rows are here.
    """

    def __init__(self) -> None:
        self._rows: Dict[Tuple[int, ...], List[Any]] = {}

    def pushed(self, native: Any, keys: Tuple[int, ...], arrays: List[Any]) -> None:
        """Take notice of a push of row_sparse `arrays` to `keys`."""
        rows = [mx.nd.sparse.zeros('row_sparse', array.shape, dtype=array.dtype, ctx=mx.cpu()) for array in arrays]
        first = [mx.nd.zeros(1, dtype=np.int64, ctx=mx.cpu()) for _ in arrays]
        native.row_sparse_pull(list(keys), out=rows, row_ids=first)
        self._rows[keys] = rows

    def hold(self, wanted: List[Any]) -> None:
        """Have pulls with the row ids `wanted` wait for all pushes so far."""
        rows = [row for group in self._rows.values() for row in group]
        if rows:
            write_after(rows, wanted)
