"""Rows by key in the order in which they are used, compiled in ``src/worker/keyed_rows.h``.

A batch of ids has few distinct keys: keys are requested and pushed once, and each row names its key by position.
"""
import ctypes
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import library


class Segments(NamedTuple):
    """The segments of positions whose rows are combined to one row each, as in TensorFlow's ``segment_sum``."""

    #: int64: segment i has the positions from ``bounds[i]`` to ``bounds[i + 1]``.
    bounds: np.ndarray
    #: The factor of each position, of the type of the rows; None if all factors are 1.
    factors: Optional[np.ndarray]


class KeyedRows(NamedTuple):
    """Rows of one table: `keys` are int64, sorted and unique.

    Row i is that of key ``positions[i]``, or that of key i if `positions` is None.  With `segments` it is the sum of a
    segment of positions, each with its factor.  The rows are contiguous; their last dimension is the width of the
    table.
    """

    keys: np.ndarray
    positions: Optional[np.ndarray]
    rows: np.ndarray
    segments: Optional[Segments] = None

    def sums(self) -> np.ndarray:
        """Return the sum of the rows of each key, of shape (keys, width), added in their order."""
        width = self.rows.shape[-1]
        if self.positions is None:
            return self.rows.reshape(-1, width)
        loaded, table_rows = library.load(), packed([0], [self])
        sums = np.empty((len(self.keys), width), self.rows.dtype)
        loaded.sum_rows(loaded.dtypes[sums.dtype.name], width, _address(table_rows), _address(sums))
        return sums

    def write(self, rows: np.ndarray) -> None:
        """Overwrite the rows by those of the keys, of shape (keys, width)."""
        width = self.rows.shape[-1]
        target = self.rows.reshape(-1, width)
        if self.positions is None:
            target[:] = rows
            return
        loaded, table_rows, rows = library.load(), packed([0], [self]), np.ascontiguousarray(rows, target.dtype)
        loaded.write_rows(loaded.dtypes[rows.dtype.name], width, _address(rows), _address(table_rows))


def packed(numbers: Sequence[int], rows: Sequence[KeyedRows]) -> np.ndarray:
    """Return an array of ``struct TableRows``; `numbers` are those of the tables.  `rows` must outlive it."""
    return np.array([(number, len(part.keys), _address(part.keys), part.rows.size // part.rows.shape[-1],
                      *_position_fields(part)) for number, part in zip(numbers, rows)], np.uint64)


def _position_fields(part: KeyedRows) -> Tuple[int, ...]:
    """Return the last fields of a ``struct TableRows``."""
    rows = _address(part.rows)
    if part.positions is None:
        return 0, 0, rows, 0, 0
    if part.segments is None:
        return len(part.positions), _address(part.positions), rows, 0, 0
    bounds, factors = part.segments
    return (len(part.positions), _address(part.positions), rows, _address(bounds),
            0 if factors is None else _address(factors))


def distinct_keys(lists: Sequence[np.ndarray]) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Return, for each of several arrays of int64, its sorted distinct values, and their positions, int32, by element.
    """
    loaded = library.load()
    arrays = [np.ascontiguousarray(ids, np.int64).reshape(-1) for ids in lists]
    sizes = [len(ids) for ids in arrays]
    keys, positions = np.empty(sum(sizes), np.int64), np.empty(sum(sizes), np.int32)
    counts = library.counts(sizes)
    addresses = (ctypes.c_void_p * max(1, len(arrays)))(*map(_address, arrays))
    loaded.distinct_keys(len(arrays), addresses, counts, _address(keys), _address(positions))
    results, first_key, first_position = [], 0, 0
    for size, count in zip(sizes, counts):
        results.append((keys[first_key:first_key + count], positions[first_position:first_position + size]))
        first_key, first_position = first_key + count, first_position + size
    return results


def _address(array: Any) -> int:
    return int(array.__array_interface__['data'][0])
