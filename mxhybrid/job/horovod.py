"""What Horovod needs before it starts: time, and under launch.py all that horovodrun would have told it."""
import contextlib
import os
from typing import Any, Iterator, List, Optional

from ..base.settings import Limits
from ..comm.topology import Topology

#: Milliseconds between two looks of Horovod for work, instead of 1.  All workers of a job talk with each other at each
#: of them, work or not: with 12 on two cores that took more than half of the cores.
_HOROVOD_CYCLE_MS = '25'
#: Seconds that Horovod waits longer for a worker than this project does, which then can say who is missing.
_AFTER_US_S = 30


def prepare_horovod(limits: Limits, has_little_to_do: bool) -> None:
    """Before Horovod starts: have it wait long enough, and look for work less often where it has little to do.

    Horovod over Gloo aborts after 30 s by itself (``gloo_context.cc``).  It `has_little_to_do`
    where the lane carries all dense sums.
    """
    os.environ.setdefault('HOROVOD_GLOO_TIMEOUT_SECONDS', '%d' % (max(limits.start, limits.silence) + _AFTER_US_S))
    if has_little_to_do:
        os.environ.setdefault('HOROVOD_CYCLE_TIME', _HOROVOD_CYCLE_MS)


def configure_horovod(slot: Any, root_address: str, rendezvous_port: int, interface: Optional[str]) -> None:
    """Tell Horovod, before it starts, what horovodrun would; `interface` is that of the network, if it is known."""
    values = {'HOROVOD_HOSTNAME': slot.hostname, 'HOROVOD_RANK': slot.rank, 'HOROVOD_SIZE': slot.size,
              'HOROVOD_LOCAL_RANK': slot.local_rank, 'HOROVOD_LOCAL_SIZE': slot.local_size,
              'HOROVOD_CROSS_RANK': slot.cross_rank, 'HOROVOD_CROSS_SIZE': slot.cross_size,
              'HOROVOD_CONTROLLER': 'gloo', 'HOROVOD_CPU_OPERATIONS': 'gloo',
              'HOROVOD_GLOO_RENDEZVOUS_ADDR': root_address, 'HOROVOD_GLOO_RENDEZVOUS_PORT': rendezvous_port}
    if interface is not None:
        values['HOROVOD_GLOO_IFACE'] = interface
    os.environ.update({name: str(value) for name, value in values.items()})


@contextlib.contextmanager
def anew(topology: Topology, limits: Limits, port: int, interface: Optional[str]) -> Iterator[None]:
    """Around a second start of Horovod in a job, for sums that are its own; the environment is as before, then.  Worker
    0's :func:`serve_rendezvous` gave the `port`.
    """
    given = {name: value for name, value in os.environ.items() if name.startswith('HOROVOD_')}
    try:
        configure_horovod(slots_of(list(topology.hosts))[topology.rank], topology.addresses[0], port, interface)
        prepare_horovod(limits, has_little_to_do=False)
        # What it is by itself, which a second start does not fall back to.
        os.environ.setdefault('HOROVOD_CYCLE_TIME', '1')
        yield
    finally:
        for name in [name for name in os.environ if name.startswith('HOROVOD_')]:
            del os.environ[name]
        os.environ.update(given)


def serve_rendezvous(topology: Topology) -> int:
    """Where workers that start Horovod find each other; its port on this host, until this process ends."""
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(slots_of(list(topology.hosts)))
    return port


def slots_of(hosts: List[str]) -> List[Any]:
    """Horovod's description of every rank, from the host of every rank."""
    from horovod.runner.common.util.hosts import SlotInfo

    local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    order = list(dict.fromkeys(hosts))
    slots = []
    for rank, host in enumerate(hosts):
        peers = [other for other in order if hosts.count(other) > local_ranks[rank]]
        slots.append(SlotInfo(hostname=host, rank=rank, local_rank=local_ranks[rank], cross_rank=peers.index(host),
                              size=len(hosts), local_size=hosts.count(host), cross_size=len(peers)))
    return slots
