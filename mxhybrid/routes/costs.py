"""What a table costs in a step by servers and by allreduce: arithmetic only, no communication.

Time is modelled as latency plus bytes over bandwidth.  The bytes are those in and out of the busiest host, as in
Parallax (Kim et al., EuroSys 2019, table 3): with N hosts, a table of w bytes of which a step touches the fraction
α, and partitions spread evenly, 4αw(N-1)/N by servers against 4w(N-1)/N by a ring allreduce.  On one host, where
nothing reaches the network, the bytes are all that the host's processes send each other.  The rates come from
probes that are counted by the same formulas (:mod:`mxhybrid.routes.probe`).
"""
from dataclasses import dataclass
from typing import Dict, List, Sequence

from ..servers.partitioning import ROW_OVERHEAD_BYTES

#: Bytes of a row id as workers gather them.
ID_BYTES = 4


@dataclass(frozen=True)
class Speed:
    """What one way of communication costs: seconds of the smallest exchange; further bytes per second, as
    :func:`server_bytes` or :func:`ring_bytes` count them; seconds of each further request that one server gets.
    """

    latency_s: float
    bytes_per_s: float
    request_s: float = 0.0

    def seconds(self, moved: float, requests: int = 1) -> float:
        """Predicted seconds for `moved` bytes in `requests` requests to the busiest server."""
        return self.latency_s + self.request_s * max(0, requests - 1) + moved / self.bytes_per_s


def rate(moved: float, seconds: float, latency: float) -> float:
    """Bytes per second of an exchange of `moved` bytes that took `seconds`, `latency` of which without any bytes.

    Noise can make a large exchange look as fast as an empty one: at least half of the time counts.
    """
    return max(moved, 1.0) / max(seconds - latency, 0.5 * seconds, 1e-9)


@dataclass(frozen=True)
class Network:
    """Both ways of a job, as calibrated."""

    servers: Speed
    ring: Speed


def shares_of_hosts(rows_on: Dict[int, int], hosts: int, servers: int) -> List[float]:
    """Part of the rows on each host, from those on each server.

    ps-lite numbers servers by host, then port (``ProcessAddNodeCommandAtScheduler`` in ``van.cc``), and launchers start
    as many on each host.  Which host comes first is not known here: for even loads it does not matter.
    """
    found = [0.0] * hosts
    for server, rows in rows_on.items():
        found[server * hosts // servers] += rows / sum(rows_on.values())
    return found


def server_bytes(clients: Sequence[float], hosts: Sequence[int], shares: Sequence[float]) -> float:
    """Bytes in and out of the busiest host when clients push to and pull from servers.

    `clients` are the bytes pushed and pulled by each client, a worker, or a host where one worker speaks for all of
    its host; `hosts` the host of each, from 0; `shares` the part of the bytes that goes to the servers on each host.
    """
    if len(shares) == 1:
        return float(sum(clients))
    total = float(sum(clients))
    own = [sum(moved for moved, at in zip(clients, hosts) if at == host) for host in range(len(shares))]
    return max(mine * (1 - share) + (total - mine) * share for mine, share in zip(own, shares))


def ring_bytes(size: float, workers: int, hosts: int) -> float:
    """Bytes in and out of each host when `workers`, grouped by host, allreduce `size` bytes in a ring."""
    if hosts == 1:
        return 2.0 * size * (workers - 1)
    return 4.0 * size * (workers - 1) / workers


def ring_share(size: int, workers: int) -> int:
    """Bytes that a worker sends, and as many that it receives, when `size` bytes are summed in a ring of workers."""
    return int(ring_bytes(size, workers, workers) / 2)


def gather_bytes(size: float, workers: int, hosts: int) -> float:
    """Bytes in and out of each host when `workers` gather `size` bytes in all."""
    if hosts == 1:
        return float(size) * (workers - 1)
    return 2.0 * size * (workers - 1) / workers


@dataclass(frozen=True)
class Use:
    """How a job uses a table of `rows` times `width` elements in a step.

    `pushed` and `pulled` are the rows of each client, `clients` their hosts, `shares` the part of the table that lives
    on each host's servers, `requests` the partitions on the server that has most of them, `gathered` the row ids that
    all workers together gather, 0 where they need not.
    """

    rows: int
    width: int
    itemsize: int
    pushed: List[float]
    pulled: List[float]
    clients: List[int]
    shares: List[float]
    requests: int
    gathered: float
    workers: int

    @property
    def size(self) -> int:
        """Bytes of the table."""
        return self.rows * self.width * self.itemsize


@dataclass(frozen=True)
class Estimate:
    """Bytes of the busiest host and seconds, per step, for each way."""

    servers_bytes: float
    allreduce_bytes: float
    servers_s: float
    allreduce_s: float


def estimate(use: Use, network: Network) -> Estimate:
    """Predict a step of a table by servers and by allreduce."""
    hosts = len(use.shares)
    row_bytes = use.width * use.itemsize + ROW_OVERHEAD_BYTES
    served = server_bytes([(pushed + pulled) * row_bytes for pushed, pulled in zip(use.pushed, use.pulled)],
                          use.clients, use.shares)
    seconds = network.servers.seconds(served, use.requests)
    if use.gathered:
        ids = gather_bytes(use.gathered * ID_BYTES, use.workers, hosts)
        served += ids
        seconds += network.ring.seconds(ids)
    # One more element a row says whether anyone touched it.
    reduced = ring_bytes(use.rows * (use.width + 1) * use.itemsize, use.workers, hosts)
    return Estimate(served, reduced, seconds, network.ring.seconds(reduced))
