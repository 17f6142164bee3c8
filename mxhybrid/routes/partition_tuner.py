"""``partitions='auto'``: finds each table's number of partitions while the job trains.

The store tells the tuner of every push.  A step begins with the first key that is pushed again; at that point no
worker waits for anything, so tables can be cut anew (:mod:`mxhybrid.servers.repartition`).  Every worker times its
steps by itself.  After as many steps as a sample takes the workers exchange their times, the slowest counts, worker 0
asks :mod:`mxhybrid.routes.partition_search` what to try next, and tells the others.  In the steps between nothing is
exchanged.

The first steps, which compile and create, do not count; the next sample says what a step takes with the partitions
that the tables start with, and which tables move most bytes: those are searched, the largest first.  In the end
worker 0 writes the plan file, and the next run starts from it.
"""
import statistics
import time
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np
from tqdm import tqdm

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import Settings
from ..servers.partitioning import partition_count
from ..servers.table import Table
from . import plan_file
from .partition_search import BUDGET_SHARE, HORIZON_STEPS, MEASURED_STEPS, WARM_STEPS, Candidate, Tuning
from .wire import Sums

logger = get_logger(__name__)

#: Steps at the start of training that are not measured.
FIRST_STEPS = 4
#: Tables that move less than this share of the bytes of the busiest table keep the default.
MIN_TRAFFIC_SHARE = 0.1
#: Most partitions that are tried, per server.
MAX_PER_SERVER = 64
#: Bytes a second at which a server copies rows from one partition to another; a cautious guess until a move is timed.
COPY_BYTES_PER_S = 5e8
#: Seconds that a move takes however small the table is, and besides for each partition; a guess likewise.
MOVE_S, MOVE_PARTITION_S = 0.02, 0.001


class Tuner:
    """The search in one store, over its routes by key; made and called by all workers alike."""

    def __init__(self, settings: Settings, collective: Sums, num_servers: int, routes: Dict[Any, Any], prefix: str):
        self._settings, self._collective, self._num_servers = settings, collective, num_servers
        self._routes, self._tag = routes, prefix + '.tuner'
        self._tuning: Optional[Tuning] = None
        self._kept: Dict[str, Dict[str, Any]] = {}
        self._done: List[Candidate] = []
        self._bar: Any = None
        self.active = True
        self._pushed: set = set()
        self._seconds: List[float] = []
        self._due = FIRST_STEPS + MEASURED_STEPS
        self._overhead = 0.0
        self._last: Optional[float] = None
        self._plan = self._read_plan()

    @property
    def _is_root(self) -> bool:
        return self._collective.rank == 0

    # -- where to start ----------------------------------------------------------------------------------------

    def _read_plan(self) -> Optional[Dict[str, Any]]:
        """Worker 0's plan file, on all workers."""
        content = None
        if self._is_root and self._settings.plan_file:
            try:
                content = plan_file.read(self._settings.plan_file)
                problem = plan_file.misfit(content, self._collective.size, self._num_servers) if content else ''
            except InputError as error:
                problem = str(error)
            if problem:
                logger.warning('plan_file=%r is ignored: %s', self._settings.plan_file, problem)
                content = None
        return self._collective.exchange(content, self._tag + '.plan')[0]

    def start(self, name: str, shape: Sequence[int], dtype: Any) -> Optional[int]:
        """Partitions to start the table `name` with, None for the default."""
        if self._plan is None or not self._settings.is_auto(name):
            return None
        problem = plan_file.table_misfit(self._plan, name, list(shape), str(np.dtype(dtype)))
        if problem:
            if self._is_root:
                logger.warning('plan_file=%r is ignored for %s: %s', self._settings.plan_file, name, problem)
            return None
        entry = self._plan['tables'][name]
        if entry['finished']:
            self._kept[name] = entry
        if self._is_root:
            logger.info('%s starts with %d partitions, from %s%s', name, entry['partitions'],
                        self._settings.plan_file, '' if entry['finished'] else '; the search goes on')
        return entry['partitions']

    # -- steps ---------------------------------------------------------------------------------------------------

    def before_push(self, key: Any) -> None:
        """A key is about to be pushed (collective at the end of a sample)."""
        if key in self._pushed:
            self._pushed.clear()
            self._step_begins()
        elif self._last is None:
            self._last = time.perf_counter()
        self._pushed.add(key)

    def pause(self) -> None:
        """This push, and the time until the next one, belong to no step."""
        self._pushed.clear()
        self._last = None

    def _step_begins(self) -> None:
        now = time.perf_counter()
        assert self._last is not None
        self._seconds.append(now - self._last)
        if len(self._seconds) >= self._due:
            self._sample_ends(now)
        self._last = time.perf_counter()

    def _sample_ends(self, started: float) -> None:
        warm, measured = self._seconds[:-MEASURED_STEPS], self._seconds[-MEASURED_STEPS:]
        everyone = self._collective.exchange([self._overhead, sum(warm), statistics.median(measured)],
                                             self._tag + '.times')
        overhead, warm_seconds, seconds = (max(column) for column in zip(*everyone))
        decision: Any = None
        if self._is_root:
            if self._tuning is None:
                self._begin(seconds)
            else:
                self._tuning.observe(overhead, warm_seconds, seconds)
            decision = self._decide()
        decision = self._collective.exchange(decision, self._tag + '.decision')[0]
        self._seconds, self._due = [], WARM_STEPS + MEASURED_STEPS
        if decision is None:
            self.active = False
            return
        index, count = decision
        mx.nd.waitall()
        list(self._routes.values())[index].repartition(count)
        self._overhead = time.perf_counter() - started

    # -- worker 0 --------------------------------------------------------------------------------------------------

    def _begin(self, seconds: float) -> None:
        # What has no route yet, since nothing was pushed to it for long, may yet leave the servers.
        tables = [route for route in self._routes.values() if route.server_table is not None and route.choice]
        most = max([_traffic(route) for route in tables] or [0])
        candidates = []
        for route in sorted(tables, key=_traffic, reverse=True):
            if not self._settings.is_auto(route.name) or route.name in self._kept:
                continue
            if _traffic(route) < MIN_TRAFFIC_SHARE * most:
                self._keep(route, 'it moves %.2g %% of the bytes of the busiest table' % (100 * _traffic(route) / most))
                continue
            table = route.server_table
            held = table.partitioning
            lowest = partition_count(held.rows, held.width, route.dtype.itemsize, 1)
            highest = min(held.rows, MAX_PER_SERVER * self._num_servers, table.keys_left // 4)
            candidates.append(Candidate(route.name, held.count, lowest, highest, _Cost(table, self._num_servers)))
        self._tuning = Tuning(candidates, seconds, FIRST_STEPS + MEASURED_STEPS)
        if candidates:
            logger.info('partitions=auto: searching %s within %.3g s, %g %% of %d steps of %.3g ms',
                        ', '.join('%s (%d partitions)' % (table.name, table.count) for table in candidates),
                        self._tuning.budget.total, 100 * BUDGET_SHARE, HORIZON_STEPS, 1000 * seconds)
            self._bar = tqdm(desc='partitions', unit=' samples', disable=None)

    def _keep(self, route: Any, reason: str) -> None:
        self._kept[route.name] = {'shape': list(route.shape), 'dtype': str(route.dtype), 'samples': [], 'theta': None,
                                  'partitions': route.partitioning.count, 'finished': True, 'reason': reason,
                                  'start': route.partitioning.count}
        logger.info('partitions=auto: %s keeps %d partitions: %s', route.name, route.partitioning.count, reason)

    def _decide(self) -> Optional[List[int]]:
        """The next move as index of a route and count; None ends the search."""
        tuning = self._tuning
        assert tuning is not None
        before = tuning.current
        if before is not None and before.known[1:]:
            logger.info('partitions=auto: %s: %d partitions, %.4g ms a step; lost %.3g s of %.3g s', before.name,
                        before.count, 1000 * tuning.seconds, tuning.budget.lost, tuning.budget.total)
            if self._bar is not None:
                self._bar.update()
                self._bar.set_postfix_str('%s: %d' % (before.name, before.count))
        move = tuning.next()
        ended = [table for table in tuning.candidates if table.reason and (move is None or table is not tuning.current)]
        for table in ended[len(self._done):]:
            logger.info('partitions=auto: %s keeps %d partitions: %s', table.name, table.count, table.reason)
        if len(ended) > len(self._done) or move is None:
            self._done = ended
            self._write()
        if move is None:
            if self._bar is not None:
                self._bar.close()
            if tuning.candidates:
                logger.info('partitions=auto: done; %.4g ms a step, %.4g ms before; lost %.3g s of %.3g s',
                            1000 * tuning.seconds, 1000 * tuning.budget.step, tuning.budget.lost, tuning.budget.total)
            return None
        names = [route.name for route in self._routes.values()]
        return [names.index(move[0].name), move[1]]

    def _write(self) -> None:
        assert self._tuning is not None
        if not self._settings.plan_file or not self._tuning.candidates:
            return
        shapes = {route.name: (list(route.shape), str(route.dtype)) for route in self._routes.values()}
        content = plan_file.record(self._tuning, self._done, shapes, self._kept, self._collective.size,
                                   self._num_servers)
        try:
            plan_file.write(self._settings.plan_file, content)
        except OSError as error:
            logger.warning('plan_file=%r cannot be written: %s', self._settings.plan_file, error)


def _traffic(route: Any) -> int:
    return route.traffic.pushed + route.traffic.pulled


class _Cost:
    """Estimates what moves of a table take."""

    def __init__(self, table: Table, num_servers: int):
        self._table, self._num_servers = table, num_servers

    def __call__(self, old: int, new: int, known: Sequence[int]) -> float:
        table = self._table
        held = table.partitioning
        copies = 1 + table.state_slots()
        nbytes = held.rows * held.width * table.dtype.itemsize
        seconds = MOVE_S + MOVE_PARTITION_S * (old + new) + copies * nbytes / COPY_BYTES_PER_S
        if new not in known:
            seconds += table.seconds_to_create
        if new % old and old % new or min(old, new) < self._num_servers:
            # Rows change servers: in and out of the workers.
            seconds += 2 * copies * table.seconds_to_create
        return seconds
