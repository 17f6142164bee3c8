"""Join a job of MXNet's ``launch.py``: first the native store, whose ranks count, then Horovod with its help."""
import contextlib
import json
import os
import socket
import stat
from typing import Any, Dict, List

import mxnet as mx
import numpy as np

from ..base import log
from ..base.errors import JobError, SettingError
from ..base.launcher import Launch
from ..base.settings import Settings, check_equal
from ..comm.collective import Collective
from ..comm.horovod_import import load_horovod
from ..comm.topology import Topology
from ..messaging.addresses import address_towards, check_host_name, interface_of
from ..messaging.local_sockets import memory_domain
from ..native.arrays import host_view
from ..servers.pickled import pickled
from ..telemetry.session import Session
from ..watchdog.leaving import Deadline
from .guard import Guard
from .horovod import configure_horovod, prepare_horovod
from .job import FIRST_KEY, Joined, create_native_store
from .rendezvous_server import RendezvousServer
from .transport_choice import lane_unavailable_reason, reaches_gpus, sums_by_lane, takes_lane

_ADDRESSES_KEY, _ADDRESS_BYTES = FIRST_KEY - 1, 2048


def join(settings: Settings, launch: Launch, telemetry: Session, guard: Guard) -> Joined:
    """Join the job (collective)."""
    assert launch.scheduler is not None and launch.servers is not None
    hvd = load_horovod()
    if hvd.is_initialized() and hvd.size() != launch.workers:
        raise SettingError('hvd.size() is %d but launch.py started %s workers: create the store (mxhybrid.create() '
                           'or the Trainer\'s first step) before hvd.init(), which finds the workers through it'
                           % (hvd.size(), launch.workers))
    if not hvd.is_initialized():
        check_host_name(several_hosts=False)
    native = create_native_store(settings, launch.scheduler, guard)
    rank, num_workers = native.rank, native.num_workers
    log.configure(settings.log_level, 'rank %d' % rank)
    if launch.asks_rank:
        say_rank(rank)
    address = address_towards(*launch.scheduler)
    record: Dict[str, Any] = {'host': socket.gethostname(), 'address': address, 'memory_domain': memory_domain(),
                            'telemetry': telemetry.open(settings, rank)}
    if rank == 0:
        secret = guard.open_monitor(address, num_workers, launch.servers)
        assert guard.monitor is not None
        rendezvous = RendezvousServer(address)
        record.update(monitor=guard.monitor.address, secret=secret, rendezvous=rendezvous.port)
    with Deadline(settings.timeout, 'the other workers to exchange addresses'):
        peers = exchange_natively(native, record)
    hosts = [peer['host'] for peer in peers]
    guard.connect(peers[0]['monitor'], rank, peers[0]['secret'])
    telemetry.agree(peers[0]['telemetry'], rank)
    if len(set(hosts)) > 1:
        check_host_name()
    if not hvd.is_initialized():
        configure_horovod(hosts, rank, peers[0]['address'], peers[0]['rendezvous'],
                          launch.interface or interface_of(address))
        prepare_horovod(settings.limits, sums_by_lane(settings, bool(hvd.nccl_built())))
        with Deadline(settings.timeout, 'Horovod to connect its workers'):
            hvd.init()
    collective = Collective(hvd)
    collective.refuse_new_connections('launch.py')
    if (collective.size, collective.rank) != (num_workers, rank):
        raise SettingError('Horovod says rank %d of %d, the parameter servers say rank %d of %d: leave hvd.init() '
                           'to mxhybrid and unset HOROVOD_* variables'
                           % (collective.rank, collective.size, rank, num_workers))
    # Not exchanged together with the addresses, because records in the native store are short.
    capabilities = collective.allgather_json([settings.shared(), lane_unavailable_reason(settings),
                                              reaches_gpus(settings, hvd)], 'mxhybrid.settings')
    if rank == 0:
        rendezvous.close()  # Horovod has connected all workers
    check_equal([shared for shared, _, _ in capabilities])
    collective.reaches_gpus = all(reaches for _, _, reaches in capabilities)
    topology = Topology(rank, hosts, [peer['address'] for peer in peers],
                        [peer['memory_domain'] for peer in peers])
    lane = takes_lane(settings, rank, [reason for _, reason, _ in capabilities])
    # Commands to servers of launch.py can only be pickles on an open port, so the secret travels unprotected, too.
    watch = {'host': peers[0]['monitor'][0], 'port': peers[0]['monitor'][1], 'secret': peers[0]['secret']}
    return Joined(topology, collective, native, launch.servers, num_workers, 0, watch, lane, pickled)


def exchange_natively(native: Any, value: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Exchange a JSON `value` of every worker over the native store: each worker adds its row to a sum."""
    shape = (native.num_workers, _ADDRESS_BYTES)
    text = json.dumps(value).encode().ljust(_ADDRESS_BYTES)
    if len(text) > _ADDRESS_BYTES:
        raise JobError('the address record of this worker has %d bytes, but only %d fit: shorten its host name or the '
                       'paths of trace, metrics and tensorboard' % (len(text), _ADDRESS_BYTES))
    rows = np.zeros(shape, np.float32)
    rows[native.rank] = np.frombuffer(text, np.uint8)
    array = mx.nd.array(rows, ctx=mx.cpu())
    native.init(_ADDRESSES_KEY, mx.nd.zeros(shape, ctx=mx.cpu()))
    native.push(_ADDRESSES_KEY, array)
    native.pull(_ADDRESSES_KEY, out=array)
    return [json.loads(row.astype(np.uint8).tobytes().decode()) for row in host_view(array)]


def say_rank(rank: int) -> None:
    """Tell scripts/launch.py, which puts the rank before each line, by a line that it does not pass on."""
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.fstat(stream).st_mode):  # the command may write to a file of its own
                os.write(stream, b'[mxhybrid] this is the output of rank %d\n' % rank)
