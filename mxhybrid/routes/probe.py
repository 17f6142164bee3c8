"""Timed probes of servers and allreduce in the running job, for :mod:`mxhybrid.routes.costs`.

Each probe makes the calls of a table: it pushes rows to all servers, which update them, and pulls them back; or it sums
rows by allreduce, updates them here and reads them.  Sizes grow until they take long enough to be timed, so that slow
networks carry few bytes and fast networks are not underestimated.  All workers start a probe together.  The time of the
slowest worker counts, and the fastest of several repetitions.
"""
import time
from typing import Callable, List, Tuple, Union

import mxnet as mx
import numpy as np

from ..comm.collective import Collective
from ..servers.cluster import ParameterServers
from ..servers.lifecycle import TableSpec, create_table
from ..servers.optimized_table import OptimizedTable
from ..servers.partitioning import ROW_OVERHEAD_BYTES
from ..servers.protocol import ASSIGN
from ..servers.table import Table
from .costs import Network, Speed, rate, ring_bytes, server_bytes
from .replica import Replica
from .row_sums import buffer_elements

#: Number of float32 elements in a row of a probe.
WIDTH = 64
#: Numbers of rows that a worker pushes and pulls: 17 kB, 140 kB, 1.1 MB, 4.4 MB.
SIZES = (64, 512, 4096, 16384)
#: A probe is long enough if it takes this many seconds, and this many times as long as without rows.
LONG_ENOUGH_S = 0.05
LONG_ENOUGH_LATENCIES = 4
#: Number of requests to each server in the probe that measures the cost of a request.
REQUESTS = 4
#: Numbers of repetitions; the smallest exchanges vary most and cost least.
REPEATS = 3
LATENCY_REPEATS = 6


class CollectiveTimer:
    """Times calls that all workers make together; names begin with `tag`."""

    def __init__(self, collective: Collective, tag: str):
        self._collective = collective
        self._tag = tag

    def seconds(self, call: Callable[[], None], repeats: int = LATENCY_REPEATS) -> float:
        """Return the seconds of a call, equal on all workers (collective)."""
        best = float('inf')
        for _ in range(repeats):
            self._collective.any(False, self._tag + '.start')
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
        return max(self._collective.allgather_json(best, self._tag + '.seconds'))

    def growing(self, call: Callable[[int], None], latency: float) -> Tuple[int, float]:
        """Return rows and seconds of the first size that takes long enough, or of the largest size."""
        for count in SIZES:
            seconds = self.seconds(lambda count=count: call(count), REPEATS)  # type: ignore[misc]
            if seconds > max(LONG_ENOUGH_S, LONG_ENOUGH_LATENCIES * latency):
                break
        return count, seconds


def exchange_rows(table: Union[Table, Replica], width: int, count: int, first: int) -> None:
    """Push `count` rows and pull them, or at least the `first` rows of the table."""
    ids = np.arange(count, dtype=np.int64)
    table.push(ids, np.ones((count, width), np.float32))
    ids = np.arange(max(count, first), dtype=np.int64)
    table.pull(ids, np.empty((len(ids), width), np.float32))


def _set_optimizer(table: OptimizedTable) -> None:
    table.set_optimizer(mx.optimizer.create('sgd', momentum=0.9, learning_rate=0.0), 0.0, 0.0, 0)


def measure_servers(servers: ParameterServers, timer: CollectiveTimer, tag: str, clients: List[int],
                    shares: List[float]) -> Speed:
    """Time the servers (collective); parameters as for :func:`calibrate`."""
    count = servers.num_servers
    probed, probed_by_requests = (
        create_table(servers, TableSpec(tag + name, shape, np.float32, partitions, even=True), ASSIGN)
        for name, shape, partitions in (('.servers', (max(SIZES), WIDTH), count),
                                        ('.requests', (REQUESTS * count, 1), REQUESTS * count)))
    _set_optimizer(probed)
    _set_optimizer(probed_by_requests)
    latency = timer.seconds(lambda: exchange_rows(probed, WIDTH, 0, count))
    requests = timer.seconds(lambda: exchange_rows(probed_by_requests, 1, 0, REQUESTS * count))
    rows, seconds = timer.growing(lambda rows: exchange_rows(probed, WIDTH, rows, count), latency)
    moved = server_bytes([2 * rows * (WIDTH * 4 + ROW_OVERHEAD_BYTES)] * len(clients), clients, shares)
    return Speed(latency, rate(moved, seconds, latency), max(0.0, requests - latency) / (REQUESTS - 1))


def measure_ring(collective: Collective, timer: CollectiveTimer, tag: str, hosts: int) -> Speed:
    """Time the allreduce (collective)."""
    replicas = {rows: Replica('%s.ring%d' % (tag, rows), rows, WIDTH, np.float32, collective) for rows in (1,) + SIZES}
    for replica in replicas.values():
        _set_optimizer(replica)
    latency = timer.seconds(lambda: exchange_rows(replicas[1], WIDTH, 1, 1))
    rows, seconds = timer.growing(lambda rows: exchange_rows(replicas[rows], WIDTH, rows, 1), latency)
    moved = ring_bytes(buffer_elements(rows, WIDTH) * 4, collective.size, hosts)
    return Speed(latency, rate(moved, seconds, latency))


def calibrate(servers: ParameterServers, collective: Collective, clients: List[int], shares: List[float],
              tag: str) -> Network:
    """Measure both routes (collective; takes half a second to a few seconds).

    `clients` has the hosts of the workers that push and pull, `shares` the part of the servers on each host; names
    begin with `tag`.
    """
    timer = CollectiveTimer(collective, tag)
    return Network(measure_servers(servers, timer, tag, clients, shares),
                   measure_ring(collective, timer, tag, len(shares)))
