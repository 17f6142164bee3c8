"""The resources of a cluster: cores and links, by rank and by host."""
from typing import List, Sequence

import numpy as np

from ..simulator.resource_groups import ResourceGroup, TokenBucket
from .cluster_spec import Cluster

#: Sums of many numbers are rounded: a lower bound from such a sum is made smaller by this factor.
_ROUNDING = 1 - 1e-9


class Machine:
    """The resources of a cluster by number, and the ranks and hosts that use them.

    - `core_speed`: how many times as fast the reference core of the cluster is as the core that operators were timed
      on.

    Attributes:

    - `names`: by resource.
    - `rates`, `bursts` (numpy.ndarray of float): by resource.
    - `groups`: the cores of each host that slow each other down while several of them compute.
    - `core`, `host` (numpy.ndarray of int): by rank: the number of its core, and of its host.
    - `speed` (numpy.ndarray of float): by rank: the speed of its core while no other core of its host computes,
      relative to the core that operators were timed on.
    - `shared` (numpy.ndarray of float): by rank: the speed of its core for work that is bound by memory, while all
      cores of its host compute, relative to its speed alone.  Costs were measured while they did, and are of such work.
    - `up`, `down` (numpy.ndarray of int): by host: the numbers of its uplink and its downlink.
    """

    def __init__(self, cluster: Cluster, core_speed: float = 1.0):
        self.cluster = cluster
        self.ranks, self.hosts = cluster.ranks, len(cluster.hosts)
        self.resources: List[TokenBucket] = []
        self.names: List[str] = []
        self.groups: List[ResourceGroup] = []
        core_of, host_of, speed_of, shared_of = [], [], [], []
        for host_number, host in enumerate(cluster.hosts):
            count = max(1, min(host.ranks, int(host.cores)))
            # A quota gives a share of a core; ranks that share whole cores take turns on them.
            share = min(1.0, host.cores / count)
            bucket = TokenBucket(share, 1.0, host.burst_s) if host.burst_s and share < 1 else TokenBucket(share)
            cores = [self._add(bucket, '%s core %d' % (host.name, index)) for index in range(count)]
            speeds = [host.speed] * count if bucket.burst else host.speeds_of(count)
            memory_speeds = speeds if bucket.burst else host.speeds_of(count, memory=True)
            if min(speeds[-1], memory_speeds[-1]) < speeds[0]:
                shares, memory_shares = (tuple(speed / speeds[0] for speed in of_kind)
                                         for of_kind in (speeds, memory_speeds))
                self.groups.append(ResourceGroup(tuple(cores), shares,
                                                 () if memory_shares == shares else memory_shares))
            for rank in range(host.ranks):
                core_of.append(cores[rank * count // host.ranks])
                host_of.append(host_number)
                speed_of.append(core_speed * speeds[0])
                shared_of.append(memory_speeds[-1] / speeds[0])
        self.core, self.host, self.speed = np.array(core_of), np.array(host_of), np.array(speed_of)
        self.shared = np.array(shared_of)
        self.up = np.array([self._add(cluster.link, '%s sends' % host.name) for host in cluster.hosts])
        self.down = np.array([self._add(cluster.link, '%s receives' % host.name) for host in cluster.hosts])
        self.rates, self.bursts = np.array([(bucket.rate, bucket.burst) for bucket in self.resources]).T

    def has_idle_core(self, rank: int, idle: Sequence[int]) -> bool:
        """Return whether a host has a core on which no rank computes, if some ranks are idle."""
        free_cores = {core for other, core in enumerate(self.core.tolist()) if self.host[other] == self.host[rank]}
        return bool(free_cores - {core for other, core in enumerate(self.core.tolist()) if other not in idle})

    def least_seconds(self, load: np.ndarray) -> float:
        """Return a lower bound of the time for the work of each resource: full buckets are spent at once, the rest at
        the rate.
        """
        return float(((load - self.bursts) / self.rates).max()) * _ROUNDING

    def _add(self, bucket: TokenBucket, name: str) -> int:
        self.resources.append(bucket)
        self.names.append(name)
        return len(self.resources) - 1
