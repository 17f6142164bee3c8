"""Who takes part in a job and where, and which worker speaks for each host."""
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
    #: The worker that talks to servers and other hosts for each one; see :func:`find_leaders`.
    leaders: Sequence[int]

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return len(self.hosts)

    @property
    def leader(self) -> int:
        """The worker that talks to servers and other hosts for this one, which may be itself."""
        return self.leaders[self.rank]

    @property
    def leads(self) -> bool:
        """Whether this worker talks to servers and other hosts."""
        return self.leader == self.rank

    @property
    def followers(self) -> List[int]:
        """The workers that this one speaks for, itself left out."""
        return [other for other, leader in enumerate(self.leaders) if leader == self.rank != other]

    @property
    def all_leaders(self) -> List[int]:
        """Every worker that speaks for others or for itself, in order."""
        return sorted(set(self.leaders))


def find_leaders(places: Sequence[str], aggregate: bool) -> List[int]:
    """For each worker, whose host :func:`mxhybrid.base.local_sockets.place_of_host` tells, the one that speaks for it:
    the first one there, or itself without aggregation.
    """
    return [places.index(place) for place in places] if aggregate else list(range(len(places)))
