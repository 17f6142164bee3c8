"""The parameters of a split network: the box of each that this worker holds."""
import itertools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ...base.errors import InputError
from ...kvstore.weight_shards import WeightShard, set_emptied, set_shard
from ...native import trainers
from ...native.arrays import host_view
from ..ops.graph import Factors, merged_shape
from ..redistribution.redistribution import Redistribution, Transfer
from ..redistribution.worker_group import WorkerGroup
from ..sharding.box import Box, full, overlap, shape_of, slices_in, split_range
from ..sharding.layout import Layout, Movement
from .grad_clipping import clip_by_whole_norms
from .split_network import SplitNetwork

#: Bytes of a whole weight that are gathered or scattered at a time.
SLAB_BYTES = 8 << 20


class ShardedWeight(WeightShard):
    """A weight of which this worker holds a box, or nothing.

    The redistributions that sum gradients have the numbers `number` and `number` + 1; those of whole values have new
    numbers each time.
    """

    def __init__(self, workers: WorkerGroup, whole_shape: Any, boxes: Dict[int, Box], number: int,
                 factors: Optional[Factors] = None):
        self._workers, self.whole_shape = workers, whole_shape
        self._boxes, self._number = boxes, number
        #: The factors of each dimension, of which boxes have a range each.
        self._factors: Factors = factors or tuple((count,) for count in whole_shape)
        self.box: Optional[Box] = boxes.get(workers.rank)
        self.holds = self.box is not None
        self.group: List[int] = sorted(rank for rank, box in boxes.items() if box == self.box)
        #: Whether this worker is the first of the group.
        self.is_owner = self.group[:1] == [workers.rank]
        self._transport = workers.transport  # all workers make it here
        self._sum: Optional[_GroupSum] = None

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape of the array that this worker holds, or of its placeholder."""
        return (1,) if self.box is None else merged_shape(shape_of(self.box), self._factors)

    def allreduce_(self, array: Any, priority: int) -> None:
        if len(self.group) > 1 and self.box is not None:
            if self._sum is None:
                self._sum = _GroupSum(self._workers, self.group, array, self._number)
            self._sum.sum_(array, priority)

    # -- whole values ----------------------------------------------------------------------------------------------

    def whole_of(self, shape: Tuple[int, ...]) -> Tuple[Tuple[int, ...], Box]:
        lengths = list(zip(shape, self.shape, self.whole_shape))
        whole_shape = tuple(shape)
        if len(shape) == len(self.whole_shape) and all(count == length or count == 1 and length == whole
                                                       for count, length, whole in lengths):
            whole_shape = tuple(whole if count == length else 1 for count, length, whole in lengths)
        factors = self._factors_of(whole_shape)
        box = self._boxes_of(whole_shape)[self._workers.rank]
        if merged_shape(shape_of(box), factors) != tuple(shape):
            raise InputError('cannot infer the whole shape of optimizer state %s that belongs to shard %s of a weight '
                             'of shape %s: use an optimizer whose state has the shape of the weight, such as sgd or '
                             'adam' % (tuple(shape), self.shape, self.whole_shape))
        return whole_shape, box

    def part_of(self, values: Any) -> Any:
        assert self.box is not None
        counts = [count for part in self._factors for count in part]
        array = values.asnumpy() if isinstance(values, mx.nd.NDArray) else np.asarray(values)
        part = array.reshape(counts)[slices_in(self.box, full(counts))].reshape(self.shape)
        return mx.nd.array(part, dtype=part.dtype, ctx=mx.cpu())

    def _is_aligned(self, shape: Tuple[int, ...]) -> bool:
        """Return whether an array whose whole shape :meth:`whole_of` has returned is cut as the weight."""
        whole = self.whole_shape
        return len(shape) == len(whole) and all(count in (1, length) for count, length in zip(shape, whole))

    def _factors_of(self, shape: Tuple[int, ...]) -> Factors:
        """Return the factors of the dimensions of such an array."""
        if not self._is_aligned(shape):
            return tuple((count,) for count in shape)
        return tuple(part if count == length else (1,) * len(part)
                     for part, count, length in zip(self._factors, shape, self.whole_shape))

    def _boxes_of(self, shape: Tuple[int, ...]) -> Dict[int, Box]:
        """Return the box of such an array that each worker holds."""
        if not self._is_aligned(shape):
            return dict.fromkeys(self._boxes, full(shape))
        counts = [count for part in self._factors_of(shape) for count in part]
        lengths = [length for part in self._factors for length in part]
        return {rank: tuple(side if count == length else (0, 1) for side, count, length in zip(box, counts, lengths))
                for rank, box in self._boxes.items()}

    def gather(self, array: Any, shape: Tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
        boxes, factors = self._boxes_of(shape), self._factors_of(shape)
        layout = Layout(tuple(count for part in factors for count in part), boxes)
        local = self._local(array, boxes)
        for _, slab in _slabs(shape, factors, dtype):
            self._workers.barrier()  # so that worker 0 has memory for all that is sent
            redistribution = Redistribution(self._workers.reserve_numbers(1), self._workers.rank,
                                            Movement(layout, {0: slab}, dtype))
            gathered = np.empty(shape_of(slab), dtype) if self._workers.rank == 0 else None
            self._transfer(redistribution.forward, local, gathered, array)
            if gathered is not None:
                yield gathered.reshape((-1,) + tuple(shape[1:]))

    def scatter(self, rows: Callable[[int, int], np.ndarray], array: Any, shape: Tuple[int, ...], dtype: Any) -> None:
        boxes, factors = self._boxes_of(shape), self._factors_of(shape)
        local = self._local(array, boxes)
        for (first, last), slab in _slabs(shape, factors, dtype):
            self._workers.barrier()
            wanted = {rank: common for rank, box in boxes.items() for common in [overlap(box, slab)]
                      if common is not None}
            layout = Layout(tuple(count for part in factors for count in part), {0: slab})
            redistribution = Redistribution(self._workers.reserve_numbers(1), self._workers.rank,
                                            Movement(layout, wanted, dtype))
            source = np.ascontiguousarray(rows(first, last), dtype).reshape(
                shape_of(slab)) if self._workers.rank == 0 else None
            target = None if redistribution.target is None or local is None else local[
                slices_in(redistribution.target, boxes[self._workers.rank])]
            self._transfer(redistribution.forward, source, target, array)

    def _local(self, array: Any, boxes: Dict[int, Box]) -> Optional[np.ndarray]:
        """Return the memory of this worker's array, with a dimension for each factor."""
        if array is None:
            return None
        view: np.ndarray = host_view(array).reshape(shape_of(boxes[self._workers.rank]))
        return view

    def _transfer(self, transfer: Transfer, source: Any, target: Any, array: Any) -> None:
        """Make a transfer between NumPy arrays, and wait for it; one of them may be the memory of `array`."""
        if transfer.sends or transfer.receives or transfer.local:
            after = mx.nd.zeros(1, ctx=mx.cpu())
            self._transport.push_views(transfer, source, target, [after] + ([] if array is None else [array]), 0)
            after.wait_to_read()
            self._transport.forget([transfer])


def _slabs(shape: Tuple[int, ...], factors: Factors, dtype: Any) -> Iterator[Tuple[Tuple[int, int], Box]]:
    """Yield ranges of rows of an array, and their boxes; such a box is contiguous in any array that contains it."""
    row_bytes = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    rest: Box = tuple((0, count) for part in factors[1:] for count in part)
    outer, inner = factors[0], 1
    # Several coordinates of a factor are a slab if all factors after it are whole.
    while len(outer) > 1 and inner * outer[-1] * row_bytes <= SLAB_BYTES:
        inner, outer = inner * outer[-1], outer[:-1]
    whole: Box = tuple((0, count) for count in factors[0][len(outer):])
    step, row = max(1, SLAB_BYTES // (inner * row_bytes)), 0
    for position in itertools.product(*map(range, outer[:-1])):
        for first in range(0, outer[-1], step):
            last = min(first + step, outer[-1])
            box: Box = tuple((at, at + 1) for at in position) + ((first, last),)
            yield (row, row + (last - first) * inner), box + whole + rest
            row += (last - first) * inner


class _GroupSum:
    """Sums gradients of a shape over some workers: each sums a range, and sends the sum to the others."""

    def __init__(self, workers: WorkerGroup, group: List[int], array: Any, number: int):
        self._transport = workers.transport
        size, dtype = int(np.prod(array.shape)), np.dtype(array.dtype)
        chunks: Dict[int, Box] = {rank: (chunk,) for rank, chunk in zip(group, split_range(size, len(group)))
                                  if chunk[0] < chunk[1]}
        whole = dict.fromkeys(group, full((size,)))
        scattered = Redistribution(number, workers.rank,
                                   Movement(Layout((size,), whole, partial=True), chunks, dtype))
        gathered = Redistribution(number + 1, workers.rank, Movement(Layout((size,), chunks), whole, dtype))
        self._transfers = scattered.forward, gathered.forward
        local_chunk = chunks.get(workers.rank)
        # Gradients may be in a layout of oneDNN; the buffer that MXNet copies them to is not.
        self._buffer = mx.nd.empty(array.shape, dtype=dtype, ctx=mx.cpu())
        self._chunk = None if local_chunk is None else mx.nd.empty(shape_of(local_chunk), dtype=dtype, ctx=mx.cpu())
        self._views = (host_view(self._buffer).reshape(-1), None if self._chunk is None else host_view(self._chunk))

    def sum_(self, array: Any, priority: int) -> None:
        """Sum a gradient in place, by operations of the engine."""
        array.copyto(self._buffer)
        arrays = [self._buffer] + ([] if self._chunk is None else [self._chunk])
        self._transport.push_views(self._transfers[0], self._views[0], self._views[1], arrays, priority)
        self._transport.push_views(self._transfers[1], self._views[1], self._views[0], arrays, priority)
        self._buffer.copyto(array)


class ShardedParameters(NamedTuple):
    """All parameters by name, and those of them that are shards."""

    by_name: Dict[str, Any]
    shards: Dict[str, ShardedWeight]


def shard_parameters(net: Any, network: SplitNetwork, first: int) -> ShardedParameters:
    """Split the weights of a network, with the values of worker 0 (collective).

    A weight that every worker holds whole stays as it is.  Weights are split one after the other, so that a weight
    whose initialization was deferred is whole only for a moment, on worker 0.  Weights whose shapes worker 0 knows come
    first, as ``initialize`` of gluon draws their values before those of the others.
    """
    workers, weights = network.workers, network.shards.weights
    shapes, graph, array_shapes = weights.shapes, network.graph, network.graph.parameter_arrays
    factors = {operator.name: graph.factors.get((operator.number, 0)) for operator in graph.operators}
    params: Dict[str, Any] = {}
    sharded: Dict[str, ShardedWeight] = {}
    random_state = np.random.get_state()
    whole = list(net.collect_params().items())
    lack_shapes = workers.allgather([not trainers.has_known_shape(param) for _, param in whole], 'shapes')[0]
    for number, (name, param) in sorted(enumerate(whole), key=lambda item: bool(lack_shapes[item[0]])):
        if name in shapes and trainers.awaits_shape(param):
            param.shape = array_shapes[name]
        if name not in shapes or not weights.boxes(name) or weights.is_whole_everywhere(name, workers.size):
            if name in shapes:
                trainers.initialise_now(param)
            if trainers.has_values(param) and not trainers.is_row_sparse(param):
                # A Trainer would broadcast it after the first forward pass.
                workers.broadcast_(param.data(), 'parameter %d' % number)
            params[name] = param
            continue
        if len(param.list_ctx()) > 1 or param.list_ctx()[0].device_type != 'cpu':
            raise InputError('parallelize: %s is on %s, but layers are split over workers with one CPU each: '
                             'initialize it with ctx=mx.cpu()' % (name, param.list_ctx()))
        if trainers.is_row_sparse(param):
            raise InputError('parallelize: %s is row_sparse: keep its layer outside of the split network' % name)
        shard = sharded[name] = ShardedWeight(workers, array_shapes[name], weights.boxes(name), first + 2 * number,
                                              factors[name])
        params[name] = _shard_parameter(name, param, shard, workers.rank == 0)
    # Initializers may draw from NumPy's generator, on worker 0 alone; scripts draw the same batches on all workers.
    np.random.set_state(random_state)
    clip_by_whole_norms(workers, [params[name] for name, _ in whole if name in sharded])
    return ShardedParameters({name: params[name] for name, _ in whole}, sharded)


def _shard_parameter(name: str, param: Any, shard: ShardedWeight, has_values: bool) -> Any:
    """Return a parameter for this worker's shard, with the values of the whole parameter on the one worker that
    `has_values`; the whole parameter loses its values.
    """
    values = None
    if has_values:
        values = trainers.initial_values(param) if trainers.awaits_shape(param) else param.data()
    trainers.drop_values(param)
    set_emptied(param)
    shard_param = gluon.Parameter(name, grad_req=param.grad_req, shape=shard.shape, dtype=param.dtype,
                                  lr_mult=param.lr_mult, wd_mult=param.wd_mult, init=param.init,
                                  differentiable=trainers.may_be_trained(param))
    shard_param.initialize(mx.init.Zero(), mx.cpu())
    whole: Any = None if values is None else host_view(values)
    shard.scatter(lambda low, high: whole[low:high], None if shard.box is None else shard_param.data(),
                  shard.whole_shape, param.dtype)
    set_shard(shard_param, shard)
    return shard_param
