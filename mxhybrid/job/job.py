"""The job that a process has joined: ranks and hosts, what this process owns there, and the orderly end.

All stores of a process share it, because a second native store hangs.
"""
import atexit
import itertools
import os
import socket
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence

import mxnet as mx

from ..base import log
from ..base.addresses import interface_of
from ..base.errors import JobError, SettingError
from ..base.launcher import is_local, read as read_launch
from ..base.local_sockets import Left
from ..base.settings import Settings
from ..comm.collective import Collective
from ..comm.topology import Topology
from ..lane.allreduce import LaneAllreduce
from ..native import forks
from ..native.deliveries import Deliveries
from ..native.stores import disown, free
from ..servers.client import Client
from ..servers.cluster import ParameterServers
from ..servers.resource_leases import ResourceLeases
from ..telemetry.session import Session
from ..telemetry.traffic import Network
from .guard import Guard
from .horovod import anew, serve_rendezvous
from .wires import is_served

logger = log.get_logger(__name__)

#: Keys of the native store from here on are for tables; lower ones are for joining.
FIRST_KEY = 2
#: A bound in elements that never triggers (a C int): MXNet must not cut keys by itself, mxhybrid does.
BOUND_VARIABLE, _BIGARRAY_BOUND = 'MXNET_KVSTORE_BIGARRAY_BOUND', str(2 ** 31 - 1)
#: Seconds for the native exit barriers after all workers have ended.
_EXIT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Joined:
    """What comes of joining a job of several workers, by either launcher."""

    topology: Topology
    collective: Collective
    #: MXNet's ``dist_sync`` store, None where rows go by the lane and worker 0 alone talks to the servers.
    native: Any
    num_servers: int
    #: How many workers have a native store.
    clients: int
    #: Where servers find the job monitor: host, port, and the secret if they do not have it.
    watch: Dict[str, Any]
    #: Whether rows are to travel by the lane.
    lane: bool
    #: Makes the text of a command to the servers of its name and arguments.
    encode_command: Callable[[str, Dict[str, Any]], str]


def create_native_store(settings: Settings, scheduler: Sequence[Any], guard: Guard) -> Any:
    """MXNet's ``dist_sync`` store, whose variables are set; waits for all servers and workers that have one."""
    os.environ[BOUND_VARIABLE] = _BIGARRAY_BOUND
    awaited = 'all workers and servers to reach the scheduler at %s:%s' % tuple(scheduler)
    if is_local():
        awaited += ', on this host alone, since DMLC_LOCAL is set'
    with guard.deadline(settings.timeout, awaited):
        return mx.kv.create('dist_sync')


class Job:
    """What all stores of a process share; with one process there are no servers.  `measured` is theirs, by name."""

    def __init__(self, settings: Settings, launcher: str, telemetry: Session, guard: Guard,
                 joined: Optional[Joined] = None):
        self.settings, self.launcher, self.telemetry, self.guard = settings, launcher, telemetry, guard
        self.topology = Topology(0, [socket.gethostname()], ['127.0.0.1'], ['']) if joined is None else joined.topology
        self.num_servers = 0 if joined is None else joined.num_servers
        self.measured: Dict[str, Any] = {}
        self.collective: Optional[Collective] = None
        self.servers: Optional[ParameterServers] = None
        self.leases: Optional[ResourceLeases] = None
        self._native: Any = None
        self._forked = False
        self._trainers = itertools.count()
        if joined is not None:
            self._native, self.collective = joined.native, joined.collective
            self.servers = self._connect_servers(joined)
            self.leases = ResourceLeases(joined.collective, self.servers)

    def _connect_servers(self, joined: Joined) -> ParameterServers:
        """Bring workers and servers together (collective)."""
        topology, collective, native, trace = joined.topology, joined.collective, joined.native, self.telemetry.trace
        assert self.guard.lifeline is not None
        if native is not None and native.num_workers != joined.clients:
            raise SettingError('the parameter servers expect %d workers, but %d will come'
                               % (native.num_workers, joined.clients))
        native_ranks = collective.exchange(None if native is None else native.rank, 'mxhybrid.native_ranks')
        client = None if native is None else Client(native, trace)
        collective.announce(self.guard.lifeline, trace)
        collective.agree_on_gpus(wanted=self.settings.dense != 'lane')
        self.telemetry.connect(self.guard.lifeline)
        servers = ParameterServers(client, joined.num_servers, topology.rank, topology.num_workers,
                                   native_ranks.index(0), FIRST_KEY, lambda: collective.any(False, 'mxhybrid.meet'),
                                   trace, joined.encode_command, Deliveries(self.guard.fails_with()))
        servers.install(dict(joined.watch, timeout=self.settings.timeout, trace=trace.enabled), self.settings.halves)
        if joined.lane:
            self._open_lane(servers, collective)
        return servers

    def _open_lane(self, servers: ParameterServers, collective: Collective) -> None:
        domains = self.topology.memory_domains
        lane = servers.open_lane(domains, lambda value: collective.exchange(value, 'mxhybrid.agents'),
                                 self.settings.timeout,
                                 lambda found: is_served(self.settings, self.rank, domains, found))
        if lane is not None and self.settings.dense != 'horovod':
            collective.sum_by(LaneAllreduce(lane, serves_gpus=not collective.reaches_gpus))

    @property
    def rank(self) -> int:
        """Rank of this worker; Horovod's, too."""
        return self.topology.rank

    @property
    def num_workers(self) -> int:
        return self.topology.num_workers

    @property
    def sums(self) -> str:
        """What sums dense arrays on CPUs, as the setting says it."""
        assert self.collective is not None
        return 'lane' if self.collective.sums_together else 'horovod'

    def count_trainer(self) -> int:
        """Number of a Trainer that was made in this process, from 0; the same on all workers, which make the same."""
        return next(self._trainers)

    def restart_horovod(self) -> None:
        """Have Horovod begin anew, as ready for sums as in a job in which they are its own (on all workers, with
        nothing under way); see :attr:`Collective.can_begin_anew`.
        """
        assert self.collective is not None
        topology = self.topology
        port = self.collective.exchange(serve_rendezvous(topology) if self.rank == 0 else 0, 'mxhybrid.rendezvous')[0]
        interface = read_launch().interface or interface_of(topology.addresses[self.rank])
        with anew(topology, self.settings.limits, port, interface), self.guard.deadline(
                self.settings.timeout, 'Horovod to connect its workers once more'):
            self.collective.begin_anew()

    @property
    def wires(self) -> str:
        """What rows travel by, and what sums dense arrays."""
        assert self.servers is not None and self.collective is not None
        if self.collective.sums_together:
            return 'rows and dense sums by the lane'
        return 'rows by %s, dense sums by Horovod' % ('the lane' if self.servers.on_lane else 'ps-lite')

    def network(self) -> Optional[Network]:
        """Bytes between this host and others so far; None where nobody counts them."""
        return None if self.servers is None else self.servers.network()

    @property
    def distributed(self) -> bool:
        """Whether there are other processes."""
        return self.num_servers > 0

    @property
    def joined(self) -> bool:
        """Whether this process is a member of a job of several."""
        return self.distributed and not self._forked

    def check(self) -> None:
        """Refuse a call of a store that cannot be carried out: a JobError in a process forked from a member of the job,
        an MXNetError of an operation that failed before.
        """
        if self.distributed:
            forks.fork_guard.check()
            if self._forked:
                raise JobError('this process was forked from worker %d and is no member of its job: make calls of the '
                               'store, and steps of a Trainer, in the worker itself' % self.rank)

    def stay_to_the_end(self) -> None:
        """From now on leave the job in order when the script ends, and silently in what it forks."""
        forks.prepare(self._leave_in_child)
        atexit.register(self._finish)

    def _leave_in_child(self) -> None:
        """In a process that a member of the job forked: forget the job, without a word."""
        self._forked = True
        atexit.unregister(self._finish)
        assert self.collective is not None
        self.collective.leave_in_child()
        if self._native is not None:
            disown(self._native)

    def _finish(self) -> None:
        """At exit: wait until all workers have ended, then leave the native store and Horovod in step."""
        assert self.collective is not None and self.servers is not None and self.guard.lifeline is not None
        try:
            mx.nd.waitall()
            if self.telemetry.trace.enabled:
                self.servers.link.settle()  # or the trace would lack the last updates
            self.guard.lifeline.finish()
            self.guard.expect_end()
            with self.guard.deadline(_EXIT_TIMEOUT_S, 'the servers to let this worker go'):
                self.servers.link.settle()
                self.servers.deliveries.close()
                self.guard.lifeline.settle()  # not by Horovod, which the script may have ended
                self.servers.part()
                self.servers.link.close()
                if self._native is not None:
                    free(disown(self._native))
                self.collective.shutdown()
            self.guard.lifeline.part()
        except Exception as error:
            self.guard.fail('%s at exit: %s' % (type(error).__name__, error),
                            echo=isinstance(error, (mx.base.MXNetError, Left)))
        self.guard.wait_for_exit()
