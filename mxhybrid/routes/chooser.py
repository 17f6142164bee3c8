"""Chooses between servers and allreduce for each table, by measurement, in the first steps of a job.

For a table that may take either route (setting ``routes``), the row ids that workers push are gathered in a few of its
first steps.  Then all workers time both routes (:mod:`mxhybrid.routes.probe`, once per job).  Worker 0 predicts the
cost of a step of this table by either route (:mod:`mxhybrid.routes.costs`) and decides for all workers.  A table that
goes to allreduce moves in that step, with its weights and optimizer state, on all workers.
"""
from collections import Counter
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np

from ..base.errors import SettingError
from ..base.log import get_logger
from ..base.machine import available_bytes
from ..base.text import size_text
from ..native.optimizer_state import state_widths
from ..servers.partitioning import id_dtype
from .costs import SMALL_TABLE_BYTES, Choice, Estimate, Network, Use, estimate, shares_of_hosts, weigh
from .dense_allreduce import DenseAllreduce
from .probe import calibrate
from .replicated import Replicated
from .route import ParameterSpec, Route, RouteContext
from .row_allreduce import RowAllreduce
from .row_sums import MAX_ELEMENTS, buffer_elements
from .server_gradients import ServerGradients
from .server_weights import ServerWeights

logger = get_logger(__name__)

#: Number of pushes of a table before the decision.
MEASURED_STEPS = 10
#: Pushes, from 0, whose row ids are gathered; the first push may be unlike all others.
SAMPLED = (2, 5, 8)
#: Key of the calibrated network among the job's measurements.
NETWORK = 'network'
#: Part of the free memory of a host that tables may take if allreduce is measured to be faster, not forced.
MEMORY_PART = 0.5


class _Observations:
    """Observed pushes and pulls of a table."""

    def __init__(self) -> None:
        self.pushes = 0
        self.pulled = 0
        self.ids: List[List[np.ndarray]] = []
        #: Pushes of other keys since the last one to this table.
        self.passed_over: Dict[Any, int] = Counter()


class Chooser:
    """Decides for the tables of a store.

    `hosts` has the host of each worker, `groups` the ranks of workers whose rows travel together.  The stores of a job
    share `measured`.
    """

    def __init__(self, context: RouteContext, hosts: Sequence[str], groups: List[List[int]], measured: Dict[str, Any]):
        self._context, self._measured = context, measured
        self._collective, self._servers = context.collective, context.servers
        #: Observations of tables that are not decided yet, by key.
        self._undecided: Dict[Any, _Observations] = {}
        order = list(dict.fromkeys(hosts))
        #: Host of every worker, from 0.
        self._hosts = [order.index(host) for host in hosts]
        self._groups = groups
        #: Host of every group.
        self._clients = [self._hosts[group[0]] for group in self._groups]

    def waits(self, key: Any) -> bool:
        """Return whether a table is not decided yet; to be called before every push, with its key.

        A table without a push for as many steps as are measured is not waited for.  It may be decided later.
        """
        for other, observations in self._undecided.items():
            if other == key:
                observations.passed_over.clear()
            else:
                observations.passed_over[key] += 1
        return any(max(observations.passed_over.values(), default=0) <= MEASURED_STEPS
                   for observations in self._undecided.values())

    def start(self, key: Any, name: str, value: Any, optimizer: Any) -> Route:
        """Return the route of a new parameter, of which nothing has been sent yet.

        SettingError if it is forced to allreduce, but does not fit into memory.
        """
        if value.stype != 'row_sparse':
            return DenseAllreduce(key, name, value, self._context)
        if self._context.settings.route_for(name) != 'allreduce':
            return ServerWeights(key, name, value, self._context)
        spec = ParameterSpec(key, name, value)
        state = [] if optimizer is None else state_widths(optimizer, key, spec.shape, spec.dtype)
        self._must_fit(spec, [spec.width] + state)
        return Replicated(key, name, value, self._context)

    def _must_fit(self, spec: ParameterSpec, widths: List[int]) -> None:
        need = bytes_needed(spec, widths)
        free = self._free_per_worker(self._collective.allgather_json(available_bytes(), self._tag(spec, 'memory')))
        if need > free:
            raise SettingError('routes: %s is forced to allreduce, for which every worker needs %s, but has %s free: '
                               'leave it to the servers' % (spec.name, size_text(need), size_text(free)))

    def _free_per_worker(self, free_bytes: List[int]) -> float:
        """Return the free bytes per worker on the fullest host; `free_bytes` has those of the host of each worker."""
        workers = Counter(self._hosts)
        return min(float(free) / workers[host] for free, host in zip(free_bytes, self._hosts))

    def before_push(self, route: Route, optimizer: Any) -> Route:
        """Return the route for the rows that are about to be pushed, which may be a new one (collective)."""
        if route.choice is not None:
            return route
        observations = self._undecided.get(route.key)
        if observations is None:
            return self._begin(route)
        if observations.pushes < MEASURED_STEPS:
            return route
        del self._undecided[route.key]
        return self._decide(route, observations, optimizer)

    def _begin(self, route: Route) -> Route:
        """Return the route for the first rows of a parameter."""
        setting = self._context.settings.route_for(route.name)
        if type(route) is DenseAllreduce:  # it takes no rows
            if setting == 'allreduce':
                self._must_fit(route, [])
                route = RowAllreduce(route)
            else:
                route = ServerGradients(route)
        if setting != 'auto':
            route.choice = Choice(setting, 'forced')
        elif route.rows * route.width * route.dtype.itemsize < SMALL_TABLE_BYTES:
            route.choice = Choice('servers', 'small')
        else:
            self._undecided[route.key] = _Observations()
        return route

    def after_push(self, route: Route, ids: np.ndarray) -> None:
        """Note the rows that this worker pushed (collective)."""
        observations = self._undecided.get(route.key)
        if observations is None:
            return
        if observations.pushes in SAMPLED:
            observations.ids.append(self._collective.allgather(ids, self._tag(route, 'ids'), id_dtype(route.rows)))
        observations.pushes += 1

    def pulled(self, route: Route, rows: int) -> None:
        """Note the number of rows that this worker pulled."""
        observations = self._undecided.get(route.key)
        if observations is not None:
            observations.pulled += rows

    def _tag(self, route: ParameterSpec, operation: str) -> str:
        return '%s.%s' % (self._context.tag(route.key, route.name), operation)

    def _decide(self, route: Route, observations: _Observations, optimizer: Any) -> Route:
        use_here = {'pulled': observations.pulled / observations.pushes, 'free': available_bytes()}
        everyone = self._collective.allgather_json(use_here, self._tag(route, 'use'))
        network = self._network()
        decision: Any = None
        if self._collective.rank == 0:
            use, touched, union = self._use(route, observations, [numbers['pulled'] for numbers in everyone])
            free = self._free_per_worker([numbers['free'] for numbers in everyone])
            fits = bytes_needed(route, route.widths_to_move()) <= MEMORY_PART * free and route.can_move()
            choice = weigh(estimate(use, network), touched, union, fits)
            decision = [choice.route, choice.because, touched, union, vars(choice.estimate)]
        chosen, because, touched, union, predicted = self._collective.allgather_json(
            decision, self._tag(route, 'decision'))[0]
        if chosen == 'allreduce':
            route = route.to_allreduce(optimizer)
        choice = Choice(chosen, because, touched, union, Estimate(**predicted))
        route.choice = choice
        if self._collective.rank == 0:
            logger.info('%s', _log_line(route.name, choice))
        return route

    def _network(self) -> Network:
        """Return the costs of both routes in this job, measured once (collective)."""
        if NETWORK not in self._measured:
            shares = self._shares(dict.fromkeys(range(self._servers.num_servers), 1))
            self._measured[NETWORK] = calibrate(self._servers, self._collective, self._clients, shares,
                                                self._context.prefix + '.probe')
            logger.debug('calibrated: %s', self._measured[NETWORK])
        return self._measured[NETWORK]

    def _shares(self, rows_on: Dict[int, int]) -> List[float]:
        return shares_of_hosts(rows_on, max(self._hosts) + 1, self._servers.num_servers)

    def _use(self, route: Route, observations: _Observations, pulled_by_rank: List[float]
             ) -> Tuple[Use, float, float]:
        """Return a table's use in a step, and the parts of its rows that one worker, on average, and all touch."""
        samples = observations.ids
        union = _mean(_count(ids) for ids in samples)
        pushed_by_rank = [_mean(len(ids[rank]) for ids in samples) for rank in range(len(self._hosts))]
        pushed = [_mean(_count([ids[rank] for rank in group]) for ids in samples) for group in self._groups]
        if route.sparse:
            # A worker has pulled the rows that it pushes.  So the rows that the workers of a host pull overlap as much
            # as the rows that they push.
            pulled = [sum(pulled_by_rank[rank] for rank in group) * group_rows
                      / max(1.0, sum(pushed_by_rank[rank] for rank in group))
                      for group, group_rows in zip(self._groups, pushed)]
        else:
            pulled = [union] * len(pushed)
        gathered = 0.0 if route.sparse else sum(pushed_by_rank)
        table, partitioning = route.server_table, route.partitioning
        assert table is not None and partitioning is not None
        rows_on: Dict[int, int] = Counter()
        for part, server in enumerate(partitioning.servers):
            rows_on[server] += partitioning.shape(part)[0]
        use = Use(route.rows, route.width, route.buffer_dtype.itemsize, table.row_bytes, pushed, pulled, self._clients,
                  self._shares(rows_on), max(Counter(partitioning.servers).values()), gathered,
                  len(self._hosts))
        return use, _mean(pushed_by_rank) / route.rows, union / route.rows


def _count(ids: List[np.ndarray]) -> int:
    """Return the number of rows that several workers together touch."""
    return len(np.unique(np.concatenate(ids)))


def _mean(counts: Iterable[float]) -> float:
    values = list(counts)
    return sum(values) / len(values)


def bytes_needed(spec: ParameterSpec, widths: List[int]) -> float:
    """Return the bytes that a table takes in each worker by allreduce, infinity if MXNet has no array of that size.

    `widths` are the elements per row of the arrays that move there, weights and state; the buffer of the sum is added.
    """
    elements = buffer_elements(spec.rows, spec.width)
    if elements > MAX_ELEMENTS:
        return float('inf')
    return float((elements + spec.rows * sum(widths)) * spec.dtype.itemsize)


def _log_line(name: str, choice: Choice) -> str:
    """Return a line about a decision that was measured."""
    assert choice.union is not None and choice.estimate is not None
    text = ('%s travels by %s: a step touches %.3g%% of its rows, and would take %.1f ms by servers, %.1f ms by '
            'allreduce' % (name, choice.route, 100 * choice.union, 1e3 * choice.estimate.servers_s,
               1e3 * choice.estimate.allreduce_s))
    return text + (', where it does not fit' if choice.because == 'memory' else '')
