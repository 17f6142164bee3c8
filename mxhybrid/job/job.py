"""The job that a process has joined: ranks and hosts, its connections, and the orderly end.

All stores of a process share one job, because a second native store hangs.
"""
import atexit
import itertools
import os
import socket
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence

import mxnet as mx

from ..base import log
from ..base.errors import JobError, SettingError
from ..base.launcher import is_local
from ..base.settings import Settings
from ..comm.collective import Collective
from ..comm.topology import Topology
from ..lane.allreduce import LaneAllreduce
from ..messaging.local_sockets import Left
from ..native import forks
from ..native.deliveries import Deliveries
from ..native.stores import disown, free
from ..servers.cluster import ParameterServers, Place
from ..servers.resource_leases import ResourceLeases
from ..telemetry.session import Session
from ..telemetry.traffic import Network
from .guard import Guard
from .transport_choice import is_served

logger = log.get_logger(__name__)

#: The first key of the native store that is for tables; lower ones serve while the job is joined.
FIRST_KEY = 2
#: A size in elements (a C int) that no key exceeds: MXNet must not split keys over servers, mxhybrid does it.
BOUND_VARIABLE, _BIGARRAY_BOUND = 'MXNET_KVSTORE_BIGARRAY_BOUND', str(2 ** 31 - 1)
#: Seconds for the native exit barriers after the scripts of all workers have ended.
_EXIT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Joined:
    """The result of joining a job of several workers, by either launcher."""

    topology: Topology
    collective: Collective
    #: MXNet's ``dist_sync`` store; None in all workers but worker 0 if rows travel by the lane.
    native: Any
    num_servers: int
    #: The number of workers that have a native store, and the worker whose native store has rank 0.
    clients: int
    first_client: int
    #: The job monitor for the servers: host, port, and the secret if they do not have it.
    watch: Dict[str, Any]
    #: Whether rows are to travel by the lane.
    lane: bool
    #: Encodes a command to the servers, given name and arguments, as text.
    encode_command: Callable[[str, Dict[str, Any]], str]


def create_native_store(settings: Settings, scheduler: Sequence[Any], guard: Guard) -> Any:
    """Create MXNet's ``dist_sync`` store, and wait for all servers and all workers with such a store.

    Its ``DMLC_*`` variables must be set.
    """
    os.environ[BOUND_VARIABLE] = _BIGARRAY_BOUND
    waiting_for = 'all workers and servers to reach the scheduler at %s:%s' % tuple(scheduler)
    if is_local():
        waiting_for += ', on this host alone, since DMLC_LOCAL is set'
    with guard.deadline(settings.timeout, waiting_for):
        return mx.kv.create('dist_sync')


class Job:
    """The job of this process, which all its stores share; a job of one process has no servers.

    `measured` holds what its stores have measured, by name.
    """

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
        """Connect this worker to the servers and the other workers (collective)."""
        topology, collective, native, trace = joined.topology, joined.collective, joined.native, self.telemetry.trace
        assert self.guard.lifeline is not None
        if native is not None and native.num_workers != joined.clients:
            raise SettingError('DMLC_NUM_WORKER: the parameter servers expect %d workers, but %d workers will connect: '
                               'leave the DMLC_* variables to the launcher' % (native.num_workers, joined.clients))
        collective.announce(self.guard.lifeline, trace)
        self.telemetry.connect(self.guard.lifeline)
        place = Place(topology.rank, topology.num_workers, joined.num_servers, joined.first_client, FIRST_KEY)
        servers = ParameterServers(native, place, lambda: collective.any(False, 'mxhybrid.meet'), trace,
                                   joined.encode_command, Deliveries(self.guard.fails_with()))
        servers.install(dict(joined.watch, timeout=self.settings.timeout, trace=trace.enabled),
                        self.settings.may_travel_as('float16'))
        if joined.lane:
            self._open_lane(servers, collective)
        return servers

    def _open_lane(self, servers: ParameterServers, collective: Collective) -> None:
        domains = self.topology.memory_domains
        lane = servers.open_lane(domains, lambda value: collective.allgather_json(value, 'mxhybrid.agents'),
                                 self.settings.timeout,
                                 lambda server_domains: is_served(self.settings, self.rank, domains, server_domains))
        if lane is not None and self.settings.dense_transport != 'horovod':
            collective.reduction = LaneAllreduce(lane, serves_gpus=not collective.reaches_gpus)

    @property
    def rank(self) -> int:
        """The rank of this worker, in Horovod, too."""
        return self.topology.rank

    @property
    def num_workers(self) -> int:
        return self.topology.num_workers

    def count_trainer(self) -> int:
        """Return the number of a new Trainer, from 0; equal on all workers, which make the same Trainers."""
        return next(self._trainers)

    @property
    def transports(self) -> str:
        """A phrase about the transports of rows and of dense sums."""
        assert self.servers is not None and self.collective is not None
        if self.collective.sums_together:
            return 'rows and dense sums by the lane'
        return 'rows by %s, dense sums by Horovod' % ('the lane' if self.servers.on_lane else 'ps-lite')

    def network(self) -> Optional[Network]:
        """Return the bytes between this host and others so far; None if they are not counted."""
        return None if self.servers is None else self.servers.network()

    @property
    def distributed(self) -> bool:
        """True if the job has other processes."""
        return self.num_servers > 0

    @property
    def joined(self) -> bool:
        """True if this process is a member of a job with other processes."""
        return self.distributed and not self._forked

    def check(self) -> None:
        """Raise an error if a store cannot carry out calls.

        JobError in a process that was forked from a member of the job; the MXNetError of an operation that failed
        before a fork.
        """
        if self.distributed:
            forks.fork_guard.check()
            if self._forked:
                raise JobError('this process was forked from worker %d and is no member of its job: make calls of the '
                               'store, and steps of a Trainer, in the worker itself' % self.rank)

    def stay_to_the_end(self) -> None:
        """Register the orderly end for when the script ends, and a silent end in forked processes."""
        forks.prepare(self._leave_in_child)
        atexit.register(self._finish)

    def _leave_in_child(self) -> None:
        """Drop the job, in a process that a member of it forked, without sending anything."""
        self._forked = True
        atexit.unregister(self._finish)
        assert self.collective is not None
        self.collective.leave_in_child()
        if self._native is not None:
            disown(self._native)

    def _finish(self) -> None:
        """Wait at exit until the scripts of all workers have ended, then leave the native store and Horovod in step."""
        assert self.collective is not None and self.servers is not None and self.guard.lifeline is not None
        try:
            mx.nd.waitall()
            if self.telemetry.trace.enabled:
                self.servers.link.settle()  # otherwise the trace would lack the last updates
            self.guard.lifeline.finish()
            self.guard.expect_end()
            with self.guard.deadline(_EXIT_TIMEOUT_S, 'the servers to release this worker'):
                self.servers.link.settle()
                self.servers.deliveries.close()
                self.guard.lifeline.settle()  # not over Horovod, which the script may have ended
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
