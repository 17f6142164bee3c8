"""Who takes part in a job and where."""
from dataclasses import dataclass
from typing import List, Sequence


@dataclass(frozen=True)
class Topology:
    """The picture that a worker has of its job; the lists are by rank."""

    rank: int
    #: Names of the hosts.
    hosts: Sequence[str]
    #: Where others reach the hosts.
    addresses: Sequence[str]
    #: What can share memory: equal where it is the same, see :func:`mxhybrid.base.local_sockets.memory_domain`.
    memory_domains: Sequence[str]

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return len(self.hosts)

    @property
    def local_rank(self) -> int:
        """Rank of this worker among those of its host."""
        return list(self.hosts[:self.rank]).count(self.hosts[self.rank])

    def groups(self, share: bool) -> List[List[int]]:
        """Workers whose rows travel together: those of a memory domain if they `share` memory, else each by itself."""
        if not share:
            return [[rank] for rank in range(self.num_workers)]
        return [[rank for rank, other in enumerate(self.memory_domains) if other == domain]
                for domain in dict.fromkeys(self.memory_domains)]
