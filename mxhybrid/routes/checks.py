"""Checks of the arrays that a call of the store has: clear errors before anything is sent."""
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..kernels.library import sorted_unique
from ..lane.row_arrays import read_few_ids
from ..native.arrays import SERVER_DTYPES, host_view, row_sparse_parts


def shapes(call: str, name: str, arrays: List[Any], shape: tuple) -> None:
    """Refuse arrays whose shape is not that of the key."""
    for array in arrays:
        if tuple(array.shape) != tuple(shape):
            raise InputError('%s: %s has shape %s, but the array has shape %s: give an array of the shape of %s'
                             % (call, name, tuple(shape), tuple(array.shape), name))


def dtypes(call: str, name: str, arrays: List[Any], dtype: Any) -> None:
    """Refuse arrays whose dtype is not that of the key."""
    for array in arrays:
        if np.dtype(array.dtype) != np.dtype(dtype):
            raise InputError('%s: %s has dtype %s, but the value given has dtype %s: cast it with .astype(%r)'
                             % (call, name, np.dtype(dtype), np.dtype(array.dtype), str(np.dtype(dtype))))


def stypes(call: str, name: str, arrays: List[Any], allowed: Tuple[str, ...], advice: str) -> None:
    """Refuse arrays of another storage type than those allowed."""
    for array in arrays:
        if array.stype not in allowed:
            raise InputError('%s: %s takes values of storage type %s, not %s: %s'
                             % (call, name, ' or '.join(allowed), array.stype, advice))


def server_dtype(call: str, name: str, dtype: Any) -> None:
    """Refuse a dtype that parameter servers cannot hold."""
    if np.dtype(dtype) not in [np.dtype(known) for known in SERVER_DTYPES]:
        raise InputError('%s: %s has dtype %s, but parameter servers hold float16, float32 or float64: cast it'
                         % (call, name, np.dtype(dtype)))


def partitions(call: str, name: str, count: Any) -> int:
    """Return a count of partitions; refuse any other value."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise InputError('%s: %s cannot be cut into partitions=%r: give a whole number of at least 1'
                         % (call, name, count))
    return int(count)


def row_ids(call: str, name: str, ids: np.ndarray, rows: int) -> None:
    """Refuse row ids outside the table."""
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        bad = ids[(ids < 0) | (ids >= rows)]
        raise InputError('%s: row id %d is out of range for %s: give row ids from 0 to %d'
                         % (call, int(bad[0]), name, rows - 1))


def initial_rows(call: str, name: str, value: Any) -> None:
    """Refuse a row_sparse initial value with a row outside the table, or with two values for one row."""
    ids = np.sort(row_sparse_parts(value)[0])
    row_ids(call, name, ids, value.shape[0])
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if len(repeated):
        raise InputError('%s: the value of %s has row id %d more than once: give each row one value'
                         % (call, name, int(repeated[0])))


def whole_ids(call: str, name: str, values: np.ndarray) -> np.ndarray:
    """Return row ids of any type as int64; refuse fractions, which would be cut off."""
    ids = values.astype(np.int64, copy=False)
    if values.dtype.kind == 'f' and not np.array_equal(ids, values):
        bad = values[ids != values]
        raise InputError('%s: row id %s of %s is not a whole number: round ids, or cast them to int64'
                         % (call, bad[0], name))
    return ids


def wanted_rows(call: str, name: str, ids: Any, rows: int) -> np.ndarray:
    """Return an array of row ids, as row_sparse_pull gets them, as sorted, unique, checked int64 ids."""
    few_ids = read_few_ids(ids, rows) if isinstance(ids, mx.nd.NDArray) else None
    if few_ids is not None:
        return few_ids
    if not isinstance(ids, mx.nd.NDArray) or ids.stype != 'default':
        raise InputError('%s: row_ids of %s are of type %s: give dense NDArrays' % (call, name, type(ids).__name__))
    int_ids = whole_ids(call, name, host_view(ids).reshape(-1))
    unique_ids = sorted_unique(int_ids, rows)
    if unique_ids is None:
        row_ids(call, name, int_ids, rows)
    assert unique_ids is not None
    return unique_ids


def gradient(route: Any, arrays: List[Any]) -> None:
    """Refuse values that cannot be pushed to a key."""
    if route.sparse:
        stypes('push', route.name, arrays, ('row_sparse',),
               "its weight is row_sparse; convert the gradient with tostype('row_sparse')")
        return
    stypes('push', route.name, arrays, ('default', 'row_sparse'), 'convert it with tostype')
    if len({array.stype for array in arrays}) > 1:
        raise InputError('push: %s gets dense and row_sparse values from different devices: use one storage type'
                         % route.name)
    if arrays[0].stype == 'row_sparse':
        server_dtype('push', route.name, arrays[0].dtype)
