"""Bytes that no exact exchange of this kind can avoid: tables through servers on the hosts, dense tensors in a ring.

A host pushes and pulls the union of its workers' rows once, ids left out.  Every server holds 1/H of the rows, and one
runs on each host, so 1/H of a host's rows does not cross its link; for the rest its link sends its own push and its
server's answers to the other hosts.  A ring allreduce over hosts sends and receives 2(H-1)/H of the dense bytes.
"""
from typing import Dict, List, NamedTuple, Optional

import numpy as np

from .workloads import BATCHES, Workload


class Bound(NamedTuple):
    """The lower bound of a step, averaged over batches."""

    #: Rows in the union of a host's workers, over all tables; mean over hosts.
    rows: float
    #: Bytes over the link of the busiest host.
    sent: float
    received: float
    #: The time that the link needs for them; None without a rate.
    seconds: Optional[float]


def ring_bytes(nbytes: float, members: int) -> float:
    """Bytes that each member of a ring allreduce sends, and receives."""
    return 2 * (members - 1) / members * nbytes


def host_unions(workload: Workload, hosts: int, workers: int, batch: int) -> Dict[str, List[int]]:
    """Distinct rows that each host's workers touch together, by table."""
    unions: Dict[str, List[int]] = {table.name: [] for table in workload.tables}
    for host in range(hosts):
        drawn = [workload.draw(batch, host * workers + worker) for worker in range(workers)]
        for name, counts in unions.items():
            counts.append(len(np.unique(np.concatenate([ids[name] for ids in drawn]))))
    return unions


def lower_bound(workload: Workload, hosts: int, workers: int, mbit_per_s: Optional[float] = None) -> Bound:
    """Return the bound of a job of `workers` workers on each of `hosts` hosts, with links of a rate if it is given."""
    rows, moved = [], []
    for batch in range(BATCHES):
        unions = host_unions(workload, hosts, workers, batch)
        rows.append(np.mean([sum(counts[host] for counts in unions.values()) for host in range(hosts)]))
        per_host = np.zeros(hosts)
        for table in workload.tables:
            counts = np.array(unions[table.name], float) * table.row_bytes
            # Pushed to, or pulled from, the other hosts; and the same for them at this host's server.
            per_host += counts * (hosts - 1) / hosts + (counts.sum() - counts) / hosts
        moved.append(per_host.max())
    # A pull moves as many bytes as a push, in the opposite direction, so a host receives as many bytes as it sends.
    both = float(np.mean(moved)) + ring_bytes(workload.dense_bytes, hosts)
    seconds = None if mbit_per_s is None else both * 8 / (mbit_per_s * 1e6)
    return Bound(float(np.mean(rows)), both, both, seconds)
