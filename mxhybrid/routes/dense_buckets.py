"""Sums the dense gradients that a Trainer hands over together in buckets: many small arrays in few sums.

The cost of a step then depends on bytes, not on the number of parameters: values are collected, summed, used for
updates and written to outputs without a Python call for each parameter, as far as MXNet's own bookkeeping allows.  See
:mod:`mxhybrid.lane.gradient_bucket`.  If Horovod makes the dense sums, parameters are summed one by one: Horovod itself
combines them.
"""
import collections
import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

from ..comm.collective import Collective
from ..comm.float16 import OverflowAlarm
from ..lane.gradient_bucket import Copies, DenseUpdate, GradientBucket
from ..native.arrays import host_view, is_same
from ..native.dense_rules import begin_update
from .dense_allreduce import DenseAllreduce

#: Bytes of gradients in a bucket, unless one gradient has more.  The first bucket is summed while backward computes the
#: gradients of others.
BUCKET_BYTES = 2 << 20

#: Largest number of selections of parameters with buckets, which take memory.  A step that leaves parameters out is a
#: further selection.
MOST_SELECTIONS = 4

#: A route, the gradients of each device, and the outputs for its value.
Work = Tuple[Any, List[Any], List[Any]]


class DenseBuckets:
    """The buckets of one store; `prefix` begins their names."""

    def __init__(self, collective: Collective, prefix: str):
        self._collective, self._prefix = collective, prefix
        #: Buckets by the keys of a selection.
        self._buckets: Dict[Tuple[Any, ...], List['RouteBucket']] = {}
        #: The work of the last call, its buckets with arrays and outputs by route, and the work without a bucket.
        self._last: Any = None
        self._bucket_work: List[Tuple['RouteBucket', List[Any]]] = []
        self._rest: List[Work] = []

    def pushpull(self, work: List[Work], updater: Any, priority: int,
                 pending: Optional[List['PendingSums']] = None) -> List[Work]:
        """Sum gradients in buckets, update with the sums or keep them, and write the values to outputs.

        Returns the work that has no bucket.  The first bucket has the highest priority, which is `priority`.  With a
        list `pending`, buckets whose sums are to take the place of their gradients are appended to it instead.
        """
        if work is not self._last:
            self._group(work)
            self._last = work
        for index, (bucket, arrays) in enumerate(self._bucket_work):
            bucket.pushpull(arrays, updater, priority - index, pending)
        return self._rest

    def _group(self, work: List[Work]) -> None:
        """Divide `work`, which is the same on all workers, into buckets and the rest."""
        self._bucket_work, self._rest = [], work
        if not self._collective.sums_together or any(array.context.device_type != 'cpu'
                                                     for _, arrays, outs in work for array in arrays + outs):
            return
        selected = {route.key: (route, arrays, outs) for route, arrays, outs in work
                    if type(route) is DenseAllreduce and route.rows * route.width}
        # Sorted by the types of their values; the order is otherwise kept.
        routes = sorted((route for route, _, _ in selected.values()),
                        key=lambda route: (route.dtype.name, route.wire_dtype.name))
        keys = tuple(selected)
        buckets = self._buckets.get(keys)
        if buckets is None or not is_same([route for bucket in buckets for route in bucket.routes], routes):
            if len(selected) < 2 or buckets is None and len(self._buckets) >= MOST_SELECTIONS:
                return
            number = len(self._buckets)
            buckets = self._buckets[keys] = [
                RouteBucket(self._collective, '%s.bucket%d.%d' % (self._prefix, number, index), bucket_routes)
                for index, bucket_routes in enumerate(divide(routes))]
        self._bucket_work = [(bucket, [selected[route.key][1:] for route in bucket.routes]) for bucket in buckets]
        self._rest = [(route, arrays, outs) for route, arrays, outs in work if route.key not in selected]


def divide(routes: List[Any]) -> List[List[Any]]:
    """Return the routes of each bucket: neighbours of one type."""
    buckets: List[List[Any]] = []
    room_bytes = 0
    for route in routes:
        size_bytes = route.rows * route.width * route.buffer_dtype.itemsize
        same_type = buckets and (buckets[-1][0].dtype, buckets[-1][0].wire_dtype) == (route.dtype, route.wire_dtype)
        if not same_type or size_bytes > room_bytes:
            buckets.append([])
            room_bytes = BUCKET_BYTES
        buckets[-1].append(route)
        room_bytes -= size_bytes
    return buckets


class PendingSums(NamedTuple):
    """The sums of a bucket that the gradients have not received yet.

    An update of the weights writes them there, see :class:`mxhybrid.lane.gradient_bucket.DenseUpdate`, or
    :meth:`write`.
    """

    keys: List[Any]
    gradients: List[Any]
    bucket: GradientBucket
    priority: int
    write: Callable[[], None]


class RouteBucket:
    """Routes whose gradients are summed together."""

    def __init__(self, collective: Collective, name: str, routes: List[Any]):
        self._collective, self._name, self.routes = collective, name, routes
        self._dtype, buffer_dtype = routes[0].dtype, routes[0].buffer_dtype
        sizes = [route.rows * route.width for route in routes]
        self._buffer = collective.reduction.buffer(name, sum(sizes), buffer_dtype, quantized=routes[0].is_quantized)
        ends = np.cumsum(sizes)
        #: The sums in the type of the buffer, which all workers of the host read.
        self._sums = [self._buffer.output[int(end - size):int(end)].reshape(route.shape)
                      for route, end, size in zip(routes, ends, sizes)]
        #: The sums in the type of the weights, for this worker.
        self._private_sums: List[Any] = []
        self._alarms = [OverflowAlarm(route.name) for route in routes] if buffer_dtype != self._dtype else []
        #: The traffic of a step: steps, rows, and bytes.
        self._traffic = [(1, route.rows, moved['pushed'], moved['pulled'], moved['saved'])
                         for route in routes for moved in [route.moved_by_sum]]
        self._keys = [route.key for route in routes]
        self._pending: Optional[PendingSums] = None
        # The last work, its outputs, and its gradients if they are on one device.
        self._work: Any = None
        self._outs: List[List[Any]] = []
        self._gradients: Optional[List[Any]] = None
        self._scratch: Dict[int, Any] = {}
        self._bucket: Any = None
        self._targets: Any = None
        self._copies: Dict[str, Copies] = collections.defaultdict(Copies)

    def pushpull(self, work: List[Tuple[List[Any], List[Any]]], updater: Any, priority: int,
                 pending: Optional[List['PendingSums']] = None) -> None:
        """Push and pull all routes, see :meth:`mxhybrid.routes.dense_allreduce.DenseAllreduce.pushpull`."""
        self._warn()
        if work is not self._work:  # a step that repeats the last one has the same list
            self._work, self._outs = work, [outs for _, outs in work]
            on_one_device = all(len(arrays) == 1 for arrays, _ in work)
            self._gradients = [arrays[0] for arrays, _ in work] if on_one_device else None
            self._pending = None
        gradients = self._gradients
        if gradients is None:
            gradients = [arrays[0] if len(arrays) == 1 else self._over_devices(index, arrays)
                         for index, (arrays, _) in enumerate(work)]
        if self._bucket is None or not is_same(self._bucket.gradients, gradients):
            self._bucket = GradientBucket(self._buffer, gradients, self._dtype)
        self._collective.allreduce_bucket(self._bucket, self._buffer.input, self._name, priority)
        for route, traffic in zip(self.routes, self._traffic):
            route.sum_name = self._name
            route.traffic.add(*traffic)
        outs = self._outs
        if updater is not None:
            values = [route.held() for route in self.routes]
            outs = self._update(updater, values, outs, priority)
        else:
            values = [route.value_of_sum(targets) for route, targets in zip(self.routes, outs)]
            write = functools.partial(self._copies['values'].run, self._sums, values)
            last = self._pending
            if pending is not None and is_same(values, gradients) and (
                    last is not None or all(len(targets) == 1 for targets in outs)):
                if last is None or last.bucket is not self._bucket or last.priority != priority:
                    last = self._pending = PendingSums(self._keys, self._bucket.gradients, self._bucket, priority,
                                                       write)
                pending.append(last)
                return
            write()
        pairs = [(value, out) for value, targets in zip(values, outs) for out in targets if out is not value]
        if pairs:
            self._copies['outs'].run(*map(list, zip(*pairs)))

    def _over_devices(self, index: int, arrays: List[Any]) -> Any:
        if index not in self._scratch:
            self._scratch[index] = mx.nd.empty(arrays[0].shape, ctx=arrays[0].context, dtype=self._dtype)
        return mx.nd.add_n(*[array.as_in_context(arrays[0].context) for array in arrays], out=self._scratch[index])

    def _update(self, updater: Any, weights: List[Any], outs: List[List[Any]], priority: int) -> List[List[Any]]:
        """Update weights with the sums; return the outputs that have not received them.

        The update itself writes the first output of each weight if it can: then no operation for each weight reads the
        weight again.
        """
        update = begin_update(updater, self._keys, weights[0].context, self._dtype)
        if update is None:
            updater(self._keys, self._own_sums(), weights)
            return outs
        copies = [targets[0] if targets and targets[0] is not weight else None
                  for targets, weight in zip(outs, weights)]
        if self._targets is None or not self._targets.is_of(weights, update.states, copies):
            self._targets = DenseUpdate(weights, update.states, copies=copies)
        self._targets.start(update, priority, self._bucket)
        return [targets[1:] for targets in outs] if self._targets.writes_copies else outs

    def _own_sums(self) -> List[Any]:
        """Return the sums in the type of the weights, as copies of this worker: some optimizers write to gradients."""
        if not self._private_sums:
            self._private_sums = [mx.nd.empty(route.shape, dtype=self._dtype, ctx=mx.cpu()) for route in self.routes]
        self._copies['own'].run(self._sums, self._private_sums)
        return self._private_sums

    def _warn(self) -> None:
        """Check the sums of the last call for overflows; they are complete, so this does not wait."""
        if self._alarms and not self._buffer.is_finite():
            for alarm, sums in zip(self._alarms, self._sums):
                alarm.look(host_view(sums).reshape(-1), 'summed gradients of an earlier step')
