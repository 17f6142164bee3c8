"""Who is on the lane: agents, which hold rows, and workers, and on which host each of them is."""
from dataclasses import dataclass
from typing import Any, List, NamedTuple, Sequence


class Endpoint(NamedTuple):
    """How an agent is reached."""

    #: What can share memory with it, see :func:`mxhybrid.base.local_sockets.memory_domain`.
    memory_domain: str
    #: For other hosts.
    address: str
    port: int
    #: For the workers of its host, see :class:`mxhybrid.base.local_sockets.Listener`.
    listener: str


@dataclass(frozen=True)
class Membership:
    """The same on all agents and workers; `memory_domains` is by rank of the worker."""

    agents: Sequence[Endpoint]
    memory_domains: Sequence[str]

    @classmethod
    def from_json(cls, agents: List[List[Any]], memory_domains: List[str]) -> 'Membership':
        """What travelled as :meth:`as_json`."""
        return cls([Endpoint(*endpoint) for endpoint in agents], memory_domains)

    def as_json(self) -> List[Any]:
        """Agents and memory domains."""
        return [list(map(list, self.agents)), list(self.memory_domains)]

    @property
    def hosts(self) -> List[str]:
        """The memory domain of each host."""
        return list(dict.fromkeys([*self.memory_domains, *(agent.memory_domain for agent in self.agents)]))

    @property
    def agent_hosts(self) -> List[int]:
        """The number of each agent's host."""
        hosts = self.hosts
        return [hosts.index(agent.memory_domain) for agent in self.agents]

    @property
    def worker_counts(self) -> List[int]:
        """How many workers each host has."""
        return [list(self.memory_domains).count(host) for host in self.hosts]

    def local_rank(self, rank: int) -> int:
        """The number of a worker among those of its host."""
        return list(self.memory_domains[:rank]).count(self.memory_domains[rank])
