"""Check an optimizer class that the user marked with :func:`mxhybrid.row_wise`, before anything is sent.

A table of a few rows is updated as a whole and in two partitions, by the code that servers run.  That finds classes
that would end a server in the first step, and most classes that do not work row by row; it cannot find all of them.
"""
from typing import Any, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..native.arrays import make_row_sparse
from ..native.optimizer_state import rates_of, state_arrays
from ..native.optimizers import TableOptimizer, attributes_of, name_of, reference_of
from .partition_state import Partition
from .protocol import OPTIMIZE

#: Rows of the table of the check; 4 of them are never touched.
_ROWS = 10
#: Row ids that each step touches.
_STEPS: Sequence[Sequence[int]] = ([0, 1, 4], [], [1, 2], [0, 1, 2, 3, 4, 5])
#: Tolerances by dtype: the order of additions may differ.
_TOLERANCE = {'float16': 1e-2, 'float32': 1e-4, 'float64': 1e-10}


def check_row_wise(optimizer: Any, table: str, shape: Tuple[int, ...], dtype: Any) -> None:
    """Refuse, by InputError, an optimizer that fails, keeps other state than rows, or depends on other rows."""
    about = 'optimizer %r, which mxhybrid.row_wise marks, cannot update %s: ' % (name_of(optimizer), table)
    width, dtype = int(np.prod(shape[1:])), np.dtype(dtype)
    whole, halves = ([_partition(key, count, width, dtype) for key in range(count)] for count in (1, 2))
    try:
        for parts in (whole, halves):
            _train(optimizer, parts, width, dtype)
    except Exception as error:  # the class is the user's: anything
        raise InputError(about + 'given a row_sparse weight and a row_sparse gradient, as in one process, it fails: '
                                 '%s: %s' % (type(error).__name__, error)) from error
    arrays = state_arrays(whole[0].state)
    for array in arrays:
        if not isinstance(array, mx.nd.NDArray):
            raise InputError(about + 'it keeps a %s as state, and servers keep arrays' % type(array).__name__)
        state_dtype = np.dtype(array.dtype)
        if (not array.shape or array.shape[0] != _ROWS or int(np.prod(array.shape[1:])) > width
                or state_dtype != dtype):
            raise InputError(about + 'for %d rows of %d elements, %s, it keeps state of shape %s, %s, and servers keep '
                                     'one row for each row, no longer and of the same dtype'
                             % (_ROWS, width, dtype, tuple(array.shape), state_dtype))
    for slot in range(-1, len(arrays)):
        rows, rows_of_halves = (_joined([part.view if slot < 0 else part.all_state_rows(slot) for part in parts])
                                for parts in (whole, halves))
        tolerance = _TOLERANCE[dtype.name]
        if not np.allclose(rows, rows_of_halves, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise InputError(about + 'rows change when the table is cut into partitions, so something is shared '
                                     'between rows or between calls: a norm, a random number, an attribute. '
                                     'Give the layer a dense weight instead (nn.Embedding with sparse_grad=True)')


def _partition(key: int, count: int, width: int, dtype: np.dtype) -> Partition:
    """Make a partition of the table with every `count`-th row."""
    values = np.random.RandomState(0).standard_normal((_ROWS, width)).astype(dtype)
    values[[3, 8]] = 0  # rows that MXNet's conversions leave out
    part = Partition(key, 'check', _ROWS // count, width, OPTIMIZE)
    part.hold(make_row_sparse(np.arange(_ROWS // count), values[key::count], part.shape))
    return part


def _train(optimizer: Any, parts: List[Partition], width: int, dtype: np.dtype) -> None:
    """Update partitions by the steps of the check."""
    lr, wd = rates_of(optimizer, None)
    attributes = dict(attributes_of(optimizer), lr=lr or 0.1, wd=wd)
    table_optimizer, random = TableOptimizer(reference_of(optimizer), attributes), np.random.RandomState(1)
    for step in _STEPS:
        ids = np.array(step, np.int64)
        rows = random.standard_normal((len(ids), width)).astype(dtype)
        for part in parts:
            in_part = ids % len(parts) == part.key
            part.update(table_optimizer, make_row_sparse(ids[in_part] // len(parts), rows[in_part], part.shape))


def _joined(parts: List[np.ndarray]) -> np.ndarray:
    """Return the rows of all partitions in the order of the table."""
    whole = np.empty((_ROWS,) + parts[0].shape[1:], parts[0].dtype)
    for index, rows in enumerate(parts):
        whole[index::len(parts)] = rows
    return whole
