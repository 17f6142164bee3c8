"""Contents of row stores that only tests read: first values, and the optimizer state of keys."""
import ctypes

import numpy as np

from mxhybrid.row_store import library
from mxhybrid.row_store.row_store import RowStore


def first_rows(first, keys, width, dtype='float32'):
    """Return the rows with which keys begin, of shape (number of keys, width)."""
    return RowStore(width, dtype, first).read(keys)


def state_of(store, slot, keys):
    """Return optimizer state number `slot` of keys; zeros for keys without a row."""
    lib, keys = library.load(), np.asarray(keys, np.int64)
    scan = lib.row_scan_new(store._store, -1, len(store))
    count = lib.row_scan_next(scan)
    stored_keys, states = np.empty(count, np.int64), np.empty((count, store._state_widths[slot]), store.dtype)
    columns = (ctypes.c_void_p * 6)(stored_keys.ctypes.data)  # then rows, two arrays of state, and two of ages
    columns[2 + slot] = states.ctypes.data
    lib.row_scan_read(scan, columns)
    lib.row_scan_close(scan)
    result = np.zeros((len(keys), states.shape[1]), store.dtype)
    has_row = np.isin(keys, stored_keys)
    result[has_row] = states[np.searchsorted(stored_keys, keys[has_row])]
    return result
