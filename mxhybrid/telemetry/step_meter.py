"""Measures the calls of one store and the steps of its Trainer.

A step ends with ``Trainer.update``.  In the trace of a worker, its main thread has these events::

    | forward/backward              | step 7                          |
    |    [row_sparse_pull words]    | [exchange            ] [update] |
    |                               |  [push words] [pushpull out]    |

MXNet computes asynchronously: *forward/backward* is the time until the Trainer starts the exchange.  The computation
may go on during the first call that needs a gradient.
"""
import contextlib
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

from .recorder import OFF, AnyRecorder, now
from .step_outputs import StepOutputs
from .traffic import Network, moved_between


class NoMeter:
    """Measures nothing, by the methods of a :class:`StepMeter`."""

    enabled = False

    def call(self, name: str, route: Any = None, parameter: str = '') -> Any:
        return OFF

    def allreduce_grads(self) -> Any:
        return OFF

    def update(self) -> Any:
        return OFF

    def show_tables(self, tables: Callable[[], List[Any]]) -> None:
        """Do not record the dynamic tables that `tables` returns."""

    def note(self, **values: Any) -> None:
        """Record nothing."""

    def over(self, routes: Dict[Any, Any]) -> 'NoMeter':
        return self


#: The meter of a job without records.
NO_METER = NoMeter()

#: Rows and bytes so far by name.
Counts = Dict[str, int]


def _counts(route: Any) -> Counts:
    traffic = route.traffic
    return {'rows': traffic.rows, 'pushed': traffic.pushed, 'pulled': traffic.pulled}


def _difference(after: Counts, before: Counts) -> Counts:
    """Return the difference of counts; a smaller count than before has begun at 0 again."""
    return {name: count - before.get(name, 0) if count >= before.get(name, 0) else count
            for name, count in after.items()}


class _Call:
    """Times a call of the store, and counts the bytes that it moved."""

    __slots__ = ('_meter', '_name', '_route', '_parameter', '_before', '_begin')

    def __init__(self, meter: 'StepMeter', name: str, route: Any, parameter: str):
        self._meter, self._name, self._route, self._parameter = meter, name, route, parameter

    def __enter__(self) -> None:
        self._before = _counts(self._route) if self._route is not None else {}
        self._begin = now()

    def __exit__(self, *_: Any) -> None:
        end = now()
        meter, route = self._meter, self._route
        meter.in_store += end - self._begin
        if not meter.trace.enabled:
            return
        args: Dict[str, Any] = {'parameter': self._parameter, 'step': meter.step}
        category = self._name
        if route is not None:
            route = meter.routes.get(route.key, route)  # the key may have a new route
            args.update(_difference(_counts(route), self._before), parameter=route.name, route=route.kind)
            category += ',' + route.kind
        meter.trace.complete('%s %s' % (self._name, args['parameter']), self._begin, end, category, args)


class StepMeter:
    """Measures store `number` of this process, whose `routes`, by key, are added during training.

    `network` returns the bytes that this host has sent and received so far, None if they are not counted.
    """

    enabled = True

    def __init__(self, number: int, trace: AnyRecorder, outputs: Optional[StepOutputs], routes: Dict[Any, Any],
                 after_step: Callable[[], None], network: Callable[[], Optional[Network]]):
        self.trace = trace
        self.routes = routes
        #: Number of the current step.
        self.step = 1
        #: Nanoseconds in calls of the store in this step.
        self.in_store = 0
        self._number = number
        self._outputs = outputs
        self._after_step = after_step
        self._network, self._network_before = network, network()
        self._last_end = now()
        self._begin: Optional[int] = None
        self._before: Dict[Any, Tuple[Any, Counts]] = {}
        self._tables: Callable[[], List[Any]] = list
        self._notes: Dict[str, Any] = {}

    def call(self, name: str, route: Any = None, parameter: str = '') -> _Call:
        """Return a context manager for a call of the store for one key."""
        return _Call(self, name, route, parameter)

    def allreduce_grads(self) -> ContextManager[None]:
        """Return a context manager for ``Trainer.allreduce_grads``, with which a step begins."""
        return self._half_of_step('exchange')

    def update(self) -> ContextManager[None]:
        """Return a context manager for ``Trainer.update``, with which a step ends."""
        return self._half_of_step('update')

    @contextlib.contextmanager
    def _half_of_step(self, name: str) -> Iterator[None]:
        begin = now()
        if self._begin is None:
            self._begin = begin
            self.trace.complete('forward/backward', self._last_end, begin, 'step', {'step': self.step})
        try:
            yield
        finally:
            end = now()
            self.trace.complete(name, begin, end, 'step', {'step': self.step})
        if name == 'update':
            self._end_step(self._begin, end)

    def show_tables(self, tables: Callable[[], List[Any]]) -> None:
        """Record the dynamic tables that `tables` returns, too, which have the attributes of routes."""
        self._tables = tables

    def note(self, **values: Any) -> None:
        """Add JSON values to the record of the step that follows."""
        self._notes.update(values)

    def over(self, routes: Dict[Any, Any]) -> 'StepMeter':
        """Return the meter for a store that replaces this one, and continues its steps."""
        self.routes = routes
        return self

    def _end_step(self, begin: int, end: int) -> None:
        """Note that all parameters were updated."""
        self.trace.complete('step %d' % self.step, begin, end, 'step', {'step': self.step, 'store': self._number})
        if self._outputs is not None:
            self._outputs.write(self._record(end))
        self.step += 1
        self.in_store, self._begin, self._last_end = 0, None, end
        self._after_step()

    def _record(self, end: int) -> Dict[str, Any]:
        routes: Dict[str, Dict[str, int]] = {}
        alpha, tables = {}, {}
        before, self._before = self._before, {}
        counted = [(route, _counts(route)) for route in list(self.routes.values())]
        counted += [(table, {**_counts(table), **table.cache_counts()}) for table in self._tables()]
        for route, after in counted:
            former_traffic, former_counts = before.get(route.key, (None, {}))
            moved = _difference(after, former_counts if former_traffic is route.traffic else {})
            self._before[route.key] = route.traffic, after
            total = routes.setdefault(route.kind, dict.fromkeys(moved, 0))
            for name, count in moved.items():
                total[name] = total.get(name, 0) + count
            if not route.all_rows and (route.has_table or moved['rows']):
                if route.rows:  # a dynamic table may have any number
                    alpha[route.name] = moved['rows'] / route.rows
                tables[route.name] = dict(moved, route=route.kind)
        record = {'step': self.step, 'store': self._number, 'wall': round(time.time(), 6),
                  'seconds': (end - self._last_end) / 1e9, 'store_seconds': self.in_store / 1e9, 'routes': routes,
                  'alpha': alpha, 'tables': tables, **self._notes}
        self._notes = {}
        network = self._network()
        if network is not None and self._network_before is not None:
            record['network'] = moved_between(self._network_before, network)
        self._network_before = network
        return record
