"""Assembles a worker's way to the servers and of summing: by the leader of its host, or by itself."""
import time
from typing import Callable, Optional, Union

from ..comm.collective import Collective
from ..comm.connections import connect_host, connect_leaders
from ..comm.host_sums import FollowerReduction, LeaderReduction
from ..comm.leader_sums import Mesh
from ..comm.topology import Topology
from ..servers.aggregation import Direct, Follower, Leader
from ..servers.client import Client
from ..watchdog.leaving import ECHO_DELAY_S


def join_host(topology: Topology, collective: Collective, client: Optional[Client], timeout: float,
              on_failure: Callable[[BaseException], None], rows: bool = True) -> Union[Direct, Leader, Follower]:
    """Bring a worker together with the others of its host, and leaders with each other (collective).

    `collective` gets its way of summing, where hosts have several workers; `client` is that of this worker, if it has
    one; `on_failure` is called with an exception that ends aggregation.  Returns this worker's way to the servers; it
    carries no `rows` where they will go another one.
    """
    leaders = topology.all_leaders
    if len(leaders) == topology.num_workers:
        # Horovod's ring needs less of the CPU then: 10 % of a step with 8 hosts at 1 Gbit/s.
        assert client is not None
        return Direct(client)
    peers = connect_host(topology, ['rows', 'sums'] if rows else ['sums'],
                         lambda name: collective.exchange(name, 'mxhybrid.listeners'), timeout)
    place = leaders.index(topology.rank) if topology.leads else None
    sockets = connect_leaders(place, topology.addresses[topology.rank],
                              lambda value: collective.exchange(value, 'mxhybrid.leaders'), timeout)
    if place is None:
        collective.sum_by(FollowerReduction(peers['sums'], on_failure, timeout))
        # If the leader dies, the job monitor has the cause; a moment for it to say so and end this process.
        return (Follower(peers['rows'][topology.leader], client, lambda: time.sleep(ECHO_DELAY_S)) if rows
                else Direct(client))
    assert client is not None
    mesh = Mesh(place, sockets, on_failure) if sockets else None
    collective.sum_by(LeaderReduction(peers['sums'], on_failure, timeout, mesh))
    return Leader(client, peers['rows'], on_failure) if rows and peers['rows'] else Direct(client)
