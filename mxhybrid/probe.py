"""Timed probes: what servers and allreduce cost on the running job, for :mod:`mxhybrid.costs`.

Each probe does what a table would do: push rows to all servers and pull them back; spread rows over a buffer and
allreduce it.  Sizes grow until the clock can tell, so slow networks carry little and fast ones are not
underestimated.  Probes start together and the slowest worker's time counts; of repetitions, the fastest.
"""
import time
from typing import Callable, List, Tuple

import numpy as np

from .collective import Collective
from .costs import Link, Network, rate, ring_bytes, server_bytes
from .partition import ROW_OVERHEAD_BYTES
from .ps import ParameterServers, Table
from .replicated import RowSum, buffer_elements

#: float32 elements of a probe's row.
WIDTH = 64

#: Rows that a worker pushes and pulls: 17 kB, 140 kB, 1.1 MB, 4.4 MB.
SIZES = (64, 512, 4096, 16384)

#: A probe is long enough when it takes this many seconds, and this many times as long as without any rows.
LONG_ENOUGH_S = 0.05
LONG_ENOUGH_LATENCIES = 4

#: Requests to each server in the probe that tells what a request costs.
REQUESTS = 4

REPEATS = 3


class Stopwatch:
    """Times what all workers do at once.

    Parameters
    ----------
    collective : Collective
    tag : str
        Prefix of names.
    """

    def __init__(self, collective: Collective, tag: str):
        self._collective = collective
        self._tag = tag

    def seconds(self, act: Callable[[], None]) -> float:
        """Seconds of `act`, equal on all workers (collective)."""
        best = float('inf')
        for _ in range(REPEATS):
            self._collective.any(False, self._tag + '.start')
            start = time.perf_counter()
            act()
            best = min(best, time.perf_counter() - start)
        return max(self._collective.exchange(best, self._tag + '.seconds'))

    def growing(self, act: Callable[[int], None], latency: float) -> Tuple[int, float]:
        """Rows and seconds of the first size that takes long enough, or of the largest."""
        for count in SIZES:
            seconds = self.seconds(lambda count=count: act(count))  # type: ignore[misc]
            if seconds > max(LONG_ENOUGH_S, LONG_ENOUGH_LATENCIES * latency):
                break
        return count, seconds


def exchange_rows(table: Table, count: int, first: int) -> None:
    """Push `count` rows and pull them, or at least the `first` ones."""
    width = table.partitioning.width
    ids = np.arange(count, dtype=np.int64)
    table.push(ids, np.ones((count, width), np.float32))
    ids = np.arange(max(count, first), dtype=np.int64)
    table.pull(ids, np.empty((len(ids), width), np.float32))


def measure_servers(servers: ParameterServers, watch: Stopwatch, tag: str, clients: List[int],
                    shares: List[float]) -> Link:
    """Time the servers (collective); parameters as for :func:`calibrate`."""
    count = servers.num_servers
    one = servers.create_table(tag + '.servers', (max(SIZES), WIDTH), np.float32, count, 'assign', even=True)
    several = servers.create_table(tag + '.requests', (REQUESTS * count, 1), np.float32, REQUESTS * count, 'assign',
                                   even=True)
    latency = watch.seconds(lambda: exchange_rows(one, 0, count))
    requests = watch.seconds(lambda: exchange_rows(several, 0, REQUESTS * count))
    rows, seconds = watch.growing(lambda rows: exchange_rows(one, rows, count), latency)
    moved = server_bytes([2 * rows * (WIDTH * 4 + ROW_OVERHEAD_BYTES)] * len(clients), clients, shares)
    return Link(latency, rate(moved, seconds, latency), max(0.0, requests - latency) / (REQUESTS - 1))


def measure_ring(collective: Collective, watch: Stopwatch, tag: str, hosts: int) -> Link:
    """Time the allreduce (collective)."""
    def act(rows: int) -> None:
        sums[rows].push(np.arange(rows), np.ones((rows, WIDTH), np.float32))
        sums[rows].result()

    sums = {rows: RowSum(rows, WIDTH, np.float32, '%s.ring%d' % (tag, rows), collective) for rows in (1,) + SIZES}
    latency = watch.seconds(lambda: act(1))
    rows, seconds = watch.growing(act, latency)
    moved = ring_bytes(buffer_elements(rows, WIDTH) * 4, collective.size, hosts)
    return Link(latency, rate(moved, seconds, latency))


def calibrate(servers: ParameterServers, collective: Collective, clients: List[int], shares: List[float],
              tag: str) -> Network:
    """Measure both ways (collective; well below a second on a network of 1 Gbit/s).

    Parameters
    ----------
    servers : ParameterServers
    collective : Collective
    clients : list of int
        Host of each worker that pushes and pulls.
    shares : list of float
        Part of the servers on each host.
    tag : str
        Prefix of names.
    """
    watch = Stopwatch(collective, tag)
    return Network(measure_servers(servers, watch, tag, clients, shares),
                   measure_ring(collective, watch, tag, len(shares)))
