"""Keys and settings of row stores, and the rows with which keys begin."""
import numpy as np

from mxhybrid.row_store.row_store import FirstValues, RowStore, as_keys

#: Keys of all kinds: negative, and on both sides of 2^31, 2^53 and 2^63.
SPECIAL = np.array(sorted({sign * ((1 << bits) + offset) for bits in (0, 7, 31, 32, 53, 62) for offset in (-1, 0, 1)
                           for sign in (-1, 1)} | {(1 << 63) - 1, -1 << 63, 1 - (1 << 63)}), np.int64)
FIRST = FirstValues('normal', 0.1, 12345)
SGD = {'lr': 0.5, 'rescale': 1.0}


def unique(keys):
    return np.unique(as_keys(keys))


def first_rows(first, keys, width, dtype='float32'):
    """Return the rows with which keys begin, of shape (number of keys, width)."""
    return RowStore(width, dtype, first).read(keys)
