"""Who is on the lane: agents, which hold rows, and workers, and on which host each of them is."""
from dataclasses import dataclass
from typing import Any, List, NamedTuple, Sequence


class Endpoint(NamedTuple):
    """How an agent is reached."""

    #: What can share memory with it, see :func:`mxhybrid.base.local_sockets.place_of_host`.
    place: str
    #: For other hosts.
    address: str
    port: int
    #: For the workers of its host, see :class:`mxhybrid.base.local_sockets.Listener`.
    listener: str


@dataclass(frozen=True)
class Membership:
    """The same on all agents and workers; `places` is by rank of the worker."""

    agents: Sequence[Endpoint]
    places: Sequence[str]

    @classmethod
    def from_json(cls, agents: List[List[Any]], places: List[str]) -> 'Membership':
        """What travelled as :meth:`as_json`."""
        return cls([Endpoint(*endpoint) for endpoint in agents], places)

    def as_json(self) -> List[Any]:
        """Agents and places."""
        return [list(map(list, self.agents)), list(self.places)]

    @property
    def hosts(self) -> List[str]:
        """The place of each host."""
        return list(dict.fromkeys([*self.places, *(agent.place for agent in self.agents)]))

    @property
    def agent_hosts(self) -> List[int]:
        """The number of each agent's host."""
        hosts = self.hosts
        return [hosts.index(agent.place) for agent in self.agents]

    @property
    def worker_counts(self) -> List[int]:
        """How many workers each host has."""
        return [list(self.places).count(host) for host in self.hosts]

    def local_rank(self, rank: int) -> int:
        """The number of a worker among those of its host."""
        return list(self.places[:rank]).count(self.places[rank])
