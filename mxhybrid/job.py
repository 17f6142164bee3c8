"""Join the job that a launcher started: find rank and peers, start or meet the servers, watch everybody.

==================  ========================================  ===============================================
launcher            recognised by                             what happens
==================  ========================================  ===============================================
``horovodrun``      ``HOROVOD_RANK`` (or an MPI's variables)  Horovod first; rank 0 starts the scheduler and
                                                              each host's local rank 0 the servers
``launch.py``       ``DMLC_ROLE=worker``                      native store first; it carries what Horovod
                                                              needs to find its peers; ranks are the store's
none                neither                                   one process; MXNet's local store does the work
==================  ========================================  ===============================================

A process joins once; all its stores share the connection, because a second native store hangs.
"""
import atexit
import os
import socket
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet.base import _LIB, check_call

from . import log
from .bootstrap import BOOTSTRAP_KEY, configure_horovod, exchange_natively, prepare_horovod, slots_of
from .client import Client
from .collective import Collective, load
from .costs import Network
from .deadline import Deadline
from .deliveries import Deliveries
from .errors import SettingError
from .host import find_leaders, join_host
from .lifeline import Lifeline, end_in_time, flush, leave
from .monitor import Monitor
from .processes import (
    Children,
    address_towards,
    check_host_name,
    end_processes_of_job,
    free_port,
    interface_address,
)
from .ps import ParameterServers
from .rollcall import RollCall
from .sealed import Sealer, new_secret
from .segments import place_of_host
from .settings import Settings, variable
from .stock import pickled
from .telemetry import Telemetry

logger = log.get_logger(__name__)

#: A bound in elements that never triggers (a C int): MXNet must not cut keys by itself, mxhybrid does.
_BIGARRAY_BOUND = str(2 ** 31 - 1)

#: Seconds for the native exit barriers after all workers have ended.
_EXIT_TIMEOUT_S = 30.0

_MPI_VARIABLES = ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')


def launcher() -> str:
    """Name of the launcher that started this process: 'horovodrun', 'launch.py' or 'none'."""
    if os.environ.get('DMLC_ROLE') == 'worker' and 'DMLC_PS_ROOT_URI' in os.environ:
        return 'launch.py'
    if 'HOROVOD_RANK' in os.environ or any(name in os.environ for name in _MPI_VARIABLES):
        return 'horovodrun'
    module = sys.modules.get('horovod.mxnet')
    if module is not None and module.is_initialized() and module.size() > 1:
        return 'horovodrun'
    return 'none'


class Job:
    """This process's place in the job.

    Attributes
    ----------
    settings : Settings
    launcher : str
        See :func:`launcher`.
    rank, num_workers : int
        Equal to Horovod's.
    hosts : list of str
        Of each worker.
    leaders : list of int
        For each worker the one that talks to the servers for it.
    num_servers : int
        0 in a job of one process.
    collective : Collective or None
    servers : ParameterServers or None
    lifeline : Lifeline or None
    telemetry : Telemetry
    network : Network or None
        What communication costs, once measured.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.rank = 0
        self.num_workers = 1
        self.num_servers = 0
        self.hosts: List[str] = [socket.gethostname()]
        self.collective: Optional[Collective] = None
        self.servers: Optional[ParameterServers] = None
        self.lifeline: Optional[Lifeline] = None
        self.telemetry = Telemetry()
        self.network: Optional[Network] = None
        self._monitor: Optional[Monitor] = None
        self._children: Optional[Children] = None
        self._native: Any = None
        self.leaders: List[int] = []
        self._store_count = 0
        self.launcher = launcher()
        log.configure(settings.log_level, 'rank 0')
        if self.launcher == 'none':
            self.telemetry.alone(settings)
            return
        self._check_engine()
        try:
            if self.launcher == 'launch.py':
                self._join_launch_py()
            else:
                self._join_horovodrun()
        except BaseException as error:
            self.telemetry.discard()
            if self.lifeline is not None:
                self.lifeline.fail('%s: %s' % (type(error).__name__, error))
            raise
        if self.num_servers:
            atexit.register(self._finish)

    @property
    def distributed(self) -> bool:
        """Whether there are other processes."""
        return self.num_servers > 0

    def next_store_id(self) -> int:
        """Number the stores of this process; equal on all workers, since all make the same stores."""
        self._store_count += 1
        return self._store_count - 1

    @staticmethod
    def _check_engine() -> None:
        if os.environ.get('MXNET_ENGINE_TYPE') == 'NaiveEngine':
            raise SettingError("MXNET_ENGINE_TYPE='NaiveEngine' deadlocks with Horovod: unset it, or use "
                               "ThreadedEnginePerDevice")

    def _place(self) -> Optional[str]:
        """What can share memory with this worker, if that is wanted."""
        return place_of_host() if self.settings.local_aggregation else None

    def _name(self, host: str) -> str:
        return 'worker %d (host %s, pid %d)' % (self.rank, host, os.getpid())

    # -- horovodrun ------------------------------------------------------------------------------------------

    def _join_horovodrun(self) -> None:
        hvd = load()
        local, size = os.environ.get('HOROVOD_LOCAL_SIZE'), os.environ.get('HOROVOD_SIZE')
        if local is not None and size is not None and local != size:
            check_host_name()
        roll_call = RollCall.of_horovodrun()
        if not hvd.is_initialized():
            prepare_horovod(self.settings.limits, self.settings.local_aggregation and local not in (None, '1'))
            roll_call.answer()
            roll_call.watch()
            with Deadline(self.settings.timeout, 'Horovod to connect its workers', missing=roll_call.missing):
                hvd.init()
        self.collective = Collective(hvd)
        self.rank, self.num_workers = self.collective.rank, self.collective.size
        if self.num_workers == 1:
            roll_call.joined()
            self.telemetry.alone(self.settings)
            return
        log.configure(self.settings.log_level, 'rank %d' % self.rank)
        several_hosts = hvd.local_size() != self.num_workers
        address = self._own_address(several_hosts)
        peers = self.collective.exchange({'host': socket.gethostname(), 'address': address,
                                          'local_rank': hvd.local_rank(), 'place': self._place(),
                                          'settings': _shared(self.settings),
                                          'telemetry': self.telemetry.open(self.settings, self.rank)},
                                         'mxhybrid.peers')
        self._agree_on_settings([peer['settings'] for peer in peers])
        self.telemetry.agree(peers[0]['telemetry'], self.rank)
        self.hosts = [peer['host'] for peer in peers]
        self.leaders = find_leaders([peer['place'] for peer in peers], self.settings.local_aggregation)
        hosts = sum(peer['local_rank'] == 0 for peer in peers)
        num_servers = hosts * self.settings.servers_per_host
        plan: Dict[str, Any] = {}
        if self.rank == 0:
            secret = new_secret()
            self._monitor = Monitor(address, self.num_workers, num_servers, secret, self.settings.limits)
            self.telemetry.collect(self._monitor, self.num_workers)
            plan = {'monitor': self._monitor.address, 'scheduler': [address, free_port(address)], 'secret': secret}
        plan = self.collective.exchange(plan, 'mxhybrid.plan')[0]
        self._connect_lifeline(tuple(plan['monitor']), plan['secret'])
        roll_call.joined()
        environment = {'DMLC_PS_ROOT_URI': str(plan['scheduler'][0]), 'DMLC_PS_ROOT_PORT': str(plan['scheduler'][1]),
                       'DMLC_NUM_WORKER': str(len(set(self.leaders))), 'DMLC_NUM_SERVER': str(num_servers),
                       'DMLC_NODE_HOST': address, 'MXHYBRID_MONITOR': '%s:%d' % tuple(plan['monitor']),
                       variable('timeout'): str(self.settings.timeout),
                       variable('log_level'): self.settings.log_level}
        self._children = Children(environment, self._child_died)
        if self.rank == 0:
            self._children.start('scheduler', plan['secret'])
        if hvd.local_rank() == 0:
            for _ in range(self.settings.servers_per_host):
                self._children.start('server', plan['secret'])
        assert self.lifeline is not None
        self.lifeline.send({'children': self._children.pids()})
        self._children.watch()
        os.environ.update({name: value for name, value in environment.items() if name.startswith('DMLC_')})
        os.environ['DMLC_ROLE'] = 'worker'
        if self.leaders[self.rank] == self.rank:
            self._create_native()
        sealer = Sealer(plan.pop('secret'))
        # What workers fork, data loaders say, has no use for it.
        os.register_at_fork(after_in_child=sealer.forget)
        self._install(num_servers, _watch(plan['monitor']), len(set(self.leaders)),
                      [peer['address'] for peer in peers], sealer.seal)

    def _own_address(self, several_hosts: bool) -> str:
        if not several_hosts:
            return '127.0.0.1'
        interface = os.environ.get('HOROVOD_GLOO_IFACE')
        return interface_address(interface) if interface else check_host_name()

    def _agree_on_settings(self, everybody: List[Dict[str, Any]]) -> None:
        for rank, theirs in enumerate(everybody):
            for name, value in theirs.items():
                if value != everybody[0][name]:
                    raise SettingError('%s is %r on worker 0 but %r on worker %d: give all workers the same value'
                                       % (variable(name), everybody[0][name], value, rank))

    def _child_died(self, text: str) -> None:
        assert self.lifeline is not None
        self.telemetry.fail(text)
        self.lifeline.send({'child_died': text})
        if self._monitor is not None:
            self._monitor.report_failure(text)
            self._monitor.settle()
        self.telemetry.wait()
        leave('%s ends, because %s' % (self._name(socket.gethostname()), text), self._cleanup)

    # -- launch.py -------------------------------------------------------------------------------------------

    def _join_launch_py(self) -> None:
        hvd = load()
        if hvd.is_initialized() and hvd.size() != int(os.environ['DMLC_NUM_WORKER']):
            raise SettingError('hvd.size() is %d but launch.py started %s workers: create the store (mxhybrid.create() '
                               'or the Trainer\'s first step) before hvd.init(), which finds its peers through it'
                               % (hvd.size(), os.environ['DMLC_NUM_WORKER']))
        self._create_native()
        self.rank, self.num_workers = self._native.rank, self._native.num_workers
        num_servers = int(os.environ['DMLC_NUM_SERVER'])
        log.configure(self.settings.log_level, 'rank %d' % self.rank)
        scheduler = (os.environ['DMLC_PS_ROOT_URI'], int(os.environ['DMLC_PS_ROOT_PORT']))
        address = address_towards(*scheduler)
        mine: Dict[str, Any] = {'host': socket.gethostname(), 'address': address, 'place': self._place(),
                                'telemetry': self.telemetry.open(self.settings, self.rank)}
        if self.rank == 0:
            from horovod.runner.http.http_server import RendezvousServer

            secret = new_secret()
            self._monitor = Monitor(address, self.num_workers, num_servers, secret, self.settings.limits)
            self._monitor.watch_scheduler(scheduler, self.settings.limits.silence)
            self.telemetry.collect(self._monitor, self.num_workers)
            rendezvous = RendezvousServer()
            mine.update(monitor=self._monitor.address, secret=secret, rendezvous=rendezvous.start())
        with Deadline(self.settings.timeout, 'the other workers to exchange addresses'):
            peers = exchange_natively(self._native, mine)
            slots = slots_of([peer['host'] for peer in peers])
            if self.rank == 0:
                rendezvous.init(slots)
            self._native._barrier()
        self._connect_lifeline(tuple(peers[0]['monitor']), peers[0]['secret'])
        self.telemetry.agree(peers[0]['telemetry'], self.rank)
        self.hosts = [peer['host'] for peer in peers]
        if len(set(self.hosts)) > 1:
            check_host_name()
        if not hvd.is_initialized():
            configure_horovod(slots[self.rank], peers[0]['address'], peers[0]['rendezvous'], address)
            prepare_horovod(self.settings.limits, self.settings.local_aggregation
                            and self.hosts.count(self.hosts[self.rank]) > 1)
            with Deadline(self.settings.timeout, 'Horovod to connect its workers'):
                hvd.init()
        self.collective = Collective(hvd)
        if (self.collective.size, self.collective.rank) != (self.num_workers, self.rank):
            raise SettingError('Horovod says rank %d of %d, the parameter servers say rank %d of %d: leave hvd.init() '
                               'to mxhybrid and unset HOROVOD_* variables'
                               % (self.collective.rank, self.collective.size, self.rank, self.num_workers))
        # Not along with the addresses: the native store carries short records.
        self._agree_on_settings(self.collective.exchange(_shared(self.settings), 'mxhybrid.settings'))
        self.leaders = find_leaders([peer['place'] for peer in peers], self.settings.local_aggregation)
        # Commands to servers that launch.py started can only be pickles, and the store is open: so is the secret.
        self._install(num_servers, _watch(peers[0]['monitor'], secret=peers[0]['secret']), self.num_workers,
                      [peer['address'] for peer in peers], pickled)

    # -- both ------------------------------------------------------------------------------------------------

    def _create_native(self) -> None:
        os.environ['MXNET_KVSTORE_BIGARRAY_BOUND'] = _BIGARRAY_BOUND
        with Deadline(self.settings.timeout, 'all workers and servers to reach the scheduler at %s:%s'
                       % (os.environ['DMLC_PS_ROOT_URI'], os.environ['DMLC_PS_ROOT_PORT']),
                      self._cleanup, tell=self._tell):
            self._native = mx.kv.create('dist_sync')

    def _tell(self, text: str) -> None:
        if self.lifeline is not None:
            self.lifeline.fail(text)

    def _connect_lifeline(self, monitor: Tuple[str, int], secret: str) -> None:
        self.lifeline = Lifeline(monitor, self._name(socket.gethostname()), self.rank, self.settings.timeout, secret,
                                 self._cleanup)

    def _install(self, num_servers: int, watch: Dict[str, Any], clients: int, addresses: List[str],
                 envelope: Callable[[str, Dict[str, Any]], str]) -> None:
        assert self.collective is not None and self.lifeline is not None
        if self._native is not None and self._native.num_workers != clients:
            raise SettingError('the parameter servers expect %d workers, but %d will come'
                               % (self._native.num_workers, clients))
        native_rank = None if self._native is None else self._native.rank
        native_ranks = self.collective.exchange(native_rank, 'mxhybrid.native_ranks')
        client = None if self._native is None else Client(self._native, self.telemetry.trace)
        link = join_host(self.collective, client, self.leaders, addresses, self.settings.timeout, self._host_failed)
        self.collective.lifeline = self.lifeline
        self.collective.trace = self.telemetry.trace
        self.telemetry.connect(self.lifeline)
        self.num_servers = num_servers
        self.servers = ParameterServers(client, link, num_servers, self.rank, self.num_workers,
                                        native_ranks.index(0), BOOTSTRAP_KEY + 1, self._meet, self.telemetry.trace,
                                        envelope, Deliveries(self._delivery_failed))
        self.servers.install(dict(watch, timeout=self.settings.timeout, trace=self.telemetry.trace.enabled),
                             self.settings.halves)

    def _host_failed(self, error: BaseException) -> None:
        self.fail('local aggregation failed: %s: %s' % (type(error).__name__, error), echo=True)

    def _delivery_failed(self, error: BaseException) -> None:
        self.fail('%s: %s' % (type(error).__name__, error), echo=True)

    def _meet(self) -> None:
        assert self.collective is not None
        self.collective.any(False, 'mxhybrid.meet')

    def _cleanup(self) -> None:
        """Before leaving on a failure: end what would otherwise wait for ever."""
        if self._monitor is not None:
            self._monitor.settle()
            self.telemetry.wait()
        if self._children is not None:
            self._children.end()
        if self.launcher == 'launch.py':
            end_processes_of_job(os.environ['DMLC_PS_ROOT_URI'], os.environ['DMLC_PS_ROOT_PORT'],
                                 ('scheduler', 'server'))

    def fail(self, text: str, echo: bool) -> None:
        """Tell the job that this worker fails, and leave without waiting for anybody."""
        self.telemetry.fail(text)
        if self.lifeline is not None:
            self.lifeline.fail(text, echo)
        if self._monitor is not None:
            # The monitor's thread ends with this process, perhaps before it reads what was sent.
            self._monitor.report_failure('%s failed: %s' % (self._name(socket.gethostname()), text))
        end_in_time()
        flush()
        self.telemetry.wait()
        self._cleanup()
        os._exit(1)

    def _finish(self) -> None:
        """At exit: wait until all workers have ended, then leave the native store and Horovod in step."""
        assert self.lifeline is not None and self.collective is not None and self.servers is not None
        try:
            mx.nd.waitall()
            if self.telemetry.trace.enabled:
                self.servers.link.settle()  # or the trace would lack the last updates
            self.lifeline.finish()
            if self._children is not None:
                self._children.expect_end()
            with Deadline(_EXIT_TIMEOUT_S, 'the servers to let this worker go', self._cleanup, tell=self._tell):
                self.servers.link.settle()
                self.servers.deliveries.close()
                self.servers.link.close()
                if self.collective.reduction is not None:
                    self.collective.reduction.close()
                if self._native is not None:
                    handle, self._native.handle = self._native.handle, type(self._native.handle)()
                    check_call(_LIB.MXKVStoreFree(handle))
                self.collective.shutdown()
            self.lifeline.part()
        except Exception as error:
            self.fail('%s at exit: %s' % (type(error).__name__, error), echo=isinstance(error, mx.base.MXNetError))
        if self._children is not None:
            self._children.farewell()


def _shared(settings: Settings) -> Dict[str, Any]:
    """Settings that must be equal on all workers, as JSON values."""
    return {'partitions': [list(pair) for pair in settings.partitions],
            'servers_per_host': settings.servers_per_host, 'local_aggregation': settings.local_aggregation,
            'routes': [list(pair) for pair in settings.routes], 'wire_dtype': settings.wire_dtype,
            'own_rows': settings.own_rows}


def _watch(monitor: List[Any], **secret: str) -> Dict[str, Any]:
    """Where servers find the job monitor."""
    return dict(secret, host=monitor[0], port=monitor[1])


_job: Optional[Job] = None


def current() -> Optional[Job]:
    """The job that this process has joined, if it has."""
    return _job


def fail_current(text: str, echo: bool) -> None:
    """Tell the job, if this process is part of one, that this worker's script fails with `text`, and leave."""
    if _job is not None and _job.distributed:
        _job.fail(text, echo)
    elif launcher() == 'launch.py':
        # Not joined yet: scheduler, servers and the other workers would wait for this one for ever.
        end_processes_of_job(os.environ['DMLC_PS_ROOT_URI'], os.environ['DMLC_PS_ROOT_PORT'],
                             ('scheduler', 'server', 'worker'))
        # A native store that the script made by itself would wait for the others at exit.
        end_in_time()
        flush()
        os._exit(1)


def join(settings: Settings) -> Job:
    """Join the job, once per process."""
    global _job
    if _job is None:
        _job = Job(settings)
    for name, why in (('servers_per_host', 'servers are started once per job'),
                      ('local_aggregation', 'hosts choose their leaders once per job'),
                      ('wire_dtype', 'all stores of a job have the same')):
        if _job.distributed and getattr(settings, name) != getattr(_job.settings, name):
            raise SettingError('%s=%s, but this process already runs with %s: %s' % (
                variable(name), getattr(settings, name), getattr(_job.settings, name), why))
    if settings.log_level != Settings.log_level:  # a store that does not ask for a level leaves it as it is
        log.set_level(settings.log_level)
    for name in ('trace', 'metrics', 'tensorboard'):
        wanted, given = getattr(settings, name), getattr(_job.settings, name)
        if wanted and wanted != given:
            raise SettingError('%s=%r, but this process already runs with %r: give it to the first store'
                               % (variable(name), wanted, given))
    return _job
