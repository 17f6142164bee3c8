"""Chooses between servers and allreduce for each table, by measurement, in the first steps of a job.

For a table that may take either way (setting ``routes``) the row ids that workers push are gathered in a few of
its first steps.  Then all workers time both ways (:mod:`mxhybrid.probe`, once per job), worker 0 predicts what a
step of this table costs by either (:mod:`mxhybrid.costs`) and decides for all, and a table that goes to allreduce
moves with its weights and optimizer state at that step, on all workers alike.
"""
from collections import Counter
from typing import Any, Dict, Iterable, List, Tuple

import numpy as np

from . import states
from .costs import SMALL_TABLE_BYTES, Choice, Estimate, Network, Use, choose, estimate, shares_of_hosts
from .errors import SettingError
from .job import Job
from .log import get_logger
from .memory import available_bytes
from .partition import id_dtype
from .probe import calibrate
from .replicated import MAX_ELEMENTS, buffer_elements
from .report import size
from .routes import Dense, Route, Sparse, tag
from .settings import Settings

logger = get_logger(__name__)

#: Pushes of a table before it is decided on.
MEASURED_STEPS = 10

#: Pushes, from 0, whose row ids are gathered: the first may be unlike all others.
SAMPLED = (2, 5, 8)

#: Part of the free memory of a host that tables may take when measurement alone sends them there.
MEMORY_PART = 0.5


class _Measure:
    """What was seen of a table so far."""

    def __init__(self) -> None:
        self.pushes = 0
        self.pulled = 0
        self.ids: List[List[np.ndarray]] = []


class Chooser:
    """Decides for the tables of a store.

    Parameters
    ----------
    job : Job
    settings : Settings
    prefix : str
        Of names, unique to the store.
    """

    def __init__(self, job: Job, settings: Settings, prefix: str):
        assert job.collective is not None and job.servers is not None
        self._job, self._settings, self._prefix = job, settings, prefix
        self._collective, self._servers = job.collective, job.servers
        self._open: Dict[Any, _Measure] = {}
        order = list(dict.fromkeys(job.hosts))
        #: Host of every worker, from 0.
        self._hosts = [order.index(host) for host in job.hosts]
        #: Workers behind every one that talks to the servers, and its host.
        self._groups = [[rank for rank, other in enumerate(job.leaders) if other == leader]
                        for leader in sorted(set(job.leaders))]
        self._clients = [self._hosts[group[0]] for group in self._groups]

    @property
    def busy(self) -> bool:
        """Whether a table has yet to be decided on."""
        return bool(self._open)

    # -- forced ------------------------------------------------------------------------------------------------

    def starts_replicated(self, key: Any, name: str, value: Any, optimizer: Any) -> bool:
        """Whether a new row_sparse parameter starts in the workers (collective where it does).

        Raises
        ------
        SettingError
            It is forced to, but does not fit into memory.
        """
        if self._settings.route_for(name) != 'allreduce':
            return False
        route = Route(key, name, value)
        self._must_fit(route, [route.width] + _state_widths(route, optimizer))
        return True

    def _must_fit(self, route: Route, widths: List[int]) -> None:
        need = bytes_needed(route, widths)
        free = self._free_per_worker(self._collective.exchange(available_bytes(), self._tag(route, 'memory')))
        if need > free:
            raise SettingError('routes: %s is forced to allreduce, for which every worker needs %s, but has %s free: '
                               'leave it to the servers' % (route.name, size(need), size(free)))

    def _free_per_worker(self, free: List[int]) -> float:
        """Bytes per worker on the fullest host, from those that each worker found free on its host."""
        workers = Counter(self._hosts)
        return min(float(found) / workers[host] for found, host in zip(free, self._hosts))

    # -- in every step -----------------------------------------------------------------------------------------

    def before_push(self, route: Any, optimizer: Any) -> None:
        """Decide, when it is time, before a push of rows to a table (collective)."""
        if route.choice is not None:
            return
        measure = self._open.get(route.key)
        if measure is None:
            way = self._settings.route_for(route.name)
            if way == 'allreduce' and isinstance(route, Dense):
                self._must_fit(route, [])
                route.replicate()
            if way != 'auto':
                route.choice = Choice(way, 'forced')
            elif route.rows * route.width * route.dtype.itemsize < SMALL_TABLE_BYTES:
                route.choice = Choice('servers', 'small')
            else:
                self._open[route.key] = _Measure()
        elif measure.pushes == MEASURED_STEPS:
            del self._open[route.key]
            self._decide(route, measure, optimizer)

    def after_push(self, route: Any, ids: np.ndarray) -> None:
        """Take note of the rows that this worker pushed (collective)."""
        measure = self._open.get(route.key)
        if measure is None:
            return
        if measure.pushes in SAMPLED:
            measure.ids.append(self._collective.gather(ids, self._tag(route, 'ids'), id_dtype(route.rows)))
        measure.pushes += 1

    def pulled(self, route: Any, rows: int) -> None:
        """Take note of rows that this worker pulled."""
        measure = self._open.get(route.key)
        if measure is not None:
            measure.pulled += rows

    # -- the decision ------------------------------------------------------------------------------------------

    def _tag(self, route: Any, what: str) -> str:
        return '%s.%s' % (tag(self._prefix, route.key, route.name), what)

    def _decide(self, route: Any, measure: _Measure, optimizer: Any) -> None:
        mine = {'pulled': measure.pulled / measure.pushes, 'free': available_bytes()}
        everyone = self._collective.exchange(mine, self._tag(route, 'use'))
        network = self._network()
        verdict: Any = None
        if self._collective.rank == 0:
            use, touched, union = self._use(route, measure, [numbers['pulled'] for numbers in everyone])
            widths = [route.width] + _state_widths(route, optimizer) if route.sparse else []
            free = self._free_per_worker([numbers['free'] for numbers in everyone])
            fits = bytes_needed(route, widths) <= MEMORY_PART * free and all(map(route.table.can_read, widths[1:]))
            choice = choose(estimate(use, network), touched, union, fits)
            verdict = [choice.way, choice.because, touched, union, vars(choice.estimate)]
        way, because, touched, union, predicted = self._collective.exchange(verdict, self._tag(route, 'verdict'))[0]
        if way == 'allreduce':
            self._move(route, optimizer)
        route.choice = Choice(way, because, touched, union, Estimate(**predicted))
        if self._collective.rank == 0:
            logger.info('%s', describe(route))

    def _network(self) -> Network:
        """What both ways cost on this job, measured once (collective)."""
        if self._job.network is None:
            shares = self._shares(dict.fromkeys(range(self._servers.num_servers), 1))
            self._job.network = calibrate(self._servers, self._collective, self._clients, shares,
                                          self._prefix + '.probe')
            logger.debug('calibrated: %s', self._job.network)
        return self._job.network

    def _shares(self, rows_on: Dict[int, int]) -> List[float]:
        return shares_of_hosts(rows_on, max(self._hosts) + 1, self._servers.num_servers)

    def _use(self, route: Any, measure: _Measure, wanted: List[float]) -> Tuple[Use, float, float]:
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
        partitioning = route.table.partitioning
        rows_on: Dict[int, int] = Counter()
        for part, server in enumerate(partitioning.servers):
            rows_on[server] += partitioning.shape(part)[0]
        use = Use(route.rows, route.width, route.wire.itemsize, pushed, pulled, self._clients, self._shares(rows_on),
                  max(Counter(partitioning.servers).values()), gathered, len(self._hosts))
        return use, _mean(alone) / route.rows, union / route.rows

    def _move(self, route: Any, optimizer: Any) -> None:
        """Bring a table from the servers to all workers, or have its gradients summed by allreduce (collective)."""
        if isinstance(route, Dense):
            route.replicate()
            return
        assert isinstance(route, Sparse)
        old, replica, is_root = route.table, route.replica(), self._collective.rank == 0

        def weights(ids: np.ndarray) -> np.ndarray:
            rows = np.empty((len(ids), route.width), route.dtype)
            old.pull_aside(ids, rows)
            return rows

        if optimizer is not None and old.has_optimizer:
            count = optimizer._index_update_count.get(route.key, optimizer.begin_num_update)
            replica.set_optimizer(optimizer, optimizer._get_lr(route.key), optimizer._get_wd(route.key), count)
            for slot, width in enumerate(states.slot_widths(route, optimizer)):
                rows = old.read(slot, width) if is_root else np.empty(0)
                replica.assign(rows.__getitem__, slot)
        route.become(replica, weights)


def _count(ids: List[np.ndarray]) -> int:
    """Rows that several workers touch together."""
    return len(np.unique(np.concatenate(ids)))


def _mean(counts: Iterable[float]) -> float:
    values = list(counts)
    return sum(values) / len(values)


def _state_widths(route: Any, optimizer: Any) -> List[int]:
    return [] if optimizer is None else states.slot_widths(route, optimizer)


def bytes_needed(route: Any, widths: List[int]) -> float:
    """Bytes that a table takes in each worker by allreduce, infinite where MXNet has no array of that size.

    Parameters
    ----------
    route : Route
    widths : list of int
        Elements per row of what moves there, weights and state; the buffer of the sum comes on top.
    """
    elements = buffer_elements(route.rows, route.width)
    if elements > MAX_ELEMENTS:
        return float('inf')
    return float((elements + route.rows * sum(widths)) * route.dtype.itemsize)


def describe(route: Any) -> str:
    """One line about a decision that was measured."""
    choice = route.choice
    text = ('%s goes by %s: a step touches %.3g%% of its rows, and would take %.1f ms by servers, %.1f ms by allreduce'
            % (route.name, choice.way, 100 * choice.union, 1e3 * choice.estimate.servers_s,
               1e3 * choice.estimate.allreduce_s))
    return text + (', where it does not fit' if choice.because == 'memory' else '')
