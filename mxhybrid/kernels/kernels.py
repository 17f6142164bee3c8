"""Compiled helpers that need no job, with NumPy in place of a missing library."""
import functools
from typing import Optional

import numpy as np

from . import library

#: With fewer rows of the table than this for each id, a bitmap of the table costs less than sorting the ids.
_ROWS_PER_ID = 4096


@functools.lru_cache(maxsize=None)
def compiled() -> Optional[library.Library]:
    """Return the library, None if it is missing."""
    try:
        return library.load()
    except OSError:
        return None


def sorted_unique(ids: np.ndarray, rows: int) -> Optional[np.ndarray]:
    """Return the sorted distinct values of row ids, int64; None if one of them is not in 0 to `rows` - 1."""
    kernels = compiled() if len(ids) * _ROWS_PER_ID > rows else None
    if kernels is None:
        distinct_ids = np.unique(ids)
        return None if len(distinct_ids) and (distinct_ids[0] < 0 or distinct_ids[-1] >= rows) else distinct_ids
    ids = np.ascontiguousarray(ids)
    marks, distinct_ids = np.zeros(rows // 64 + 1, np.uint64), np.empty(len(ids), np.int64)
    count = kernels.sorted_unique(ids.ctypes.data, len(ids), rows, marks.ctypes.data, distinct_ids.ctypes.data)
    return None if count < 0 else distinct_ids[:count]
