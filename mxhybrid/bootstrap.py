"""What Horovod needs before it starts.

Workers under launch.py have a native store already, which carries their addresses.
"""
import json
import os
from typing import Any, Dict, List

import mxnet as mx
import numpy as np

from .arrays import host_view
from .errors import JobError
from .heartbeat import Limits
from .processes import interface_of

#: Native key over which they exchange; tables use keys above it.
BOOTSTRAP_KEY = 1

_BYTES = 2048

#: Milliseconds between two looks of Horovod for work, instead of 1.  All workers of a job talk with each other at each
#: of them, work or not: with 12 on two cores that took more than half of the cores.
_HOROVOD_CYCLE_MS = '25'

#: Seconds that Horovod waits longer for a worker than this project does, which then can say who is missing.
_AFTER_US_S = 30


def exchange_natively(native: Any, value: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Give all workers the JSON `value` of all, over the native store: each adds its row to a sum."""
    shape = (native.num_workers, _BYTES)
    text = json.dumps(value).encode().ljust(_BYTES)
    if len(text) > _BYTES:
        raise JobError('a worker\'s address record has %d bytes, %d fit' % (len(text), _BYTES))
    mine = np.zeros(shape, np.float32)
    mine[native.rank] = np.frombuffer(text, np.uint8)
    array = mx.nd.array(mine)
    native.init(BOOTSTRAP_KEY, mx.nd.zeros(shape))
    native.push(BOOTSTRAP_KEY, array)
    native.pull(BOOTSTRAP_KEY, out=array)
    return [json.loads(row.astype(np.uint8).tobytes().decode()) for row in host_view(array)]


def prepare_horovod(limits: Limits, aggregates: bool) -> None:
    """Before Horovod starts: have it wait long enough, and look for work less often where it has little to do.

    Parameters
    ----------
    limits : Limits
        How long mxhybrid waits itself; Horovod over Gloo aborts after 30 s by itself (``gloo_context.cc``).
    aggregates : bool
        Whether local aggregation sums the dense gradients that are on CPUs.
    """
    os.environ.setdefault('HOROVOD_GLOO_TIMEOUT_SECONDS', '%d' % (max(limits.start, limits.silence) + _AFTER_US_S))
    if aggregates and not mx.runtime.Features().is_enabled('CUDA'):
        os.environ.setdefault('HOROVOD_CYCLE_TIME', _HOROVOD_CYCLE_MS)


def configure_horovod(slot: Any, root_address: str, rendezvous_port: int, address: str) -> None:
    """Tell Horovod, before it starts, what horovodrun would."""
    interface = interface_of(address)
    values = {'HOROVOD_HOSTNAME': slot.hostname, 'HOROVOD_RANK': slot.rank, 'HOROVOD_SIZE': slot.size,
              'HOROVOD_LOCAL_RANK': slot.local_rank, 'HOROVOD_LOCAL_SIZE': slot.local_size,
              'HOROVOD_CROSS_RANK': slot.cross_rank, 'HOROVOD_CROSS_SIZE': slot.cross_size,
              'HOROVOD_CONTROLLER': 'gloo', 'HOROVOD_CPU_OPERATIONS': 'gloo',
              'HOROVOD_GLOO_RENDEZVOUS_ADDR': root_address, 'HOROVOD_GLOO_RENDEZVOUS_PORT': rendezvous_port}
    if interface is not None:
        values['HOROVOD_GLOO_IFACE'] = os.environ.get('HOROVOD_GLOO_IFACE', interface)
    os.environ.update({name: str(value) for name, value in values.items()})


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
