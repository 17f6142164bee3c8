"""The workers of a job as one group: collective calls, agreement on networks, and the transport between workers."""
import bisect
import contextlib
import functools
import socket
from typing import Any, Callable, ContextManager, Dict, List, Optional, Set

import mxnet as mx

from ...base.errors import InputError
from ...job.job import Job
from ...lane.transfers import Channels
from ...messaging.handshake import connect_peers
from ...messaging.sealed import new_secret
from ...native.last_error import take_last_error
from .lane_transport import LaneTransport
from .outline import Line, digest_of, first_difference
from .redistribution import Redistribution
from .redistribution_operator import RedistributionOperator, Transport
from .socket_transport import SocketTransport

_PURPOSE = 'redistributions between layers'
_NAME = 'mxhybrid.parallel.'


class WorkerGroup:
    """The workers of a job, as this process sees them; there is one group for each job."""

    def __init__(self, job: Job):
        self._job = job
        self._collective: Any = job.collective
        self.rank, self.size = job.rank, job.num_workers
        self._reserved = 0
        #: The first numbers of all reserved ranges, in ascending order; and of those that are cancelled.
        self._firsts: List[int] = []
        self._cancelled: Set[int] = set()
        #: The call after which the script got an error of MXNet, and the first such error; '' for none.
        self._failure = ''
        #: Ends the job because of an error in a thread that cannot raise it in the script.
        self.fail: Callable[[BaseException], None] = job.guard.fails_with('a redistribution between layers: ')
        self._transport: Optional[Transport] = None

    def agree(self, call: str, outline: Optional[List[Line]], problem: str = '', draws: bool = True) -> int:
        """Compare the outlines of a network on all workers (collective); return a number that worker 0 draws.

        Every worker draws one, so that workers with the same random state as worker 0 keep it.  A worker without
        `draws` draws none; if it is worker 0, the number is -1.

        Raises InputError on all workers if outlines differ, and the message names the first difference; or another
        worker has a `problem` instead of an outline.
        """
        seed = _drawn_number() if draws else -1
        if self.size == 1:
            return seed
        digest = None if outline is None else digest_of(outline)
        everyone = self._collective.allgather_json([digest, problem, seed], _NAME + 'agree')
        for rank, (_, other, _) in enumerate(everyone):
            if other and not problem:
                raise InputError('%s: worker %d cannot: %s' % (call, rank, other))
        if not problem and outline is not None and any(theirs != digest for theirs, _, _ in everyone):
            odd = first_difference(self._collective.allgather_json(outline, _NAME + 'outlines'))
            raise InputError('%s: workers have different networks, data or plans: %s: give the same on all workers'
                             % (call, odd))
        return int(everyone[0][2])

    def draw_number(self) -> int:
        """Return a number that worker 0 draws (collective); every worker draws one."""
        return int(self.allgather(_drawn_number(), 'number')[0])

    def allgather(self, value: Any, what: str) -> List[Any]:
        """Return the JSON `value` of every worker, in rank order (collective)."""
        return [value] if self.size == 1 else self._collective.allgather_json(value, _NAME + what)

    def barrier(self) -> None:
        """Wait for all workers (collective)."""
        if self.size > 1:
            self._collective.any(False, _NAME + 'pieces')

    def busy(self) -> ContextManager[None]:
        """Return a context for work that may take this worker long while the others wait."""
        lifeline = self._job.guard.lifeline
        return contextlib.nullcontext() if lifeline is None else lifeline.busy()

    def count_call(self, call: str) -> None:
        """Tell the job monitor of a call that all workers have to make; JobError if one has ended before it."""
        lifeline = self._job.guard.lifeline
        if lifeline is not None:
            self.note_failure()
            lifeline.count_call(call)

    def note_failure(self) -> str:
        """Note the first error of MXNet that the script got, for messages: others may wait for this worker's data.

        Return it, and when it came; '' if there was none.
        """
        error = take_last_error()
        if error and not self._failure:
            lifeline = self._job.guard.lifeline
            log = None if lifeline is None else lifeline.calls.recent()
            self._failure = '%s: %s' % ('got an error of MXNet' if log is None or not log.names else
                                        'got an error of MXNet after call number %d, %s' % (log.last, log.names[-1]),
                                        error)
            if lifeline is not None:
                lifeline.failure = self._failure
        return self._failure

    def forget_failure(self) -> None:
        """Forget the error: nothing is left of it."""
        self._failure = ''
        lifeline = self._job.guard.lifeline
        if lifeline is not None:
            lifeline.failure = ''

    def reserve_numbers(self, count: int) -> int:
        """Reserve numbers for redistributions, the same on all ranks; return the first one."""
        first, self._reserved = self._reserved, self._reserved + count
        if count > 1:
            self._firsts.append(first)
        return first

    def is_cancelled(self, first: int) -> bool:
        """Return whether the redistributions of a network, whose numbers begin with `first`, are cancelled."""
        return first in self._cancelled

    def numbers_under_way(self) -> List[int]:
        """Return the numbers of the redistributions that have begun on this worker and are not done."""
        return [] if self._transport is None else sorted({tag // 2 for tag in self._transport.tags_under_way()})

    def cancel(self, numbers: List[int]) -> None:
        """End, for good and with arbitrary values, the redistributions of all networks with one of these numbers."""
        for first in {self._firsts[bisect.bisect(self._firsts, number) - 1] for number in numbers}:
            self._cancelled.add(first)
            position = bisect.bisect(self._firsts, first)
            end = self._firsts[position] if position < len(self._firsts) else self._reserved
            self.transport.cancel(2 * first, 2 * end)

    def make_node(self, redistribution: Redistribution, differentiable: bool) -> RedistributionOperator:
        """Return the operator of a redistribution."""
        return RedistributionOperator(redistribution, self.transport, differentiable, self.fail,
                                      self._job.telemetry.trace)

    @property
    def transport(self) -> Transport:
        """The transport between the workers; the first use opens it (collective then)."""
        if self._transport is None:
            lane = None if self._job.servers is None else self._job.servers.lane
            if lane is not None:
                allgather = functools.partial(self._collective.allgather_json, name=_NAME + 'channels')
                self._transport = LaneTransport(Channels(lane, allgather, self._job.settings.timeout))
            else:
                self._transport = SocketTransport(self.rank, self._connect() if self.size > 1 else {}, self.fail)
        return self._transport

    def _connect(self) -> Dict[int, socket.socket]:
        address = self._job.topology.addresses[self.rank]
        with socket.create_server((address, 0), backlog=self.size) as listener:
            secret = new_secret() if self.rank == 0 else ''
            everyone = self._collective.allgather_json([address, listener.getsockname()[1], secret], _NAME + 'doors')
            others: List[int] = [rank for rank in range(self.size) if rank != self.rank]
            connections = connect_peers(self.rank, [(entry[0], entry[1]) for entry in everyone], others, listener,
                                        everyone[0][2], self._job.settings.timeout, _PURPOSE)
        for sock in connections.values():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connections

    def allreduce_scalar(self, value: float) -> float:
        """Return the sum of a number of each worker (collective)."""
        array = mx.nd.array([value], dtype='float64', ctx=mx.cpu())
        if self.size == 1:
            return value
        with self._collective.waiting(_NAME + 'allreduce'):
            self._collective.allreduce_(array, _NAME + 'allreduce')
            return float(array.asscalar())

    def broadcast_(self, array: Any, name: str) -> None:
        """Overwrite a dense array with worker 0's, and wait for it (collective).  The `name` has to be the same on all
        workers, as names of layers need not be.
        """
        if self.size > 1:
            with self._collective.waiting(_NAME + name):
                self._collective.broadcast_(array, _NAME + name)
                array.wait_to_read()


def _drawn_number() -> int:
    return int(mx.nd.random.randint(0, 2 ** 30, shape=(1,), ctx=mx.cpu()).asscalar())


@functools.lru_cache(maxsize=None)
def worker_group_of(job: Job) -> WorkerGroup:
    """Return the group of a job's workers."""
    return WorkerGroup(job)
