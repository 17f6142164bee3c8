"""Prepare Horovod before it starts: its time limits, and under launch.py the variables that horovodrun would set."""
import os
from typing import List, Optional

from ..base.settings import Limits
from .roll_call import MOST_EXTENSION

#: Milliseconds between two cycles of Horovod, instead of 1, for each worker that shares a processor, and the most.  In
#: each cycle all workers of a job exchange messages, even without work: with 12 workers on two cores and cycles of 1 ms
#: that took more than half of the cores.  With N workers, each of them sends 2(N-1) messages in a cycle, so cycles are
#: also longer by the number of workers, for each two of them.
_HOROVOD_CYCLE_MS, _MAX_HOROVOD_CYCLE_MS = 25, 100
#: Seconds that Horovod waits longer for a worker than mxhybrid, which names the missing workers in its error.
_EXTRA_WAIT_S = 30


def prepare_horovod(limits: Limits, has_little_to_do: bool) -> None:
    """Make Horovod wait long enough for workers, and cycle less often where it `has_little_to_do`.

    Horovod over Gloo aborts after 30 s by default (``gloo_context.cc``).  It has little to do where the lane carries
    all dense sums.
    """
    longest_s = (1 + MOST_EXTENSION) * max(limits.start, limits.silence)
    os.environ.setdefault('HOROVOD_GLOO_TIMEOUT_SECONDS', '%d' % (longest_s + _EXTRA_WAIT_S))
    if has_little_to_do:
        os.environ.setdefault('HOROVOD_CYCLE_TIME', str(_cycle_ms()))


def _cycle_ms() -> int:
    """Return the milliseconds between two cycles, by the workers for each processor of this host and by all workers."""
    shares = max(-(-_count('HOROVOD_LOCAL_SIZE') // len(os.sched_getaffinity(0))), -(-_count('HOROVOD_SIZE') // 2))
    return min(_MAX_HOROVOD_CYCLE_MS, _HOROVOD_CYCLE_MS * shares)


def _count(name: str) -> int:
    """Return the number of workers in a variable of Horovod, or 1 if it is missing: an MPI sets none."""
    text = os.environ.get(name, '')
    return max(1, int(text)) if text.isdigit() else 1


def configure_horovod(hosts: List[str], rank: int, root_address: str, rendezvous_port: int,
                      interface: Optional[str]) -> None:
    """Set the variables that horovodrun would set for the worker `rank`.

    `hosts` has the host of every rank; `interface` is the network interface, if it is known.
    """
    host = hosts[rank]
    local_rank = hosts[:rank].count(host)
    peers = [other for other in dict.fromkeys(hosts) if hosts.count(other) > local_rank]
    values = {'HOROVOD_HOSTNAME': host, 'HOROVOD_RANK': rank, 'HOROVOD_SIZE': len(hosts),
              'HOROVOD_LOCAL_RANK': local_rank, 'HOROVOD_LOCAL_SIZE': hosts.count(host),
              'HOROVOD_CROSS_RANK': peers.index(host), 'HOROVOD_CROSS_SIZE': len(peers),
              'HOROVOD_CONTROLLER': 'gloo', 'HOROVOD_CPU_OPERATIONS': 'gloo',
              'HOROVOD_GLOO_RENDEZVOUS_ADDR': root_address, 'HOROVOD_GLOO_RENDEZVOUS_PORT': rendezvous_port}
    if interface is not None:
        values['HOROVOD_GLOO_IFACE'] = interface
    os.environ.update({name: str(value) for name, value in values.items()})
