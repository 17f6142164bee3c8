"""The parameters of a network that is split: what this worker holds of each."""
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ...base.errors import InputError
from ...kvstore.weight_shards import set_emptied, set_shard
from ...native import trainers
from ...native.arrays import host_view
from ..redistribution.redistribution import Redistribution, Transfer
from ..redistribution.worker_group import WorkerGroup
from ..sharding.box import Box, full, overlap, shape_of, slices_in, split_range
from ..sharding.layout import Layout
from .grad_clipping import clip_by_whole_norms
from .rank_program import NetworkShards

#: Bytes of a whole weight that are brought together, or given out, at a time.
SLAB_BYTES = 8 << 20


class ShardedWeight:
    """A box of a weight, or a placeholder for one of which this worker holds nothing.

    Exchanges of gradients have the two numbers from `number` on, those of whole values new ones each time.
    """

    def __init__(self, workers: WorkerGroup, whole_shape: Any, grad_req: str, boxes: Dict[int, Box], number: int):
        self._workers, self.whole_shape, self.grad_req = workers, whole_shape, grad_req
        self._boxes, self._number = boxes, number
        self.box: Optional[Box] = boxes.get(workers.rank)
        self.holds = self.box is not None
        self.group: List[int] = sorted(rank for rank, box in boxes.items() if box == self.box)
        #: Whether this worker is the first of those.
        self.speaks = self.group[:1] == [workers.rank]
        self._transport = workers.transport  # which all have to make here
        self._sum: Optional[_GroupSum] = None

    def allreduce_(self, array: Any, priority: int) -> None:
        """Sum a gradient over the workers that hold the same box, in place; returns before the sum is there.

        Each of them sums a range of it, and gives that to the others.
        """
        if len(self.group) > 1 and self.box is not None:
            if self._sum is None:
                self._sum = _GroupSum(self._workers, self.group, array, self._number)
            self._sum.make(array, priority)

    # -- whole values ----------------------------------------------------------------------------------------------

    def whole_of(self, shape: Tuple[int, ...]) -> Tuple[Tuple[int, ...], Box]:
        """As :meth:`mxhybrid.kvstore.weight_shards.WeightShard.whole_of`; of a worker that holds something."""
        assert self.box is not None
        lengths = list(zip(shape, shape_of(self.box), self.whole_shape))
        found = tuple(shape)
        if len(shape) == len(self.box) and all(count == length or count == 1 and length == whole
                                               for count, length, whole in lengths):
            found = tuple(whole if count == length else 1 for count, length, whole in lengths)
        box = self._boxes_of(found)[self._workers.rank]
        if shape_of(box) != tuple(shape):
            raise InputError('of what shape the whole is of an array of shape %s beside %s of %s cannot be told'
                             % (tuple(shape), shape_of(self.box), self.whole_shape))
        return found, box

    def _boxes_of(self, shape: Tuple[int, ...]) -> Dict[int, Box]:
        """What each worker has of an array whose whole has a shape that :meth:`whole_of` gave."""
        whole = self.whole_shape
        if len(shape) != len(whole) or any(count not in (1, length) for count, length in zip(shape, whole)):
            return dict.fromkeys(self._boxes, full(shape))
        return {rank: tuple(one if count == length else (0, 1) for one, count, length in zip(box, shape, whole))
                for rank, box in self._boxes.items()}

    def gather(self, array: Any, shape: Tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
        """As :meth:`mxhybrid.kvstore.weight_shards.WeightShard.gather`."""
        have = Layout(shape, self._boxes_of(shape))
        mine = None if array is None else host_view(array)
        for slab in _slabs(shape, dtype):
            self._workers.barrier()  # so that nobody sends what worker 0 has no memory for yet
            redistribution = Redistribution(self._workers.reserve_numbers(1), self._workers.rank, have, {0: slab},
                                            np.dtype(dtype))
            taken = np.empty(shape_of(slab), dtype) if self._workers.rank == 0 else None
            self._transfer(redistribution.forward, mine, taken, array)
            if taken is not None:
                yield taken

    def scatter(self, rows: Callable[[int, int], np.ndarray], array: Any, shape: Tuple[int, ...], dtype: Any) -> None:
        """As :meth:`mxhybrid.kvstore.weight_shards.WeightShard.scatter`."""
        boxes = self._boxes_of(shape)
        mine = None if array is None else host_view(array)
        for slab in _slabs(shape, dtype):
            self._workers.barrier()
            wanted = {rank: common for rank, box in boxes.items() for common in [overlap(box, slab)]
                      if common is not None}
            redistribution = Redistribution(self._workers.reserve_numbers(1), self._workers.rank,
                                            Layout(shape, {0: slab}), wanted,
                                np.dtype(dtype))
            given = np.ascontiguousarray(rows(*slab[0]), dtype) if self._workers.rank == 0 else None
            taken = None if redistribution.target is None or mine is None else mine[
                slices_in(redistribution.target, boxes[self._workers.rank])]
            self._transfer(redistribution.forward, given, taken, array)

    def _transfer(self, transfer: Transfer, given: Any, taken: Any, array: Any) -> None:
        """Make a move between NumPy arrays, and wait for it; one of them may be the memory of `array`."""
        if transfer.sends or transfer.receives or transfer.own:
            after = mx.nd.zeros(1, ctx=mx.cpu())
            self._transport.push_views(transfer, given, taken, [after] + ([] if array is None else [array]), 0)
            after.wait_to_read()
            self._transport.forget([transfer])


def _slabs(shape: Tuple[int, ...], dtype: Any) -> Iterator[Box]:
    """A tensor cut into ranges of rows; a box of rows is one piece of memory in any array that has it."""
    rest = full(shape[1:])
    step = max(1, SLAB_BYTES // (int(np.prod(shape[1:])) * np.dtype(dtype).itemsize))
    for first in range(0, shape[0], step):
        yield ((first, min(first + step, shape[0])),) + rest


class _GroupSum:
    """Sums of gradients of a shape over some workers."""

    def __init__(self, workers: WorkerGroup, group: List[int], array: Any, number: int):
        self._transport = workers.transport
        size, dtype = int(np.prod(array.shape)), np.dtype(array.dtype)
        chunks: Dict[int, Box] = {rank: (chunk,) for rank, chunk in zip(group, split_range(size, len(group)))
                                  if chunk[0] < chunk[1]}
        whole = dict.fromkeys(group, full((size,)))
        scattered = Redistribution(number, workers.rank, Layout((size,), whole, partial=True), chunks, dtype)
        gathered = Redistribution(number + 1, workers.rank, Layout((size,), chunks), whole, dtype)
        self._transfers = scattered.forward, gathered.forward
        mine = chunks.get(workers.rank)
        # Gradients may be in a layout of oneDNN's; what MXNet copies them to is not.
        self._buffer = mx.nd.empty(array.shape, dtype=dtype, ctx=mx.cpu())
        self._chunk = None if mine is None else mx.nd.empty(shape_of(mine), dtype=dtype, ctx=mx.cpu())
        self._views = (host_view(self._buffer).reshape(-1), None if self._chunk is None else host_view(self._chunk))

    def make(self, array: Any, priority: int) -> None:
        """Sum a gradient in place, by operations of the engine."""
        array.copyto(self._buffer)
        arrays = [self._buffer] + ([] if self._chunk is None else [self._chunk])
        self._transport.push_views(self._transfers[0], self._views[0], self._views[1], arrays, priority)
        self._transport.push_views(self._transfers[1], self._views[1], self._views[0], arrays, priority)
        self._buffer.copyto(array)


class ShardedParameters:
    """All parameters, by name."""

    def __init__(self, by_name: Dict[str, Any], shards: Dict[str, ShardedWeight]):
        self.by_name, self.shards = by_name, shards


def shard_parameters(net: Any, shards: NetworkShards, workers: WorkerGroup, first: int) -> ShardedParameters:
    """Cut a network's weights: what every worker holds whole stays as it is, everything else becomes parts, with worker
    0's values (collective).

    One parameter after the other, so that a weight that has waited for its shape exists whole for a moment, on worker
    0; the others get their boxes of it.
    """
    shapes, weights = shards.weights.shapes, shards.weights
    params: Dict[str, Any] = {}
    found: Dict[str, ShardedWeight] = {}
    drawn = np.random.get_state()
    for number, (name, param) in enumerate(net.collect_params().items()):
        if name in shapes and trainers.awaits_shape(param):
            param.shape = shapes[name]
        if name not in shapes or not weights.boxes(name) or weights.is_whole_everywhere(name, workers.size):
            if name in shapes:
                trainers.initialise_now(param)
            if trainers.has_values(param) and not trainers.is_row_sparse(param):
                # A Trainer would do it after the first forward.
                workers.broadcast_(param.data(), 'parameter %d' % number)
            params[name] = param
            continue
        if len(param.list_ctx()) > 1 or param.list_ctx()[0].device_type != 'cpu':
            raise InputError('parallelize: %s is on %s: layers are split over workers with one CPU each'
                             % (name, param.list_ctx()))
        if trainers.is_row_sparse(param):
            raise InputError('parallelize: %s is row_sparse: keep its layer outside of what is split' % name)
        shard = found[name] = ShardedWeight(workers, shapes[name], param.grad_req, weights.boxes(name),
                                            first + 2 * number)
        params[name] = _own(name, param, shard, workers.rank == 0)
    # Initializers may draw from NumPy's generator, on worker 0 alone; scripts draw the same batches on all workers.
    np.random.set_state(drawn)
    clip_by_whole_norms(workers, [params[name] for name in found])
    return ShardedParameters(params, found)


def _own(name: str, param: Any, shard: ShardedWeight, first: bool) -> Any:
    """The parameter of what this worker holds, with values of the whole that the `first` worker has; the whole one
    loses its values.
    """
    values = None
    if first:
        values = trainers.initial_values(param) if trainers.awaits_shape(param) else param.data()
    trainers.drop_values(param)
    set_emptied(param)
    if shard.box is None:
        own = gluon.Parameter(name, grad_req='null', shape=(1,), dtype=param.dtype, lr_mult=param.lr_mult,
                              wd_mult=param.wd_mult, init='zeros')
    else:
        own = gluon.Parameter(name, grad_req=param.grad_req, shape=shape_of(shard.box), dtype=param.dtype,
                              lr_mult=param.lr_mult, wd_mult=param.wd_mult, init='zeros',
                              differentiable=param.grad_req != 'null')
    own.initialize(ctx=mx.cpu())
    whole: Any = None if values is None else host_view(values)
    shard.scatter(lambda low, high: whole[low:high], None if shard.box is None else own.data(), shard.whole_shape,
                 param.dtype)
    set_shard(own, shard)
    return own
