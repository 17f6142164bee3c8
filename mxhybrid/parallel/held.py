"""The parameters of a network that is split: what this worker holds of each."""
from typing import Any, Dict, List, Optional

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..base.errors import InputError
from ..kvstore.parts import set_part
from ..native import trainers
from ..native.arrays import host_view
from .boxes import Box, cuts, full, shape_of, within
from .clipping import clip_by_whole_norms
from .exchange import Exchange
from .layout import Layout
from .program import Parts
from .team import Team


class Part:
    """A box of a weight, or a placeholder for one of which this worker holds nothing."""

    def __init__(self, team: Team, whole_shape: Any, grad_req: str, boxes: Dict[int, Box], number: int):
        self._team, self.whole_shape, self.grad_req = team, whole_shape, grad_req
        self._boxes, self._number = boxes, number
        self.box: Optional[Box] = boxes.get(team.rank)
        self.group: List[int] = sorted(rank for rank, box in boxes.items() if box == self.box)
        #: Whether this worker is the first of those.
        self.speaks = self.group[:1] == [team.rank]
        self._sum: Optional[_GroupSum] = None

    def allreduce_(self, array: Any, priority: int) -> None:
        """Sum a gradient over the workers that hold the same box, in place; returns before the sum is there.

        Each of them sums a range of it, and gives that to the others.
        """
        if len(self.group) > 1 and self.box is not None:
            if self._sum is None:
                self._sum = _GroupSum(self._team, self.group, array, self._number)
            self._sum.make(array, priority)


class _GroupSum:
    """Sums of gradients of a shape over some workers."""

    def __init__(self, team: Team, group: List[int], array: Any, number: int):
        self._courier = team.courier
        size, dtype = int(np.prod(array.shape)), np.dtype(array.dtype)
        chunks: Dict[int, Box] = {rank: (chunk,) for rank, chunk in zip(group, cuts(size, len(group)))
                                  if chunk[0] < chunk[1]}
        whole = dict.fromkeys(group, full((size,)))
        scattered = Exchange(number, team.rank, Layout((size,), whole, partial=True), chunks, dtype)
        gathered = Exchange(number + 1, team.rank, Layout((size,), chunks), whole, dtype)
        self._moves = scattered.forward, gathered.forward
        mine = chunks.get(team.rank)
        # Gradients may be in a layout of oneDNN's; what MXNet copies them to is not.
        self._buffer = mx.nd.empty(array.shape, dtype=dtype)
        self._chunk = None if mine is None else mx.nd.empty(shape_of(mine), dtype=dtype)
        self._views = (host_view(self._buffer).reshape(-1), None if self._chunk is None else host_view(self._chunk))

    def make(self, array: Any, priority: int) -> None:
        """Sum a gradient in place, by operations of the engine."""
        array.copyto(self._buffer)
        arrays = [self._buffer] + ([] if self._chunk is None else [self._chunk])
        self._courier.push_views(self._moves[0], self._views[0], self._views[1], arrays, priority)
        self._courier.push_views(self._moves[1], self._views[1], self._views[0], arrays, priority)
        self._buffer.copyto(array)


class Held:
    """All parameters, by name."""

    def __init__(self, params: Dict[str, Any], parts: Dict[str, Part]):
        self.params, self.parts = params, parts


def hold(net: Any, parts: Parts, team: Team, first: int) -> Held:
    """Cut a network's weights: what every worker holds whole stays as it is, everything else becomes parts, with worker
    0's values (collective).
    """
    shapes, weights = parts.weights.shapes, parts.weights
    params: Dict[str, Any] = {}
    found: Dict[str, Part] = {}
    for number, (name, param) in enumerate(net.collect_params().items()):
        if name in shapes and trainers.awaits_shape(param):
            param.shape = shapes[name]
            trainers.initialise_now(param)
        if not trainers.is_row_sparse(param):
            # A Trainer would do it after the first forward.
            host_view(param.data())  # Horovod knows no layouts of oneDNN's, this takes them away
            team.broadcast_(param.data(), name)
        boxes = weights.boxes(name) if name in shapes else {}
        if name not in shapes or boxes == dict.fromkeys(range(team.size), full(shapes[name])):
            params[name] = param
            continue
        if len(param.list_ctx()) > 1 or param.list_ctx()[0].device_type != 'cpu':
            raise InputError('parallelize: %s is on %s: layers are split over workers with one CPU each'
                             % (name, param.list_ctx()))
        if trainers.is_row_sparse(param):
            raise InputError('parallelize: %s is row_sparse: keep its layer outside of what is split' % name)
        whole = param.data()
        part = found[name] = Part(team, shapes[name], param.grad_req, boxes, first + 4 * number)
        params[name] = _own(name, param, whole, part)
        trainers.drop_values(param)
    clip_by_whole_norms(team, [params[name] for name in found])
    return Held(params, found)


def _own(name: str, param: Any, whole: Any, part: Part) -> Any:
    """The parameter of what this worker holds."""
    if part.box is None:
        own = gluon.Parameter(name, grad_req='null', shape=(1,), dtype=param.dtype, init='zeros')
        own.initialize(ctx=mx.cpu())
    else:
        own = gluon.Parameter(name, grad_req=param.grad_req, shape=shape_of(part.box), dtype=param.dtype,
                              lr_mult=param.lr_mult, wd_mult=param.wd_mult, init='zeros',
                              differentiable=param.grad_req != 'null')
        own.initialize(ctx=mx.cpu())
        box = host_view(whole)[within(part.box, full(part.whole_shape))]
        own.set_data(mx.nd.array(np.ascontiguousarray(box), dtype=param.dtype))
    set_part(own, part)
    return own
