"""The members of the lane: agents, which hold rows, and workers, with the host of each."""
from dataclasses import dataclass
from typing import Any, List, NamedTuple, Sequence


class Endpoint(NamedTuple):
    """The addresses of an agent."""

    #: The processes that can share memory with it, see :func:`mxhybrid.messaging.local_sockets.memory_domain`.
    memory_domain: str
    #: Address and port for other hosts.
    address: str
    port: int
    #: Name of the listener for workers of its host, see :class:`mxhybrid.messaging.local_sockets.Listener`.
    listener: str


@dataclass(frozen=True)
class Membership:
    """All agents and workers, equal in all processes; `memory_domains` are those of the workers by rank."""

    agents: Sequence[Endpoint]
    memory_domains: Sequence[str]

    @classmethod
    def from_json(cls, agents: List[List[Any]], memory_domains: List[str]) -> 'Membership':
        """Return the membership from the fields of its endpoints."""
        return cls([Endpoint(*endpoint) for endpoint in agents], memory_domains)

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
        """The number of workers of each host."""
        return [list(self.memory_domains).count(host) for host in self.hosts]

    @property
    def workers_by_host(self) -> List[int]:
        """The ranks of all workers, in the order of hosts and then of ranks."""
        return [rank for host in self.hosts for rank, domain in enumerate(self.memory_domains) if domain == host]

    def local_rank(self, rank: int) -> int:
        """Return the number of a worker among those of its host."""
        return list(self.memory_domains[:rank]).count(self.memory_domains[rank])
