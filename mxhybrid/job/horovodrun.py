"""Join a job of horovodrun, or of an MPI: Horovod starts first, and the workers agree on all else over it.

Worker 0 starts the scheduler of the native store, and the first worker of each host its servers.
"""
import contextlib
import os
import socket
from typing import Any, Dict, List, Optional

from ..base import log
from ..base.errors import SettingError
from ..base.launcher import Launch, is_local
from ..base.settings import Settings, check_equal, variable
from ..comm.collective import Collective
from ..comm.horovod_import import load_horovod
from ..comm.topology import Topology
from ..lane import library
from ..messaging.addresses import check_host_name, interface_address, reserve_port
from ..messaging.local_sockets import memory_domain
from ..messaging.sealed import Sealer
from ..telemetry.session import Session
from ..watchdog.leaving import Deadline
from .guard import Guard
from .horovod import prepare_horovod
from .job import Joined, create_native_store
from .lone_task import compare_sizes, refuse_lone_task
from .rendezvous_server import replace_rendezvous
from .roll_call import RollCall
from .transport_choice import is_served, lane_unavailable_reason, reaches_gpus, sums_by_lane, takes_lane

#: Seconds in which a worker that gets SIGTERM may still write why the job ends: horovodrun ends all workers as soon as
#: one has failed, and kills them after 5 s.
_SIGTERM_DELAY_S = 1.0


def join(settings: Settings, launch: Launch, telemetry: Session, guard: Guard) -> Optional[Joined]:
    """Join the job (collective); None if this worker is the only one."""
    hvd = load_horovod()
    initialised = hvd.is_initialized()
    # Gloo looks up the name of this host, and tells the other workers; an MPI knows its hosts.
    if launch.rendezvous is not None and (launch.several_hosts or not initialised):
        check_host_name(bool(launch.several_hosts))
    roll_call = RollCall(launch.rendezvous, launch.rank, launch.workers or 0)
    rendezvous = None
    if not initialised:
        guard.start_servers(expected_roles(settings, launch))
        prepare_horovod(settings.limits, sums_by_lane(settings, bool(hvd.nccl_built())))
        roll_call.answer()
        roll_call.watch()
        with Deadline(settings.timeout, 'Horovod to connect its workers', missing=roll_call.missing,
                      extension=lambda: roll_call.extension(settings.timeout)):
            rendezvous = replace_rendezvous(launch, roll_call.board,
                                            own_address(launch, bool(launch.several_hosts)))
            hvd.init()
    collective = Collective(hvd)
    rank, num_workers = collective.rank, collective.size
    if num_workers == 1:
        roll_call.joined.set()
        guard.end_servers()
        refuse_lone_task()
        return None
    if not initialised:  # otherwise the script may have started Horovod with some of the processes only
        compare_sizes(launch, num_workers)
    log.configure(settings.log_level, 'rank %d' % rank)
    address = own_address(launch, hvd.local_size() != num_workers)
    peers = collective.allgather_json({
        'host': socket.gethostname(), 'address': address, 'local_rank': hvd.local_rank(),
        'memory_domain': memory_domain(), 'local': is_local(), 'lane_unavailable': lane_unavailable_reason(settings),
        'nccl': reaches_gpus(settings, hvd), 'settings': settings.shared(),
        'telemetry': telemetry.open(settings, rank)}, 'mxhybrid.peers')
    if rendezvous is not None:
        rendezvous.close()  # Horovod has connected all workers
    check_reach([peer['host'] for peer in peers], [peer['local'] for peer in peers])
    check_equal([peer['settings'] for peer in peers])
    collective.reaches_gpus = all(peer['nccl'] for peer in peers)
    telemetry.agree(peers[0]['telemetry'], rank)
    topology = Topology(rank, [peer['host'] for peer in peers], [peer['address'] for peer in peers],
                        [peer['memory_domain'] for peer in peers])
    lane = (takes_lane(settings, rank, [peer['lane_unavailable'] for peer in peers])
            and is_served(settings, rank, topology.memory_domains,
                          [peer['memory_domain'] for peer in peers if peer['local_rank'] == 0]))
    clients = 1 if lane else num_workers
    num_servers = settings.servers_per_host * sum(peer['local_rank'] == 0 for peer in peers)
    addresses: Dict[str, Any] = {}
    reservation = None
    if rank == 0:
        secret = guard.open_monitor(address, num_workers, num_servers)
        assert guard.monitor is not None
        reservation = reserve_port(address)
        addresses = {'monitor': guard.monitor.address, 'scheduler': reservation.getsockname(), 'secret': secret}
    addresses = collective.allgather_json(addresses, 'mxhybrid.addresses')[0]
    guard.connect(addresses['monitor'], rank, addresses['secret'])
    with contextlib.suppress(OSError):  # without the compiled library, SIGTERM ends this worker at once
        library.load().delay_sigterm(_SIGTERM_DELAY_S)
    roll_call.joined.set()
    native = {'DMLC_PS_ROOT_URI': str(addresses['scheduler'][0]), 'DMLC_PS_ROOT_PORT': str(addresses['scheduler'][1]),
              'DMLC_NUM_WORKER': str(clients), 'DMLC_NUM_SERVER': str(num_servers),
              'DMLC_NODE_HOST': address}
    guard.configure_servers(dict(native, MXHYBRID_MONITOR='%s:%d' % tuple(addresses['monitor']),
                                 **{variable('timeout'): str(settings.timeout),
                                    variable('log_level'): settings.log_level}),
                            roles_of(settings, rank, hvd.local_rank()), addresses['secret'])
    os.environ.update(native, DMLC_ROLE='worker')
    store = create_native_store(settings, addresses['scheduler'], guard) if rank < clients else None
    if reservation is not None:
        reservation.close()  # the scheduler listens
    sealer = Sealer(addresses.pop('secret'))
    # Forked processes, such as data loaders, must not send commands.
    os.register_at_fork(after_in_child=sealer.forget)
    first_client = 0
    if store is not None and clients > 1:
        first_client = collective.allgather_json(store.rank, 'mxhybrid.native_ranks').index(0)
    return Joined(topology, collective, store, num_servers, clients, first_client,
                  {'host': addresses['monitor'][0], 'port': addresses['monitor'][1]}, lane, sealer.seal)


def own_address(launch: Launch, several_hosts: bool) -> str:
    """Return the address of this host for the other processes of the job."""
    if not several_hosts:
        return '127.0.0.1'
    return interface_address(launch.interface) if launch.interface else check_host_name()


def roles_of(settings: Settings, rank: int, local_rank: int) -> List[str]:
    """Return the roles of the processes that a worker starts."""
    return ['scheduler'] * (rank == 0) + ['server'] * (settings.servers_per_host * (local_rank == 0))


def expected_roles(settings: Settings, launch: Launch) -> List[str]:
    """Return the :func:`roles_of` this worker before it has joined: none if its launcher does not tell its ranks."""
    if launch.rendezvous is None or (launch.workers or 0) < 2:
        return []
    return roles_of(settings, launch.rank, launch.local_rank)


def check_reach(hosts: List[str], local: List[bool]) -> None:
    """Refuse Unix sockets for ps-lite in a job of several hosts: its workers would wait for each other for ever."""
    if any(local) and len(set(hosts)) > 1:
        raise SettingError('DMLC_LOCAL=1 on worker %d: ps-lite then uses Unix sockets, which do not leave a host, but '
                           'the job has the hosts %s: unset DMLC_LOCAL'
                           % (local.index(True), ', '.join(dict.fromkeys(hosts))))
