"""Dense gradients that a Trainer hands over together are summed together: many small arrays in few sums.

What a step costs then depends on bytes, not on the number of parameters: values are gathered, summed, used to update
and written out without Python for each parameter, as far as MXNet's own bookkeeping allows.  How, says
:mod:`mxhybrid.lane.gradient_bucket`; where dense sums are Horovod's, parameters go one by one, as that gathers by
itself.
"""
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from ..comm.float16 import OverflowAlarm
from ..lane.gradient_bucket import Copies, GradientBucket, UpdateTargets, is_same
from ..native.arrays import host_view
from ..native.dense_rules import begin_update
from .costs import ring_share
from .dense_allreduce import DenseAllreduce
from .wire import Sums

#: Bytes of gradients in one sum, unless one alone has more: the first is on its way while backward computes others.
BUCKET_BYTES = 2 << 20

#: Selections of parameters for which there are buckets; a step that leaves some out may be one more.  They take memory.
MOST_SELECTIONS = 4

#: A route, what each device computed, and where its value is wanted.
Work = Tuple[Any, List[Any], List[Any]]


class DenseBuckets:
    """The buckets of one store; `prefix` starts their names."""

    def __init__(self, collective: Sums, prefix: str):
        self._collective, self._prefix = collective, prefix
        #: By the keys of a selection.
        self._known: Dict[Tuple[Any, ...], List['RouteBucket']] = {}
        #: The work at hand, or before; buckets with arrays and outputs by route, and what is left.
        self._last: Any = None
        self._parts: List[Tuple['RouteBucket', List[Any]]] = []
        self._left: List[Work] = []

    def pushpull(self, work: List[Work], updater: Any, priority: int) -> List[Work]:
        """Sum what can go together, update with the sums or keep them, and write values out; returns what is left.  The
        first have the highest priority, which is `priority`.
        """
        if work is not self._last:
            self._group(work)
            self._last = work
        for place, (bucket, arrays) in enumerate(self._parts):
            bucket.pushpull(arrays, updater, priority - place)
        return self._left

    def _group(self, work: List[Work]) -> None:
        """Find out what goes together of `work`, equal on all workers, and what is left."""
        self._parts, self._left = [], work
        if not self._collective.sums_together or any(array.context.device_type != 'cpu'
                                                     for _, arrays, outs in work for array in arrays + outs):
            return
        together = {route.key: (route, arrays, outs) for route, arrays, outs in work
                    if type(route) is DenseAllreduce and route.rows * route.width}
        # By the types of their values, else as they are.
        routes = sorted((route for route, _, _ in together.values()),
                        key=lambda route: (route.dtype.name, route.wire.name))
        selection = tuple(together)
        buckets = self._known.get(selection)
        if buckets is None or not is_same([route for bucket in buckets for route in bucket.routes], routes):
            if len(together) < 2 or buckets is None and len(self._known) >= MOST_SELECTIONS:
                return
            number = len(self._known)
            buckets = self._known[selection] = [
                RouteBucket(self._collective, '%s.bucket%d.%d' % (self._prefix, number, place), chosen)
                for place, chosen in enumerate(_cut(routes))]
        self._parts = [(bucket, [together[route.key][1:] for route in bucket.routes]) for bucket in buckets]
        self._left = [one for one in work if one[0].key not in together]


def _cut(routes: List[Any]) -> List[List[Any]]:
    """Put neighbours of one type together."""
    found: List[List[Any]] = []
    room = 0
    for route in routes:
        size = route.rows * route.width * route.wire.itemsize
        same = found and (found[-1][0].dtype, found[-1][0].wire) == (route.dtype, route.wire)
        if not same or size > room:
            found.append([])
            room = BUCKET_BYTES
        found[-1].append(route)
        room -= size
    return found


class RouteBucket:
    """Routes whose gradients are summed together."""

    def __init__(self, collective: Sums, name: str, routes: List[Any]):
        self._collective, self._name, self.routes = collective, name, routes
        self._dtype, wire = routes[0].dtype, routes[0].wire
        sizes = [route.rows * route.width for route in routes]
        self._buffer = collective.allreduce_buffer(name, sum(sizes), wire)
        ends = np.cumsum(sizes)
        #: The sums as they travel, which all workers of the host read, and as the updater takes them.
        self._sums = [self._buffer.output[int(end - size):int(end)].reshape(route.shape)
                      for route, end, size in zip(routes, ends, sizes)]
        self._own: List[Any] = []
        self._alarms = [OverflowAlarm(route.name) for route in routes] if wire != self._dtype else []
        self._moved = [ring_share(size * wire.itemsize, collective.size) for size in sizes]
        self._scratch: Dict[int, Any] = {}
        self._bucket: Any = None
        self._targets: Any = None
        self._copies: Dict[str, Copies] = {}

    def pushpull(self, work: List[Tuple[List[Any], List[Any]]], updater: Any, priority: int) -> None:
        """As :meth:`mxhybrid.routes.dense_allreduce.DenseAllreduce.pushpull`, for all routes."""
        self._warn()
        gradients = [arrays[0] if len(arrays) == 1 else self._over_devices(place, arrays)
                     for place, (arrays, _) in enumerate(work)]
        if self._bucket is None or not is_same(self._bucket.gradients, gradients):
            self._bucket = GradientBucket(self._buffer, gradients, self._dtype)
        self._collective.allreduce_bucket(self._bucket, self._buffer.input, self._name, priority)
        for route, moved in zip(self.routes, self._moved):
            route.traffic.add(rows=route.rows, pushed=moved, pulled=moved)
        outs = [outs for _, outs in work]
        if updater is not None:
            values = [route.held() for route in self.routes]
            self._update(updater, values, priority)
        else:
            values = [route.value_of_sum(targets) for route, targets in zip(self.routes, outs)]
            self._copy('values', self._sums, values)
        pairs = [(value, out) for value, targets in zip(values, outs) for out in targets if out is not value]
        self._copy('outs', [value for value, _ in pairs], [out for _, out in pairs])

    def _over_devices(self, place: int, arrays: List[Any]) -> Any:
        if place not in self._scratch:
            self._scratch[place] = mx.nd.empty(arrays[0].shape, ctx=arrays[0].context, dtype=self._dtype)
        return mx.nd.add_n(*[array.as_in_context(arrays[0].context) for array in arrays], out=self._scratch[place])

    def _update(self, updater: Any, weights: List[Any], priority: int) -> None:
        keys = [route.key for route in self.routes]
        update = begin_update(updater, keys, weights[0].context, self._dtype)
        if update is None:
            updater(keys, self._own_sums(), weights)
            return
        if self._targets is None or not self._targets.is_of(weights, update.states):
            self._targets = UpdateTargets(weights, update.states)
        self._bucket.update(update.rule, update.settings, self._targets, update.rates, priority)

    def _own_sums(self) -> List[Any]:
        """The sums in the type of the weights, for this worker alone: some optimizers write to what they are given."""
        if not self._own:
            self._own = [mx.nd.empty(route.shape, dtype=self._dtype, ctx=mx.cpu()) for route in self.routes]
        self._copy('own', self._sums, self._own)
        return self._own

    def _copy(self, what: str, sources: List[Any], targets: List[Any]) -> None:
        known = self._copies.get(what)
        if known is None or not known.is_of(sources, targets):
            known = self._copies[what] = Copies(sources, targets)
        known.run()

    def _warn(self) -> None:
        """Look at the sums before these, which are long there, so that looking does not wait."""
        if self._alarms and not self._buffer.is_finite():
            for alarm, one in zip(self._alarms, self._sums):
                alarm.look(host_view(one).reshape(-1), 'summed gradients of an earlier step')
