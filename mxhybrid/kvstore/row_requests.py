"""Requests of rows of dynamic tables, of all tables of a call at once, and the arrays that hold the rows."""
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..lane.keyed_rows import KeyedRows
from ..native.arrays import unwritten_view
from .table_parameter import TableParameter


class RowRequest(NamedTuple):
    """A request of rows of one table."""

    param: TableParameter
    #: int64, sorted and unique; at least one.
    keys: np.ndarray
    #: For each row the position of its key, int32; None if there is one row for each key, in order.
    positions: Optional[np.ndarray]
    #: The shape of the array without its last dimension, the width.
    shape: Tuple[int, ...]
    #: The device of the array.
    context: Any

    @property
    def array_shape(self) -> Tuple[int, ...]:
        """The shape of the array."""
        return self.shape + (self.param.width,)


def request_rows(requests: Sequence[RowRequest]) -> List[Any]:
    """Return an array of rows for each request, which a backward pass finds; all rows are requested at once.

    The engine writes the rows; readers of an array wait for them.
    """
    arrays: List[Any] = [None] * len(requests)
    with mx.autograd.pause():
        for indices in _groups(requests):
            buffer, parts = _divided([requests[index].array_shape for index in indices],
                                     requests[indices[0]].param.dtype, mx.nd.empty)
            view = unwritten_view(buffer)
            tables, rows, first = [], [], 0
            for index, part in zip(indices, parts):
                request = requests[index]
                size = part.size
                tables.append(request.param.table)
                rows.append(KeyedRows(request.keys, request.positions,
                                      view[first:first + size].reshape(request.array_shape)))
                request.param.note_request(request.keys)
                first += size
                arrays[index] = part
            tables[0].deliver(tables, rows, buffer)
        for index, request in enumerate(requests):
            arrays[index] = arrays[index].as_in_context(request.context)
    if mx.autograd.is_recording():
        _record(requests, arrays)
    return arrays


def _groups(requests: Sequence[RowRequest]) -> List[List[int]]:
    """Return the numbers of requests by type of table and of elements; a group has its rows in one array."""
    groups: Dict[Any, List[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault((request.param.is_served, request.param.dtype), []).append(index)
    return list(groups.values())


def _divided(shapes: Sequence[Tuple[int, ...]], dtype: Any, make: Any, context: Any = None) -> Tuple[Any, List[Any]]:
    """Return an array of one dimension, and arrays of these shapes that lie in it one after another."""
    sizes = [math.prod(shape) for shape in shapes]
    buffer = make((sum(sizes),), context or mx.cpu(), dtype)
    parts, first = [], 0
    for shape, size in zip(shapes, sizes):
        parts.append(buffer[first:first + size].reshape(shape))
        first += size
    return buffer, parts


def _record(requests: Sequence[RowRequest], arrays: Sequence[Any]) -> None:
    """Give the arrays gradients, and note them for the next step of their Trainer."""
    groups: Dict[Any, List[int]] = {}
    for index, request in enumerate(requests):
        if request.param.grad_req != 'null':
            groups.setdefault((request.context, request.param.dtype, request.param.grad_req), []).append(index)
    for (context, dtype, grad_req), indices in groups.items():
        with mx.autograd.pause():
            _, gradients = _divided([requests[index].array_shape for index in indices], dtype,
                                    mx.nd.zeros if grad_req == 'add' else mx.nd.empty, context)
            mx.autograd.mark_variables([arrays[index] for index in indices], gradients, [grad_req] * len(indices))
        for index, gradient in zip(indices, gradients):
            request = requests[index]
            request.param.lookups.record(request.keys, request.positions, arrays[index], gradient)
