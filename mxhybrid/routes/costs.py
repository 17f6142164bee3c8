"""The cost of a table in a step by servers and by allreduce, and the choice between both: arithmetic only.

Time is modelled as latency plus bytes over bandwidth.  The bytes are those in and out of the busiest host, as in
Parallax (Kim et al., EuroSys 2019, table 3).  With N hosts, a table of w bytes of which a step touches the fraction α,
and partitions spread evenly, these are 4αw(N-1)/N by servers, and 4w(N-1)/N by a ring allreduce.  On one host, which
uses no network, the bytes are all that the host's processes send each other.  The rates come from probes whose bytes
are counted by the same formulas (:mod:`mxhybrid.routes.probe`).
"""
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

import numpy as np

from ..servers.partitioning import ROW_OVERHEAD_BYTES

#: Bytes of a row id as workers gather them.
ID_BYTES = 4
#: Elements of a dense sum that have a scale in common where they travel as int8, ``kInt8Block`` of
#: ``kernels/src/kernels/int8.h``, and the bytes of a scale.
_INT8_BLOCK, _SCALE_BYTES = 256, 4
#: Allreduce is chosen if it is predicted to take at most this part of the servers' time: the move of a table costs
#: time, too, and the prediction has an error.
MARGIN = 0.8

#: If a step touches this part of the rows or more, both routes move about the same bytes.  Then allreduce is preferred:
#: without servers no forward pass waits for rows, and the servers have time for other tables.
NEAR_DENSE = 0.9
NEAR_DENSE_MARGIN = 1.1
#: Bytes below which a table stays on the servers unless forced: only latency would decide, and its noise is too large.
SMALL_TABLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Speed:
    """The speed of servers or allreduce."""

    #: Seconds of the smallest exchange.
    latency_s: float
    #: Bytes per second after that, as :func:`server_bytes` or :func:`ring_bytes` count them.
    bytes_per_s: float
    #: Seconds of each further request that one server gets.
    request_s: float = 0.0

    def seconds(self, moved: float, requests: int = 1) -> float:
        """Predict the seconds for `moved` bytes in `requests` requests to the busiest server."""
        return self.latency_s + self.request_s * max(0, requests - 1) + moved / self.bytes_per_s


def rate(moved: float, seconds: float, latency: float) -> float:
    """Return the bytes per second of an exchange of `moved` bytes that took `seconds`; an empty one takes `latency`.

    Noise can make a large exchange look as fast as an empty one, so at least half of the time counts.
    """
    return max(moved, 1.0) / max(seconds - latency, 0.5 * seconds, 1e-9)


@dataclass(frozen=True)
class Network:
    """The calibrated speeds of both routes of a job."""

    servers: Speed
    ring: Speed


def shares_of_hosts(rows_on: Dict[int, int], hosts: int, servers: int) -> List[float]:
    """Return the part of the rows on each host, from the rows on each server.

    ps-lite numbers servers by host, then port (``ProcessAddNodeCommandAtScheduler`` in ``van.cc``), and launchers start
    equally many on each host.  The order of the hosts is not known here; for even loads it does not matter.
    """
    shares = [0.0] * hosts
    for server, rows in rows_on.items():
        shares[server * hosts // servers] += rows / sum(rows_on.values())
    return shares


def server_bytes(clients: Sequence[float], hosts: Sequence[int], shares: Sequence[float]) -> float:
    """Return the bytes in and out of the busiest host when clients push to and pull from servers.

    `clients` has the bytes that each client pushes and pulls: a client is a worker, or all workers of a host if their
    rows travel together.  `hosts` has the host of each client, from 0, and `shares` the part of the bytes that goes to
    the servers on each host.
    """
    if len(shares) == 1:
        return float(sum(clients))
    total = float(sum(clients))
    by_host = [sum(moved for moved, client_host in zip(clients, hosts) if client_host == host)
               for host in range(len(shares))]
    return max(moved * (1 - share) + (total - moved) * share for moved, share in zip(by_host, shares))


def ring_bytes(size: float, workers: int, hosts: int) -> float:
    """Return the bytes in and out of each host when `workers`, grouped by host, allreduce `size` bytes in a ring.

    The reduce-scatter and the allgather move the same bytes.
    """
    return 2 * gather_bytes(size, workers, hosts)


def ring_share(size: int, workers: int) -> int:
    """Return the bytes that each worker sends, and receives, when `size` bytes are summed in a ring of workers."""
    return int(ring_bytes(size, workers, workers) / 2)


def dense_bytes(count: int, wire_dtype: np.dtype) -> int:
    """Return the bytes of `count` values of a dense sum that travel as `wire_dtype`; int8 needs scales for blocks."""
    return count * wire_dtype.itemsize + (_SCALE_BYTES * -(-count // _INT8_BLOCK) if wire_dtype == np.int8 else 0)


def gather_bytes(size: float, workers: int, hosts: int) -> float:
    """Return the bytes in and out of each host when `workers` gather `size` bytes in total."""
    if hosts == 1:
        return float(size) * (workers - 1)
    return 2.0 * size * (workers - 1) / workers


@dataclass(frozen=True)
class Use:
    """The use of a table of `rows` times `width` elements in a step.

    A row takes `row_bytes` between workers and servers, and an element `itemsize` in an allreduce.
    `pushed` and `pulled` are the rows of each client, `clients` their hosts, `shares` the part of the table on each
    host's servers, `requests` the number of partitions on the server that has most of them, and `gathered` the number
    of row ids that all workers together gather, 0 if they do not gather ids.
    """

    rows: int
    width: int
    itemsize: int
    row_bytes: int
    pushed: List[float]
    pulled: List[float]
    clients: List[int]
    shares: List[float]
    requests: int
    gathered: float
    workers: int


@dataclass(frozen=True)
class Estimate:
    """Bytes of the busiest host, and seconds, per step, for each route."""

    servers_bytes: float
    allreduce_bytes: float
    servers_s: float
    allreduce_s: float


def estimate(use: Use, network: Network) -> Estimate:
    """Predict a step of a table by servers and by allreduce."""
    hosts = len(use.shares)
    row_bytes = use.row_bytes + ROW_OVERHEAD_BYTES
    by_servers = server_bytes([(pushed + pulled) * row_bytes for pushed, pulled in zip(use.pushed, use.pulled)],
                              use.clients, use.shares)
    seconds = network.servers.seconds(by_servers, use.requests)
    if use.gathered:
        ids = gather_bytes(use.gathered * ID_BYTES, use.workers, hosts)
        by_servers += ids
        seconds += network.ring.seconds(ids)
    # A further element of each row says whether any worker touched the row.
    by_allreduce = ring_bytes(use.rows * (use.width + 1) * use.itemsize, use.workers, hosts)
    return Estimate(by_servers, by_allreduce, seconds, network.ring.seconds(by_allreduce))


@dataclass(frozen=True)
class Choice:
    """The `route` of a table, 'servers' or 'allreduce', and the reason.

    `because` is 'forced', 'small', 'measured', or 'memory' if allreduce would be chosen but does not fit: the table
    does not fit into the workers' memory, or a row of optimizer state does not fit into an answer of the servers.
    `touched` is the part of the rows that one worker, on average, touches in a step, `union` the part that all workers
    together touch.
    """

    route: str
    because: str
    touched: Optional[float] = None
    union: Optional[float] = None
    estimate: Optional[Estimate] = None


def weigh(predicted: Estimate, touched: float, union: float, fits: bool) -> Choice:
    """Choose allreduce or servers for a table.

    Allreduce is chosen if it `fits` and is clearly cheaper, or about as cheap for a near-dense table.
    """
    margin = NEAR_DENSE_MARGIN if union >= NEAR_DENSE else MARGIN
    if predicted.allreduce_s > margin * predicted.servers_s:
        return Choice('servers', 'measured', touched, union, predicted)
    return Choice('allreduce' if fits else 'servers', 'measured' if fits else 'memory', touched, union, predicted)
