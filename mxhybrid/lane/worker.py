"""A worker on the lane: pushes and pulls rows of all tables."""
import ctypes
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
from mxnet.base import check_call

from ..base.errors import JobError
from ..messaging.local_sockets import Connection, connect
from ..native.engine import handles_of, push_native
from ..native.forks import fork_guard
from ..telemetry.recorder import OFF, AnyRecorder
from ..telemetry.traffic import Network
from . import library
from .agent import Shape
from .keyed_rows import KeyedRows, packed
from .membership import Membership
from .row_arrays import FEW_BYTES, mxnet_functions

#: Milliseconds after which a wait checks for signals.
_SLICE_MS = 200
#: ``enum PullFlags`` and ``enum PushFlags`` of ``src/memory/shared.h``.
_FENCE, _UNCACHED = 1, 2
_EXACT_ROWS = 1
#: ``enum Overflow`` of ``src/worker/worker.h``.
_OVERFLOWS = {1: 'gradients pushed', 2: 'rows pulled'}
#: Kinds of messages between hosts (``enum Message`` of ``src/network/connection.h``) by purpose: data and credits of
#: channels, contributions to allreduces and their results, pushed rows, pulls, and the rows that answer them.
_MESSAGES = {'exchange': (7, 8), 'allreduce': (5, 6), 'push': (1,), 'pull request': (2,), 'pull response': (3,)}
#: The size of arrays indexed by kind, ``kMessageKinds`` of ``src/memory/shared.h``, and the largest staleness there.
_KINDS, _MAX_STALENESS = 9, 16
#: Seconds within which an agent of the host must answer.
_ANSWER_TIMEOUT_S = 60.0


class Lane:
    """The worker `rank` on the lane."""

    def __init__(self, membership: Membership, rank: int, trace: AnyRecorder = OFF):
        self._library = library.load()
        self._trace: Any = trace
        self.membership, self.rank = membership, rank
        self._local = membership.local_rank(rank)
        hosts, workers = membership.agent_hosts, membership.worker_counts
        host = membership.hosts.index(membership.memory_domains[rank])
        #: The compiled worker, for compiled functions.
        self.pointer = self._library.worker_new(host, self._local, len(hosts), library.numbers(hosts), len(workers),
                                                library.numbers(workers))
        self._agents: Dict[int, Connection] = {}
        #: Held from a request to an agent to its answer.
        self._request_lock = threading.Lock()
        #: The numbers of tables on the lane, by their index, and of those with pushes since the last :meth:`settle`.
        self._numbers: Dict[int, int] = {}
        self._pushed: Set[int] = set()
        for number, endpoint in enumerate(membership.agents):
            if hosts[number] == host:
                self._add_agent(number, connect(endpoint.listener))
        #: Process ids of the servers whose agents serve this host.
        self.local_agents = [connection.peer for connection in self._agents.values()]

    def _add_agent(self, agent: int, connection: Connection) -> None:
        self._agents[agent] = connection
        connection.send(['worker', self._local], self._library.worker_block(self.pointer))
        doorbell, block = self._descriptor(agent), self._descriptor(agent)
        try:
            self._library.worker_add_agent(self.pointer, agent, doorbell, block)
        finally:
            os.close(block)

    def _descriptor(self, agent: int) -> int:
        _, descriptor = self._agents[agent].receive(_ANSWER_TIMEOUT_S)
        if descriptor is None:
            raise JobError('server %d sent no descriptor of shared memory to this worker: report this as a bug of '
                           'mxhybrid' % agent)
        return descriptor

    def open(self, table: Any, number: int, shape: Shape) -> None:
        """Open a table that all agents have."""
        own_memory = self._library.worker_add_table(self.pointer, number, *shape.for_library())
        for agent, connection in self._agents.items():
            with self._request_lock:
                connection.send(['table', number, self._local], own_memory)
                agent_memory = self._descriptor(agent)
            try:
                self._library.worker_attach(self.pointer, number, agent, agent_memory)
            finally:
                os.close(agent_memory)
        self._numbers[table.index] = number

    def open_allreduce(self, number: int, dtype: int, count: int, ends: Sequence[int] = (), quantized: bool = False
                       ) -> int:
        """Open an allreduce and return its compiled buffer, see :class:`mxhybrid.lane.allreduce.AllreduceBuffer`.

        `ends` has the end of the range of each worker, in the order of :meth:`Membership.workers_by_host`.  `quantized`
        values, of float32, travel between hosts as int8.
        """
        own_memory = self._library.worker_open_allreduce(self.pointer, number, dtype, count)
        agent = self._library.worker_allreduce_agent(self.pointer, number)
        # Behind the input: a message may have no room for the ends of all workers.
        os.pwrite(own_memory, np.array(ends, np.uint64).tobytes(), os.fstat(own_memory).st_size)
        with self._request_lock:
            self._agents[agent].send(['allreduce', number, self._local, dtype, count, len(ends), quantized], own_memory)
            agent_memory = self._descriptor(agent)
        try:
            return self._library.worker_attach_allreduce(self.pointer, number, agent_memory)
        finally:
            os.close(agent_memory)

    def drop_allreduce(self, number: int) -> None:
        """Drop an allreduce that is not under way."""
        agent = self._library.worker_allreduce_agent(self.pointer, number)
        self._agents[agent].send(['drop allreduce', number])
        self._library.worker_drop_allreduce(self.pointer, number)

    def open_channel(self, agent: int, outgoing: bool, source: int, target: int, channel: int) -> None:
        """Ask an agent to map a channel to or from a worker of another host; `channel` is its descriptor."""
        other = self.membership.hosts.index(self.membership.memory_domains[target if outgoing else source])
        with self._request_lock:
            self._agents[agent].send(['channel', self._local, int(outgoing), source, target, other], channel)
            self._agents[agent].receive(_ANSWER_TIMEOUT_S)

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int, exact: bool = False) -> None:
        """Push rows (collective); return once they are copied.  `exact` rows are not rounded on the wire."""
        number = self._numbers[table.index]
        ids, rows = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(rows, table.dtype)
        with self._trace.span('hand over ' + table.name, 'servers'):
            while self._library.worker_push(self.pointer, number, ids.ctypes.data, len(ids), rows.ctypes.data,
                                            _SLICE_MS, _EXACT_ROWS if exact else 0):
                pass
        self._pushed.add(number)

    def push_tables(self, tables: Sequence[Any], rows: Sequence[KeyedRows]) -> None:
        """Push rows to several tables, the sum for each key (collective), once their rows are delivered.

        Keys are those of :func:`mxhybrid.lane.keyed_rows.distinct_keys`, and rows have the table's type.
        """
        numbers = [self._numbers[table.index] for table in tables]
        pushes, first = packed(numbers, rows), 0
        with self._trace.span('hand over %d tables' % len(tables), 'servers'):
            while first < len(tables):
                first += self._library.worker_push_tables(self.pointer, pushes[first:].ctypes.data, len(tables) - first,
                                                          _SLICE_MS)
        self._pushed.update(numbers)

    def request(self, table: Any, ids: np.ndarray, priority: int, ahead: int = 0) -> Callable[[np.ndarray], None]:
        """Request rows; return the function that waits for them and writes them to an array.

        The worker will use them after `ahead` more pushes, at most as many as the table's lag.
        """
        return self._request(table, ids, 0, table.lag - ahead, ahead)

    def request_uncached(self, table: Any, ids: np.ndarray) -> Callable[[np.ndarray], None]:
        """Request rows as :meth:`request` does, but without rounding on the wire and without caching."""
        return self._request(table, ids, _UNCACHED)

    def _request(self, table: Any, ids: np.ndarray, flags: int, lag: int = 0, ahead: int = 0
                 ) -> Callable[[np.ndarray], None]:
        number = self._numbers[table.index]
        ids = np.ascontiguousarray(ids, np.int64)
        request = self._post(number, ids, flags, lag, ahead)
        span: Optional[int] = None
        if self._trace.enabled:
            span = self._trace.new_id()
            self._trace.begin('rows of ' + table.name, span, 'servers', {'rows': len(ids)})

        def write(result: np.ndarray) -> None:
            direct = result.flags.c_contiguous and result.dtype == table.dtype
            rows = result if direct else np.empty(result.shape, table.dtype)
            self._wait(number, request, rows)
            if not direct:
                result[:] = rows
            if span is not None:
                self._trace.end('rows of ' + table.name, span, 'servers')
        return write

    def deliver_tables(self, tables: Sequence[Any], rows: Sequence[KeyedRows], array: Any, priority: int) -> None:
        """Request rows of several tables, which one operation of the engine writes to the memory of `array`.

        Keys are those of :func:`mxhybrid.lane.keyed_rows.distinct_keys`; the rows of each part are in that memory.
        """
        requests = packed([self._numbers[table.index] for table in tables], rows)
        handles = np.full(len(tables), -1, np.int32)
        stalenesses = library.numbers([table.lag for table in tables])
        while self._library.worker_post_tables(self.pointer, requests.ctypes.data, stalenesses, len(tables),
                                               handles.ctypes.data):
            time.sleep(0.001)  # all requests of a table are in use
        deliveries = self._library.deliveries_new(self.pointer, requests.ctypes.data, len(tables), handles.ctypes.data)
        push_native(self._library.worker_deliver_tables, deliveries, handles_of([]), handles_of([array]), priority,
                    b'mxhybrid_rows')

    def deliver_copies(self, table: Any, ids: np.ndarray, outs: List[Any], priority: int) -> bool:
        """Request few rows that the engine copies to row_sparse arrays of one shape; rows that are available already
        are written at once.  Return False, with nothing done, if that is not possible.
        """
        if self._trace.enabled or not 0 < len(ids) * table.width * table.dtype.itemsize <= FEW_BYTES:
            return False
        number, ids, handles = self._numbers[table.index], np.ascontiguousarray(ids, np.int64), handles_of(outs)
        while True:
            with fork_guard:  # a fork by another thread waits until the engine has all operations
                result = self._library.worker_pull(self.pointer, mxnet_functions(), number, ids.ctypes.data, len(ids),
                                                   handles, len(outs), priority, table.lag)
            if result == 3:
                check_call(-1)
            if result != 1:
                return bool(result == 0)
            time.sleep(0.001)  # all requests of the table are in use

    def overflows(self, table: Any) -> List[str]:
        """Return the kinds of values of a table that did not fit into float16 since the last call."""
        flags = self._library.worker_overflows(self.pointer, self._numbers[table.index])
        return [kind for flag, kind in _OVERFLOWS.items() if flags & flag]

    def settle_deliveries(self, table: Any) -> None:
        """Wait until the engine has written the rows of all deliveries."""
        number = self._numbers.get(table.index)
        if number is None:
            return
        while self._library.worker_wait_for_deliveries(self.pointer, number, _SLICE_MS):
            pass

    def lags(self, table: Any) -> List[int]:
        """Return the number of rows that workers of this host got by requests, by their lag in pushes.

        It is the lag at the time of use.  Rows that a worker has requested again after its own push are in it twice.
        """
        number = self._numbers.get(table.index)
        lags = (ctypes.c_uint64 * (_MAX_STALENESS + 1))()
        if number is not None:
            self._library.worker_lags(self.pointer, number, lags)
        return list(lags)

    def _post(self, number: int, ids: np.ndarray, flags: int, lag: int = 0, ahead: int = 0) -> int:
        while True:
            request = self._library.worker_post(self.pointer, number, ids.ctypes.data, len(ids), flags, lag, ahead)
            if request >= 0:
                return request
            time.sleep(0.001)  # all requests of the table are in use

    def _wait(self, number: int, request: int, rows: np.ndarray) -> None:
        while self._library.worker_wait(self.pointer, number, request, rows.ctypes.data, _SLICE_MS):
            pass

    def settle(self) -> None:
        """Wait until all agents have applied all pushes of this worker."""
        no_ids = np.empty(0, np.int64)
        for number, request in [(number, self._post(number, no_ids, _FENCE)) for number in self._pushed]:
            self._wait(number, request, no_ids)
        self._pushed.clear()

    def network(self) -> Network:
        """Return the bytes between this host and others so far, as counted by its agents."""
        counts = (ctypes.c_uint64 * (2 * _KINDS))()
        self._library.worker_traffic(self.pointer, counts)
        return {name: {'sent': sum(counts[kind] for kind in kinds),
                       'received': sum(counts[_KINDS + kind] for kind in kinds)} for name, kinds in _MESSAGES.items()}

    def cache_counts(self, table: Any) -> Tuple[int, int]:
        """Return the rows of a dynamic table that workers of this host have requested, and those found in caches."""
        number = self._numbers.get(table.index)
        if number is None:
            return 0, 0
        counts = library.counts([0, 0])
        self._library.worker_cache_counts(self.pointer, number, counts)
        return counts[0], counts[1]

    def move(self, successor: Any, table: Any) -> None:
        """Let `table` take over the rows that were opened for its successor."""
        self._numbers[table.index] = self._numbers.pop(successor.index)

    def forget(self, table: Any) -> int:
        """Forget a table (on all workers, with no operation under way), and return its number."""
        number = self._numbers.pop(table.index)
        self._pushed.discard(number)
        self._library.worker_drop_table(self.pointer, number)
        return number

    def close(self) -> None:
        """Close the connections with the agents; no call may follow."""
        for connection in self._agents.values():
            connection.close()
