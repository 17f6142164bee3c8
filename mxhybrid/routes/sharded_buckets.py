"""Buckets of dense gradients for sharded updates: each worker sums and updates a shard, and gathers the rest.

This is stage 1 of ZeRO (Rajbhandari et al., SC 2020), with shards that are contiguous rows of weights:

1. A reduce-scatter gives each worker the sums of its shard of the bucket, or an allreduce gives it all sums.
2. The worker copies its rows of the weights into the input of the bucket's buffer, and updates them there, by compiled
   kernels if the optimizer has them.  The optimizer keeps state for these rows only.
3. An allgather gives all workers the rows of all workers, which they copy to their weights.

The first and the third step move the bytes of one allreduce.  Rows are copied by MXNet's operators, because weights may
be in layouts of oneDNN.
"""
import bisect
import collections
import itertools
import math
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx

from ..comm.collective import Collective
from ..lane.gradient_bucket import Copies, DenseUpdate, GradientBucket
from ..native.arrays import is_same
from ..native.dense_rules import begin_update
from .costs import ring_share
from .dense_allreduce import DenseAllreduce
from .dense_buckets import divide


class Shard(NamedTuple):
    """The rows of a weight that this worker updates, from `first` to before `last`."""

    first: int
    last: int
    #: The position of its first element in the buffer.
    offset: int
    #: The rows of the weight, in the input of the buffer, and of its summed gradient, in the output.
    weight: Any
    gradient: Any


def shard_ends(shapes: Sequence[Tuple[int, ...]], count: int) -> List[int]:
    """Return the ends of `count` shards of arrays that lie one after the other, in elements.

    Shards are as equal as whole rows allow.
    """
    starts = [0, *itertools.accumulate(map(math.prod, shapes))]
    ends = []
    for number in range(1, count):
        ideal = starts[-1] * number // count
        index = bisect.bisect_right(starts, ideal) - 1
        width = math.prod(shapes[index][1:])
        ends.append(starts[index] + int((ideal - starts[index]) / width + 0.5) * width)
    return ends + starts[-1:]


def sharded_buckets(collective: Collective, name: str, routes: Sequence[Any]) -> List['ShardedBucket']:
    """Return buckets of those of the routes that sum dense gradients, floating-point numbers (on all workers)."""
    dense = [route for route in routes if type(route) is DenseAllreduce and route.rows * route.width
             and route.dtype.kind == 'f']
    return [ShardedBucket(collective, '%s.%d' % (name, index), bucket_routes) for index, bucket_routes
            in enumerate(divide(sorted(dense, key=lambda route: route.dtype.name)))]


class ShardedBucket:
    """The bucket of some routes, neighbours of one type."""

    def __init__(self, collective: Collective, name: str, routes: List[Any]):
        self._collective, self._name, self.routes = collective, name, routes
        #: The keys of the routes.
        self.keys: List[Any] = [route.key for route in routes]
        self._dtype = routes[0].dtype
        self._sizes = [route.rows * route.width for route in routes]
        ends = shard_ends([route.shape for route in routes], collective.size)
        self._buffer = collective.reduction.buffer(name, sum(self._sizes), self._dtype, ends)
        position = collective.reduction.workers_by_host.index(collective.rank)
        low, high = ([0] + ends)[position], ends[position]
        #: Sums of gradients, or updated weights, which all workers of the host read, by key.
        self._outputs: Dict[Any, Any] = {}
        #: The shards of this worker, by key.
        self.shards: Dict[Any, Shard] = {}
        start = 0
        for route, size in zip(routes, self._sizes):
            self._outputs[route.key] = self._buffer.output[start:start + size].reshape(route.shape)
            first, last = max(low, start), min(high, start + size)
            if first < last:
                rows = (first - start) // route.width, (last - start) // route.width
                shape = (rows[1] - rows[0],) + tuple(route.shape[1:])
                self.shards[route.key] = Shard(*rows, first, self._buffer.input[first:last].reshape(shape),
                                               self._buffer.output[first:last].reshape(shape))
            start += size
        self._bucket: Any = None
        #: The bucket of the shards that the last compiled update changed, their keys, and the arrays that it wrote.
        self._shard_bucket: Any = None
        self._updated_keys: List[Any] = []
        self._targets: Any = None
        self._copies: Dict[str, Copies] = collections.defaultdict(Copies)
        # Copies of this worker's rows of whole gradients, by key.
        self._rows_of_gradients: Dict[Any, Any] = {}
        #: Whether weights must be gathered before the next sum, see :meth:`gather`.
        self.is_scattered = False
        self._priority = 0

    def sum(self, gradients: Dict[Any, Any], scatter: bool, priority: int) -> None:
        """Sum gradients, by key, over all workers; a key without a gradient is left out.

        With `scatter` each worker gets the sums of its shard only, and the gradients stay; otherwise they become the
        sums.
        """
        arrays = [gradients.get(key) for key in self.keys]
        if self._bucket is None or not is_same(self._bucket.gradients, arrays):
            self._bucket = GradientBucket(self._buffer, arrays, self._dtype, self._sizes)
        self._priority, self.is_scattered = priority, scatter
        self._collective.allreduce_bucket(self._bucket, self._buffer.input, self._name, priority, scatter)
        if not scatter:
            self._copy('sums', gradients)
        for route, size in zip(self.routes, self._sizes):
            if route.key in gradients:
                moved = ring_share(size * self._dtype.itemsize, self._collective.size)
                route.traffic.add(rows=route.rows, pushed=moved, pulled=moved)

    def update(self, updater: Any, gradients: Dict[Any, Any], weights: Dict[Any, Any]) -> None:
        """Update weights by key: this worker's shards by `updater`, the rest by those of other workers.

        `gradients` are sums, unless the last :meth:`sum` has scattered them.
        """
        own_keys = [key for key in weights if key in self.shards]
        if own_keys:
            shards = [self.shards[key] for key in own_keys]
            for key, shard in zip(own_keys, shards):
                self.copy_rows(shard, weights[key], shard.weight)
            if not (self.is_scattered and self._update_compiled(updater, own_keys, shards)):
                sums = [shard.gradient if self.is_scattered else self._gradient_rows(key, shard, gradients[key])
                        for key, shard in zip(own_keys, shards)]
                updater(own_keys, sums, [shard.weight for shard in shards])
        self._gather()
        self._copy('weights', weights)

    def _update_compiled(self, updater: Any, keys: List[Any], shards: List[Shard]) -> bool:
        """Update shards with scattered sums by a compiled kernel; return False if MXNet must make the update."""
        weights = [shard.weight for shard in shards]
        update = begin_update(updater, keys, weights[0].context, self._dtype)
        if update is None:
            return False
        if keys != self._updated_keys:
            self._shard_bucket, self._targets, self._updated_keys = self._bucket_of(shards), None, keys
        if self._targets is None or not self._targets.is_of(weights, update.states):
            self._targets = DenseUpdate(weights, update.states, base=self._buffer.input)
        self._targets.start(update, self._priority, self._shard_bucket)
        return True

    def _bucket_of(self, shards: List[Shard]) -> GradientBucket:
        """Return a bucket of the gradients of shards, in their order in the buffer."""
        gradients: List[Any] = []
        sizes: List[int] = []
        for shard in shards:
            gradients += [None, shard.gradient]
            sizes += [shard.offset - sum(sizes), shard.gradient.size]
        return GradientBucket(self._buffer, gradients, self._dtype, sizes)

    def gather(self, weights: Dict[Any, Any]) -> None:
        """End a step in which gradients were scattered but no weight was updated; `weights` are those of all keys."""
        for key, shard in self.shards.items():
            self.copy_rows(shard, weights[key], shard.weight)
        self._gather()

    def _gather(self) -> None:
        self._collective.gather_ranges(self._buffer, self._name, self._priority)
        self.is_scattered = False

    def _gradient_rows(self, key: Any, shard: Shard, gradient: Any) -> Any:
        """Return this worker's rows of a whole gradient, which the script may have changed since it was summed."""
        rows = self._rows_of_gradients.get(key)
        if rows is None:
            rows = self._rows_of_gradients[key] = mx.nd.empty(shard.weight.shape, dtype=self._dtype, ctx=mx.cpu())
        self.copy_rows(shard, gradient, rows)
        return rows

    @staticmethod
    def copy_rows(shard: Shard, source: Any, target: Any) -> None:
        """Copy the rows of a shard from a whole array."""
        mx.nd.slice_axis(source.as_nd_ndarray(), axis=0, begin=shard.first, end=shard.last, out=target)

    def _copy(self, purpose: str, targets: Dict[Any, Any]) -> None:
        """Copy the outputs of some keys to arrays."""
        self._copies[purpose].run([self._outputs[key] for key in targets], list(targets.values()))
