"""Chooses between servers and allreduce for each table, by measurement, in the first steps of a job.

For a table that may take either way (setting ``routes``) the row ids that workers push are gathered in a few of
its first steps.  Then all workers time both ways (:mod:`mxhybrid.routes.probe`, once per job), worker 0 predicts what
a step of this table costs by either (:mod:`mxhybrid.routes.costs`) and decides for all, and a table that goes to
allreduce moves with its weights and optimizer state at that step, on all workers alike.
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
from .choice import SMALL_TABLE_BYTES, Choice, weigh
from .costs import Estimate, Network, Use, estimate, shares_of_hosts
from .dense_allreduce import DenseAllreduce
from .probe import calibrate
from .replicated import Replicated
from .route import Identity, Means, Route
from .row_allreduce import RowAllreduce
from .row_sums import MAX_ELEMENTS, buffer_elements
from .server_gradients import ServerGradients
from .server_weights import ServerWeights

logger = get_logger(__name__)

#: Pushes of a table before it is decided on.
MEASURED_STEPS = 10
#: Pushes, from 0, whose row ids are gathered: the first may be unlike all others.
SAMPLED = (2, 5, 8)
#: Under which name what the network costs is kept.
NETWORK = 'network'
#: Part of the free memory of a host that tables may take when measurement alone sends them there.
MEMORY_PART = 0.5


class _Measure:
    """What was seen of a table so far."""

    def __init__(self) -> None:
        self.pushes = 0
        self.pulled = 0
        self.ids: List[List[np.ndarray]] = []
        #: Pushes of other keys since the last one to this table.
        self.passed_over: Dict[Any, int] = Counter()


class Chooser:
    """Decides for a store's tables, with the host of each worker and groups of those whose rows travel together; the
    stores of a job share `measured`.
    """

    def __init__(self, means: Means, hosts: Sequence[str], groups: List[List[int]], measured: Dict[str, Any]):
        self._means, self._measured = means, measured
        self._collective, self._servers = means.collective, means.servers
        self._open: Dict[Any, _Measure] = {}
        order = list(dict.fromkeys(hosts))
        #: Host of every worker, from 0.
        self._hosts = [order.index(host) for host in hosts]
        self._groups = groups
        #: Host of every group.
        self._clients = [self._hosts[group[0]] for group in self._groups]

    def waits(self, key: Any) -> bool:
        """Whether a table has yet to be decided on; to be asked before every push, with its key.

        A table that is passed over for as many steps as are measured is not waited for.  It may be decided on later.
        """
        for other, measure in self._open.items():
            if other == key:
                measure.passed_over.clear()
            else:
                measure.passed_over[key] += 1
        return any(max(measure.passed_over.values(), default=0) <= MEASURED_STEPS for measure in self._open.values())

    def start(self, key: Any, name: str, value: Any, optimizer: Any) -> Route:
        """The route of a new parameter, for which nothing has been sent yet.  SettingError where it is forced to
        allreduce, but does not fit into memory.
        """
        if value.stype != 'row_sparse':
            return DenseAllreduce(key, name, value, self._means)
        if self._means.settings.way_for(name) != 'allreduce':
            return ServerWeights(key, name, value, self._means)
        like = Identity(key, name, value)
        state = [] if optimizer is None else state_widths(optimizer, key, like.shape, like.dtype)
        self._must_fit(like, [like.width] + state)
        return Replicated(key, name, value, self._means)

    def _must_fit(self, like: Identity, widths: List[int]) -> None:
        need = bytes_needed(like, widths)
        free = self._free_per_worker(self._collective.exchange(available_bytes(), self._tag(like, 'memory')))
        if need > free:
            raise SettingError('routes: %s is forced to allreduce, for which every worker needs %s, but has %s free: '
                               'leave it to the servers' % (like.name, size_text(need), size_text(free)))

    def _free_per_worker(self, free: List[int]) -> float:
        """Bytes per worker on the fullest host, from those that each worker found free on its host."""
        workers = Counter(self._hosts)
        return min(float(found) / workers[host] for found, host in zip(free, self._hosts))

    def before_push(self, route: Route, optimizer: Any) -> Route:
        """The route that takes the rows about to be pushed; it may be another one than before (collective)."""
        if route.choice is not None:
            return route
        measure = self._open.get(route.key)
        if measure is None:
            return self._begin(route)
        if measure.pushes < MEASURED_STEPS:
            return route
        del self._open[route.key]
        return self._decide(route, measure, optimizer)

    def _begin(self, route: Route) -> Route:
        """Before the first rows of a parameter."""
        way = self._means.settings.way_for(route.name)
        if not route.takes_rows:
            if way == 'allreduce':
                self._must_fit(route, [])
                route = RowAllreduce(route)
            else:
                route = ServerGradients(route)
        if way != 'auto':
            route.decide(Choice(way, 'forced'))
        elif route.rows * route.width * route.dtype.itemsize < SMALL_TABLE_BYTES:
            route.decide(Choice('servers', 'small'))
        else:
            self._open[route.key] = _Measure()
        return route

    def after_push(self, route: Route, ids: np.ndarray) -> None:
        """Take note of the rows that this worker pushed (collective)."""
        measure = self._open.get(route.key)
        if measure is None:
            return
        if measure.pushes in SAMPLED:
            measure.ids.append(self._collective.gather(ids, self._tag(route, 'ids'), id_dtype(route.rows)))
        measure.pushes += 1

    def pulled(self, route: Route, rows: int) -> None:
        """Take note of rows that this worker pulled."""
        measure = self._open.get(route.key)
        if measure is not None:
            measure.pulled += rows

    def _tag(self, route: Identity, what: str) -> str:
        return '%s.%s' % (self._means.tag(route.key, route.name), what)

    def _decide(self, route: Route, measure: _Measure, optimizer: Any) -> Route:
        mine = {'pulled': measure.pulled / measure.pushes, 'free': available_bytes()}
        everyone = self._collective.exchange(mine, self._tag(route, 'use'))
        network = self._network()
        verdict: Any = None
        if self._collective.rank == 0:
            use, touched, union = self._use(route, measure, [numbers['pulled'] for numbers in everyone])
            free = self._free_per_worker([numbers['free'] for numbers in everyone])
            fits = bytes_needed(route, route.widths_to_move()) <= MEMORY_PART * free and route.can_move()
            choice = weigh(estimate(use, network), touched, union, fits)
            verdict = [choice.way, choice.because, touched, union, vars(choice.estimate)]
        way, because, touched, union, predicted = self._collective.exchange(verdict, self._tag(route, 'verdict'))[0]
        if way == 'allreduce':
            route = route.to_allreduce(optimizer)
        choice = Choice(way, because, touched, union, Estimate(**predicted))
        route.decide(choice)
        if self._collective.rank == 0:
            logger.info('%s', _told(route.name, choice))
        return route

    def _network(self) -> Network:
        """What both ways cost on this job, measured once (collective)."""
        if NETWORK not in self._measured:
            shares = self._shares(dict.fromkeys(range(self._servers.num_servers), 1))
            self._measured[NETWORK] = calibrate(self._servers, self._collective, self._clients, shares,
                                                self._means.prefix + '.probe')
            logger.debug('calibrated: %s', self._measured[NETWORK])
        return self._measured[NETWORK]

    def _shares(self, rows_on: Dict[int, int]) -> List[float]:
        return shares_of_hosts(rows_on, max(self._hosts) + 1, self._servers.num_servers)

    def _use(self, route: Route, measure: _Measure, wanted: List[float]) -> Tuple[Use, float, float]:
        """How a step uses a table, and the parts of its rows that a worker, on average, and all of them touch."""
        union = _mean(_count(ids) for ids in measure.ids)
        alone = [_mean(len(ids[rank]) for ids in measure.ids) for rank in range(len(self._hosts))]
        pushed = [_mean(_count([ids[rank] for rank in group]) for ids in measure.ids) for group in self._groups]
        if route.sparse:
            # Who pushes a row has pulled it: what workers of a host want overlaps as what they push does.
            pulled = [sum(wanted[rank] for rank in group) * mine / max(1.0, sum(alone[rank] for rank in group))
                      for group, mine in zip(self._groups, pushed)]
        else:
            pulled = [union] * len(pushed)
        gathered = 0.0 if route.sparse else sum(alone)
        partitioning = route.partitioning
        assert partitioning is not None
        rows_on: Dict[int, int] = Counter()
        for part, server in enumerate(partitioning.servers):
            rows_on[server] += partitioning.shape(part)[0]
        use = Use(route.rows, route.width, route.wire.itemsize, pushed, pulled, self._clients, self._shares(rows_on),
                  max(Counter(partitioning.servers).values()), gathered, len(self._hosts))
        return use, _mean(alone) / route.rows, union / route.rows


def _count(ids: List[np.ndarray]) -> int:
    """Rows that several workers touch together."""
    return len(np.unique(np.concatenate(ids)))


def _mean(counts: Iterable[float]) -> float:
    values = list(counts)
    return sum(values) / len(values)


def bytes_needed(like: Identity, widths: List[int]) -> float:
    """Bytes that a table takes in each worker by allreduce, infinite where MXNet has no array of that size.

    `widths` are the elements per row of what moves there, weights and state; the buffer of the sum comes on top.
    """
    elements = buffer_elements(like.rows, like.width)
    if elements > MAX_ELEMENTS:
        return float('inf')
    return float((elements + like.rows * sum(widths)) * like.dtype.itemsize)


def _told(name: str, choice: Choice) -> str:
    """One line about a decision that was measured."""
    assert choice.union is not None and choice.estimate is not None
    text = ('%s goes by %s: a step touches %.3g%% of its rows, and would take %.1f ms by servers, %.1f ms by allreduce'
            % (name, choice.way, 100 * choice.union, 1e3 * choice.estimate.servers_s,
               1e3 * choice.estimate.allreduce_s))
    return text + (', where it does not fit' if choice.because == 'memory' else '')
