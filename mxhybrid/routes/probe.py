"""Timed probes: what servers and allreduce cost on the running job, for :mod:`mxhybrid.routes.costs`.

Each probe does what a table would do: push rows to all servers, have them updated and pull them back; or sum them
by allreduce, update them here and read them.  Sizes grow until the clock can tell, so slow networks carry little and
fast ones are not underestimated.  Probes start together and the slowest worker's time counts; of repetitions, the
fastest.
"""
import time
from typing import Callable, List, Tuple

import mxnet as mx
import numpy as np

from ..servers.cluster import ParameterServers
from ..servers.lifecycle import create_table
from ..servers.partitioning import ROW_OVERHEAD_BYTES
from ..servers.protocol import ASSIGN
from .costs import Network, Speed, rate, ring_bytes, server_bytes
from .replicated import Replica
from .row_sums import buffer_elements
from .wire import Rows, Sums

#: float32 elements of a probe's row.
WIDTH = 64
#: Rows that a worker pushes and pulls: 17 kB, 140 kB, 1.1 MB, 4.4 MB.
SIZES = (64, 512, 4096, 16384)
#: A probe is long enough when it takes this many seconds, and this many times as long as without any rows.
LONG_ENOUGH_S = 0.05
LONG_ENOUGH_LATENCIES = 4
#: Requests to each server in the probe that tells what a request costs.
REQUESTS = 4
#: Repetitions; the smallest exchanges vary most and cost least.
REPEATS = 3
LATENCY_REPEATS = 6


class Stopwatch:
    """Times what all workers do at once; names begin with `tag`."""

    def __init__(self, collective: Sums, tag: str):
        self._collective = collective
        self._tag = tag

    def seconds(self, act: Callable[[], None], repeats: int = LATENCY_REPEATS) -> float:
        """Seconds of `act`, equal on all workers (collective)."""
        best = float('inf')
        for _ in range(repeats):
            self._collective.any(False, self._tag + '.start')
            start = time.perf_counter()
            act()
            best = min(best, time.perf_counter() - start)
        return max(self._collective.exchange(best, self._tag + '.seconds'))

    def growing(self, act: Callable[[int], None], latency: float) -> Tuple[int, float]:
        """Rows and seconds of the first size that takes long enough, or of the largest."""
        for count in SIZES:
            seconds = self.seconds(lambda count=count: act(count), REPEATS)  # type: ignore[misc]
            if seconds > max(LONG_ENOUGH_S, LONG_ENOUGH_LATENCIES * latency):
                break
        return count, seconds


def exchange_rows(table: Rows, width: int, count: int, first: int) -> None:
    """Push `count` rows and pull them, or at least the `first` ones."""
    ids = np.arange(count, dtype=np.int64)
    table.push(ids, np.ones((count, width), np.float32))
    ids = np.arange(max(count, first), dtype=np.int64)
    table.pull(ids, np.empty((len(ids), width), np.float32))


def _set_optimizer(table: Rows) -> None:
    table.set_optimizer(mx.optimizer.create('sgd', momentum=0.9, learning_rate=0.0), 0.0, 0.0, 0)


def measure_servers(servers: ParameterServers, watch: Stopwatch, tag: str, clients: List[int],
                    shares: List[float]) -> Speed:
    """Time the servers (collective); parameters as for :func:`calibrate`."""
    count = servers.num_servers
    one = create_table(servers, tag + '.servers', (max(SIZES), WIDTH), np.float32, count, ASSIGN, even=True)
    several = create_table(servers, tag + '.requests', (REQUESTS * count, 1), np.float32, REQUESTS * count, ASSIGN,
                           even=True)
    _set_optimizer(one)
    _set_optimizer(several)
    latency = watch.seconds(lambda: exchange_rows(one, WIDTH, 0, count))
    requests = watch.seconds(lambda: exchange_rows(several, 1, 0, REQUESTS * count))
    rows, seconds = watch.growing(lambda rows: exchange_rows(one, WIDTH, rows, count), latency)
    moved = server_bytes([2 * rows * (WIDTH * 4 + ROW_OVERHEAD_BYTES)] * len(clients), clients, shares)
    return Speed(latency, rate(moved, seconds, latency), max(0.0, requests - latency) / (REQUESTS - 1))


def measure_ring(collective: Sums, watch: Stopwatch, tag: str, hosts: int) -> Speed:
    """Time the allreduce (collective)."""
    replicas = {rows: Replica('%s.ring%d' % (tag, rows), rows, WIDTH, np.float32, collective) for rows in (1,) + SIZES}
    for replica in replicas.values():
        _set_optimizer(replica)
    latency = watch.seconds(lambda: exchange_rows(replicas[1], WIDTH, 1, 1))
    rows, seconds = watch.growing(lambda rows: exchange_rows(replicas[rows], WIDTH, rows, 1), latency)
    moved = ring_bytes(buffer_elements(rows, WIDTH) * 4, collective.size, hosts)
    return Speed(latency, rate(moved, seconds, latency))


def calibrate(servers: ParameterServers, collective: Sums, clients: List[int], shares: List[float],
              tag: str) -> Network:
    """Measure both ways (collective; takes from half a second to a few).

    `clients` are the hosts of the workers that push and pull, `shares` the part of the servers on each host; names
    begin with `tag`.
    """
    watch = Stopwatch(collective, tag)
    return Network(measure_servers(servers, watch, tag, clients, shares),
                   measure_ring(collective, watch, tag, len(shares)))
