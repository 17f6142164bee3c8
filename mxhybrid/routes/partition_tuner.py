"""Finds each table's number of partitions while the job trains, for ``partitions='auto'``.

The store reports every push to the tuner.  A step begins with the first key that is pushed again.  At that point no
worker waits for anything, so partitions can be changed (:mod:`mxhybrid.servers.repartition`).  Every worker times its
own steps.  After the steps of a sample the workers exchange their times, of which the slowest counts; worker 0 gets the
next count from :mod:`mxhybrid.routes.partition_search`, and sends it to the other workers.  Nothing is exchanged in the
steps between.

The first steps, which compile and allocate, do not count.  The next sample gives the time of a step with the partitions
that the tables start with, and the tables that move most bytes: these are searched, the busiest first.  In the end
worker 0 writes the partition file, from which the next run starts.
"""
import functools
import statistics
import time
from typing import Any, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.log import get_logger
from ..base.settings import Settings
from ..comm.collective import Collective
from ..servers.partitioning import partition_count
from ..servers.table import Table
from . import partition_cache
from .partition_search import BUDGET_SHARE, HORIZON_STEPS, MEASURED_STEPS, WARM_STEPS, Candidate, Tuning

logger = get_logger(__name__)

#: Steps at the start of training that are not measured.
FIRST_STEPS = 4
#: Tables that move less than this share of the bytes of the busiest table keep the default count.
MIN_TRAFFIC_SHARE = 0.1
#: Largest number of partitions that is tried, per server.
MAX_PER_SERVER = 64
#: Bytes per second at which a server copies rows from one partition to another: a cautious guess until a move is timed.
COPY_BYTES_PER_S = 5e8
#: Seconds of a move of an empty table, and further seconds for each partition: guesses, too.
MOVE_S, MOVE_PARTITION_S = 0.02, 0.001


class Tuner:
    """The search in one store, over its routes by key; all workers construct it and make the same calls."""

    def __init__(self, settings: Settings, collective: Collective, num_servers: int, routes: Dict[Any, Any],
                 prefix: str):
        self._settings, self._collective, self._num_servers = settings, collective, num_servers
        self._routes, self._tag = routes, prefix + '.tuner'
        self._is_root = collective.rank == 0
        self._tuning: Optional[Tuning] = None
        #: Entries of the partition file for the tables that this search does not measure, by name.
        self._fixed_entries: Dict[str, Dict[str, Any]] = {}
        self._done: List[Candidate] = []
        self._bar: Any = None
        self.active = True
        self._pushed: set = set()
        self._seconds: List[float] = []
        self._due = FIRST_STEPS + MEASURED_STEPS
        self._overhead = 0.0
        self._last: Optional[float] = None
        self._cached = self._read_cache()

    # -- where to start ----------------------------------------------------------------------------------------

    def _read_cache(self) -> Optional[Dict[str, Any]]:
        """Return the contents of worker 0's partition file, on all workers."""
        content = None
        if self._is_root and self._settings.partition_file:
            try:
                content = partition_cache.read(self._settings.partition_file)
                problem = partition_cache.misfit(content, self._collective.size, self._num_servers) if content else ''
            except InputError as error:
                problem = str(error)
            if problem:
                logger.warning('partition_file=%r is ignored: %s', self._settings.partition_file, problem)
                content = None
        return self._collective.allgather_json(content, self._tag + '.cache')[0]

    def start(self, name: str, shape: Sequence[int], dtype: Any) -> Optional[int]:
        """Return the number of partitions with which the table `name` starts, None for the default."""
        if self._cached is None or not self._settings.is_auto(name):
            return None
        problem = partition_cache.table_misfit(self._cached, name, list(shape), str(np.dtype(dtype)))
        if problem:
            if self._is_root:
                logger.warning('partition_file=%r is ignored for %s: %s', self._settings.partition_file, name, problem)
            return None
        entry = self._cached['tables'][name]
        if entry['finished']:
            self._fixed_entries[name] = entry
        if self._is_root:
            logger.info('%s starts with %d partitions, from %s%s', name, entry['partitions'],
                        self._settings.partition_file, '' if entry['finished'] else '; the search goes on')
        return entry['partitions']

    # -- steps ---------------------------------------------------------------------------------------------------

    def before_push(self, key: Any) -> None:
        """Note that a key is about to be pushed (collective at the end of a sample)."""
        if key in self._pushed:
            self._pushed.clear()
            self._step_begins()
        elif self._last is None:
            self._last = time.perf_counter()
        self._pushed.add(key)

    def pause(self) -> None:
        """Exclude this push, and the time until the next one, from all steps."""
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
        everyone = self._collective.allgather_json([self._overhead, sum(warm), statistics.median(measured)],
                                             self._tag + '.times')
        overhead, warm_seconds, seconds = (max(column) for column in zip(*everyone))
        decision: Any = None
        if self._is_root:
            if self._tuning is None:
                self._begin(seconds)
            else:
                self._tuning.observe(overhead, warm_seconds, seconds)
            decision = self._decide()
        decision = self._collective.allgather_json(decision, self._tag + '.decision')[0]
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
        # A table whose route is not chosen yet, since nothing was pushed to it for long, may leave the servers.
        tables = [route for route in self._routes.values() if route.server_table is not None and route.choice]
        busiest = max([_traffic(route) for route in tables] or [0])
        candidates = []
        for route in sorted(tables, key=_traffic, reverse=True):
            if not self._settings.is_auto(route.name) or route.name in self._fixed_entries:
                continue
            if _traffic(route) < MIN_TRAFFIC_SHARE * busiest:
                self._keep(route, 'it moves %.2g %% of the bytes of the busiest table'
                           % (100 * _traffic(route) / busiest))
                continue
            table = route.server_table
            partitioning = table.partitioning
            lowest = partition_count(partitioning.rows, partitioning.width, route.dtype.itemsize, 1)
            highest = min(partitioning.rows, MAX_PER_SERVER * self._num_servers,
                          table.servers.keys.placement.keys_left() // 4)
            candidates.append(Candidate(route.name, partitioning.count, lowest, highest,
                                        functools.partial(_seconds_of_move, table)))
        self._tuning = Tuning(candidates, seconds, FIRST_STEPS + MEASURED_STEPS)
        if candidates:
            logger.info('partitions=auto: searching %s within %.3g s, %g %% of %d steps of %.3g ms',
                        ', '.join('%s (%d partitions)' % (table.name, table.count) for table in candidates),
                        self._tuning.budget.total, 100 * BUDGET_SHARE, HORIZON_STEPS, 1000 * seconds)
            from tqdm import tqdm

            self._bar = tqdm(desc='partitions', unit=' samples', disable=None)

    def _keep(self, route: Any, reason: str) -> None:
        self._fixed_entries[route.name] = {
            'shape': list(route.shape), 'dtype': str(route.dtype), 'samples': [], 'theta': None,
            'partitions': route.partitioning.count, 'finished': True, 'reason': reason,
            'start': route.partitioning.count}
        logger.info('partitions=auto: %s keeps %d partitions: %s', route.name, route.partitioning.count, reason)

    def _decide(self) -> Optional[List[int]]:
        """Return the next move as index of a route and count; None ends the search."""
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
        if not self._settings.partition_file or not self._tuning.candidates:
            return
        shapes = {route.name: (list(route.shape), str(route.dtype)) for route in self._routes.values()}
        content = partition_cache.record(self._tuning, self._done, shapes, self._fixed_entries, self._collective.size,
                                   self._num_servers)
        try:
            partition_cache.write(self._settings.partition_file, content)
        except OSError as error:
            logger.warning('partition_file=%r cannot be written: %s', self._settings.partition_file, error)


def _traffic(route: Any) -> int:
    return route.traffic.pushed + route.traffic.pulled


def _seconds_of_move(table: Table, old: int, new: int, known: Sequence[int]) -> float:
    """Estimate the seconds of a move of a table."""
    partitioning = table.partitioning
    copies = 1 + table.state_slots()
    size_bytes = partitioning.rows * partitioning.width * table.dtype.itemsize
    seconds = MOVE_S + MOVE_PARTITION_S * (old + new) + copies * size_bytes / COPY_BYTES_PER_S
    if new not in known:
        seconds += table.seconds_to_create
    if new % old and old % new or min(old, new) < table.servers.num_servers:
        # Rows move to other servers, by way of the workers.
        seconds += 2 * copies * table.seconds_to_create
    return seconds
