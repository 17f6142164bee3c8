"""Ids of rows, as Blocks get them: arrays of integers of any shape, or of floats that hold exact integers."""
from typing import Any, Optional

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..native.arrays import host_view

#: Below these numbers, every integer is a float of the type; 2^53 for wider types.
_EXACT_BELOW = {'float16': 1 << 11, 'float32': 1 << 24}


def as_array(values: Any, table: str, argument: str = 'ids') -> np.ndarray:
    """Return values of MXNet, NumPy or a list as an array of NumPy, on the host."""
    if isinstance(values, mx.nd.NDArray):
        if values.stype != 'default':
            raise InputError('%s: %s is a %s array: convert it with tostype(\'default\')'
                             % (table, argument, values.stype))
        return host_view(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError('%s: %s cannot be read as an array: %s' % (table, argument, error)) from None
    if isinstance(values, (list, tuple)) and array.dtype == np.float64 and not array.size:
        return array.astype(np.int64)
    return array


def checked_ids(values: Any, table: str, rows: Optional[int], padding: Optional[int] = None) -> np.ndarray:
    """Return ids as int64, of the same shape; InputError if one of them is not the id of a row.

    `rows` is the number of rows, None if any int64 is a key.  The id `padding` is allowed in any case.
    """
    ids = integer_ids(values, table, rows)
    if ids.size:
        check_range(ids, int(ids.min()), int(ids.max()), table, rows, padding)
    return ids


def integer_ids(values: Any, table: str, rows: Optional[int]) -> np.ndarray:
    """Return ids as int64, of the same shape; InputError if one of them is no int64; see :func:`checked_ids`."""
    array = as_array(values, table)
    kind = array.dtype.kind
    if kind == 'f':
        _check_floats(array, table)
    elif kind == 'u' and array.dtype.itemsize == 8 and array.size and int(array.max()) >= 1 << 63:
        check_range(array, 0, int(array.max()), table, rows)
        raise InputError('%s: id %d is not below 2^63: give ids of type int64, for example by ids.view("int64")'
                         % (table, int(array.max())))
    elif kind not in 'iu':
        raise InputError('%s: ids of type %s: give integers, int64 for example%s'
                         % (table, array.dtype,
                            '; mxhybrid.nn.hash_key makes integers of strings' if kind in 'OUS' else ''))
    return np.ascontiguousarray(array, np.int64).reshape(array.shape)


def check_range(ids: np.ndarray, lowest: int, highest: int, table: str, rows: Optional[int],
                padding: Optional[int] = None) -> None:
    """Raise InputError unless the lowest and the highest of some `ids` are ids of rows."""
    if rows is None or 0 <= lowest and highest < rows:
        return
    outside = (ids < 0) | (ids >= rows)
    if padding is not None:
        outside &= ids != padding
    if outside.any():
        number = int(ids[outside].flat[0])
        raise InputError('%s: id %d is %s: the table has rows 0 to %d. Correct the id, or use '
                         'mxhybrid.nn.HashEmbedding, whose keys are any int64'
                         % (table, number, 'negative' if number < 0 else 'out of range', rows - 1))


def _check_floats(array: np.ndarray, table: str) -> None:
    """Refuse floats that hold no integer, or perhaps another integer than the one that they were made from."""
    if not array.size:
        return
    advice = "give ids as int64: mx.nd.array(ids, dtype='int64'), or an array of NumPy"
    exact_below = _EXACT_BELOW.get(array.dtype.name, 1 << 53)
    finite = np.isfinite(array)
    if not finite.all():
        raise InputError('%s: id %s is not an integer: %s' % (table, array[~finite].flat[0], advice))
    fractional = array != np.floor(array)
    if fractional.any():
        raise InputError('%s: id %s is not a whole number: round ids, or %s'
                         % (table, array[fractional].flat[0], advice))
    large = np.abs(array) >= exact_below
    if large.any():
        raise InputError('%s: id %d came as %s, in which integers from 2^%d on are rounded to other integers: %s'
                         % (table, int(array[large].flat[0]), array.dtype, exact_below.bit_length() - 1, advice))
