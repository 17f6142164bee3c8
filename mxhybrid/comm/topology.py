"""The workers of a job and their hosts."""
from dataclasses import dataclass
from typing import List, Sequence


@dataclass(frozen=True)
class Topology:
    """The workers of a job, as one worker knows them; the lists are by rank."""

    rank: int
    #: Names of the hosts.
    hosts: Sequence[str]
    #: Addresses under which other hosts reach the hosts.
    addresses: Sequence[str]
    #: Domains of shared memory: equal for workers that can share memory, see
    #: :func:`mxhybrid.messaging.local_sockets.memory_domain`.
    memory_domains: Sequence[str]

    @property
    def num_workers(self) -> int:
        """Number of workers of the job."""
        return len(self.hosts)

    @property
    def local_rank(self) -> int:
        """Rank of this worker among the workers of its host."""
        return list(self.hosts[:self.rank]).count(self.hosts[self.rank])

    def groups(self, share: bool) -> List[List[int]]:
        """Return the workers whose rows travel together: all of a memory domain if they `share` memory, else each."""
        if not share:
            return [[rank] for rank in range(self.num_workers)]
        return [[rank for rank, other in enumerate(self.memory_domains) if other == domain]
                for domain in dict.fromkeys(self.memory_domains)]
