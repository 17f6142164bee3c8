"""Requests of rows of dynamic tables, of all tables of a call at once, and the arrays that hold the rows."""
import contextlib
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..lane.keyed_rows import KeyedRows, Segments
from ..native.arrays import is_in_host_memory, parts_of, unwritten_view
from ..native.trainers import device_of
from .lookups import RecordedLookup
from .table_parameter import TableParameter

#: The most elements of an array with the rows of several requests, far below the limit of MXNet, 2^31.
_MOST_ELEMENTS = 1 << 29
_CPU = mx.cpu()


class RowRequest(NamedTuple):
    """A request of rows of one table."""

    param: TableParameter
    #: int64, sorted and unique; at least one.
    keys: np.ndarray
    #: For each row, or each row of a segment, the position of its key, int32; None if there is one row for each key, in
    #: order.
    positions: Optional[np.ndarray]
    #: The shape of the array without its last dimension, the width.
    shape: Tuple[int, ...]
    #: The device of the array.
    context: Any
    #: The segments of positions that are summed to a row each; None if each position has a row.
    segments: Optional[Segments] = None


def request_rows(requests: Sequence[RowRequest]) -> List[Any]:
    """Return an array of rows for each request, which a backward pass finds; all rows are requested at once.

    The engine writes the rows; readers of an array wait for them.
    """
    arrays: List[Any] = [None] * len(requests)
    is_recording = mx.autograd.is_recording()
    shapes = [request.shape + (request.param.width,) for request in requests]
    with mx.autograd.pause():
        for indices in _groups([(request.param.is_served, request.param.dtype) for request in requests], shapes):
            group = [requests[index] for index in indices]
            group_shapes = [shapes[index] for index in indices]
            buffer = mx.nd.empty((_size(group_shapes),), _CPU, group[0].param.dtype)
            rows = [KeyedRows(request.keys, request.positions, view, request.segments)
                    for request, view in zip(group, _views(buffer, group_shapes))]
            for request in group:
                request.param.note_request(request.keys)
            tables = [request.param.table for request in group]
            # Evaluation gets rows without staleness.
            with contextlib.nullcontext() if is_recording else group[0].param.fresh_pulls():
                tables[0].deliver(tables, rows, buffer)
            for index, part in zip(indices, parts_of(buffer, group_shapes)):
                context = requests[index].context
                arrays[index] = part if context == _CPU else part.as_in_context(context)
    if is_recording:
        _record(requests, shapes, arrays)
    return arrays


def _groups(kinds: Sequence[Any], shapes: Sequence[Tuple[int, ...]]) -> List[List[int]]:
    """Return the numbers of arrays in groups; those of a group have the same kind, and fit into one array."""
    groups: Dict[Any, List[int]] = {}
    sizes: Dict[Any, int] = {}
    for index, (kind, shape) in enumerate(zip(kinds, shapes)):
        size = sizes[kind] = sizes.get(kind, 0) + math.prod(shape)
        groups.setdefault((kind, size // _MOST_ELEMENTS), []).append(index)
    return list(groups.values())


def _size(shapes: Sequence[Tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


def _views(buffer: Any, shapes: Sequence[Tuple[int, ...]]) -> List[np.ndarray]:
    """Return views, without waiting, of arrays of these shapes that lie in a buffer one after another."""
    whole, first, views = unwritten_view(buffer), 0, []
    for shape in shapes:
        last = first + math.prod(shape)
        views.append(whole[first:last].reshape(shape))
        first = last
    return views


def _record(requests: Sequence[RowRequest], shapes: Sequence[Tuple[int, ...]], arrays: Sequence[Any]) -> None:
    """Give the arrays gradients, and note them for the next step of their Trainer."""
    trained = [index for index, request in enumerate(requests) if request.param.grad_req != 'null']
    kinds = [(device_of(requests[index].context), requests[index].param.dtype, requests[index].param.grad_req)
             for index in trained]
    for group in _groups(kinds, [shapes[index] for index in trained]):
        (device, dtype, grad_req), indices = kinds[group[0]], [trained[number] for number in group]
        group_shapes = [shapes[index] for index in indices]
        context = requests[indices[0]].context
        with mx.autograd.pause():
            buffer = mx.nd.empty((_size(group_shapes),), context, dtype)
            if grad_req == 'add':
                buffer[:] = 0
            gradients = parts_of(buffer, group_shapes)
            mx.autograd.mark_variables([arrays[index] for index in indices], gradients, grad_req)
        views: Sequence[Any] = [None] * len(indices)
        if is_in_host_memory(context):
            views = _views(buffer, group_shapes)
        for index, gradient, view in zip(indices, gradients, views):
            request = requests[index]
            request.param.lookups.record(RecordedLookup(request.keys, request.positions, request.segments,
                                                        arrays[index], gradient, view, device))
