"""Requests of rows of dynamic tables, of all tables of a call at once, and the arrays that hold the rows."""
import contextlib
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..lane.keyed_rows import KeyedRows
from ..native.arrays import parts_of, unwritten_view
from .table_parameter import TableParameter

#: The most elements of an array with the rows of several requests, far below the limit of MXNet, 2^31.
_MOST_ELEMENTS = 1 << 29


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
    is_recording = mx.autograd.is_recording()
    with mx.autograd.pause():
        for indices in _groups([(request.param.is_served, request.param.dtype) for request in requests],
                               [request.array_shape for request in requests]):
            group = [requests[index] for index in indices]
            shapes = [request.array_shape for request in group]
            buffer = mx.nd.empty((_size(shapes),), mx.cpu(), group[0].param.dtype)
            view, first, rows = unwritten_view(buffer), 0, []
            for request, shape in zip(group, shapes):
                last = first + math.prod(shape)
                rows.append(KeyedRows(request.keys, request.positions, view[first:last].reshape(shape)))
                request.param.note_request(request.keys)
                first = last
            tables = [request.param.table for request in group]
            # Evaluation gets rows without staleness.
            with contextlib.nullcontext() if is_recording else group[0].param.fresh_pulls():
                tables[0].deliver(tables, rows, buffer)
            for index, part in zip(indices, parts_of(buffer, shapes)):
                arrays[index] = part.as_in_context(requests[index].context)
    if is_recording:
        _record(requests, arrays)
    return arrays


def _groups(kinds: Sequence[Any], shapes: Sequence[Tuple[int, ...]]) -> List[List[int]]:
    """Return the numbers of arrays in groups; those of a group have the same kind, and fit into one array."""
    groups: Dict[Any, List[int]] = {}
    sizes: Dict[Any, int] = {}
    for index, (kind, shape) in enumerate(zip(kinds, shapes)):
        sizes[kind] = sizes.get(kind, 0) + math.prod(shape)
        groups.setdefault((kind, sizes[kind] // _MOST_ELEMENTS), []).append(index)
    return list(groups.values())


def _size(shapes: Sequence[Tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


def _record(requests: Sequence[RowRequest], arrays: Sequence[Any]) -> None:
    """Give the arrays gradients, and note them for the next step of their Trainer."""
    trained = [index for index, request in enumerate(requests) if request.param.grad_req != 'null']
    shapes = [requests[index].array_shape for index in trained]
    kinds = [(requests[index].context, requests[index].param.dtype, requests[index].param.grad_req)
             for index in trained]
    for group in _groups(kinds, shapes):
        context, dtype, grad_req = kinds[group[0]]
        group_shapes = [shapes[number] for number in group]
        variables = [arrays[trained[number]] for number in group]
        with mx.autograd.pause():
            make = mx.nd.zeros if grad_req == 'add' else mx.nd.empty
            gradients = parts_of(make((_size(group_shapes),), context, dtype), group_shapes)
            mx.autograd.mark_variables(variables, gradients, [grad_req] * len(group))
        for number, variable, gradient in zip(group, variables, gradients):
            request = requests[trained[number]]
            request.param.lookups.record(request.keys, request.positions, variable, gradient, context)
