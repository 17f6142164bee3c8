"""The host agent of this process, which is a parameter server: starts the compiled agent and admits workers to it.

The compiled agent, ``src/agent/agent.h``, handles rows, updates and messages of other hosts.  This module starts and
ends it, exchanges memory with the workers of the host, and gives Python access to the rows.

Workers send these messages, each with the descriptor of memory that they share:

* ``worker`` (local number of the worker), answered by ``doorbell`` and ``block``, each with a descriptor;
* ``table`` (number of the table, local number), answered by ``table`` with a descriptor;
* ``allreduce`` (number, local number, dtype, number of elements, number of ranges of workers, whose ends are at the end
  of the memory, whether values travel as int8), answered by ``allreduce`` with a descriptor;
* ``channel`` (local number, whether the channel leads to another host, ranks of writer and reader, number of the other
  host), answered by ``channel``.

``drop allreduce`` (number) has no descriptor and no answer.
"""
import os
import selectors
import socket
import threading
import time
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import JobError
from ..base.log import get_logger
from ..kernels.library import memory_view
from ..messaging.handshake import connect_peers
from ..messaging.local_sockets import Connection, Left, Listener, memory_domain
from ..row_store.row_store import FirstValues, RowStoreOptions
from . import library
from .membership import Endpoint, Membership

logger = get_logger(__name__)

#: Seconds within which an agent must end; workers wait longer than that for their servers at exit.
CLOSE_S = 10.0
#: The purpose of the connections between agents.
PURPOSE = 'the lane'
#: Updates rows of a partition; called with table, partition, local row ids (sorted, unique) and gradients.
Update = Callable[[int, int, np.ndarray, np.ndarray], None]
#: Called after updates with table, partition, begin and end in nanoseconds of the monotonic clock, and number of rows.
Observer = Callable[[int, int, int, int, int], None]


class Shape(NamedTuple):
    """The shape of a table: the fields of ``struct TableShape`` in ``src/memory/shared.h``."""

    #: 0 for a dynamic table.
    rows: int
    width: int
    dtype: str
    #: The RowFormat.
    row_format: int
    #: The agent that owns each partition.
    owners: Sequence[int]
    staleness: int = 0
    #: The most rows of a worker in a push or request of a dynamic table; 0 for other tables.
    max_batch_rows: int = 0

    def for_library(self) -> Tuple[Any, ...]:
        """Return the parameters of compiled functions."""
        return (self.rows, self.width, library.load().dtypes[self.dtype], self.row_format, self.max_batch_rows,
                len(self.owners), library.numbers(self.owners), self.staleness)


#: Agents that did not end in time, which their threads may still use.
_UNENDED: List['Agent'] = []


class Agent:
    """A host agent that other hosts reach at `address`.

    The thread that serves calls `update` for partitions with the rule ``callback``, and `observer`, if given, after
    every update.  It calls `on_failure` with the reason when the agent can serve no more.
    """

    def __init__(self, address: str, secret: str, update: Update, on_failure: Callable[[str], None],
                 observer: Optional[Observer] = None):
        self._library = library.load()
        self._secret = secret
        self._peer_listener = socket.create_server((address, 0), backlog=256)
        self._listener = Listener()
        self._update = update
        self._on_failure = on_failure
        self._shapes: Dict[int, Shape] = {}
        self._handle: Any = None
        self.number = -1
        # The callbacks must stay as long as the agent may call them.
        self._callback = library.Callback(self._run_callback)
        self._failed = library.Failed(lambda why: on_failure(why.decode()))
        self._observed = library.Observer(observer) if observer is not None else None
        self._closing, self._closer = socket.socketpair()
        self._thread: Optional[threading.Thread] = None
        #: The message of a worker that is being answered, and the function that the agent is calling.
        self._request, self._updating = 'nothing', ''

    @property
    def endpoint(self) -> Endpoint:
        """The addresses of this agent."""
        address, port = self._peer_listener.getsockname()[:2]
        return Endpoint(memory_domain(), address, port, self._listener.name)

    def connect(self, membership: Membership, timeout: float) -> None:
        """Connect with the agents of other hosts, which do the same, and then admit workers."""
        self.number = list(membership.agents).index(self.endpoint)
        hosts, workers = membership.agent_hosts, membership.worker_counts
        sockets = connect_peers(self.number, [(endpoint.address, endpoint.port) for endpoint in membership.agents],
                                [other for other in range(len(hosts)) if hosts[other] != hosts[self.number]],
                                self._peer_listener, self._secret, timeout, PURPOSE)
        self._peer_listener.close()
        self._handle = self._library.agent_new(self.number, len(hosts), library.numbers(hosts), len(workers),
                                               library.numbers(workers), self._callback, self._failed)
        for other, sock in sockets.items():
            self._library.agent_connect(self._handle, other, sock.detach())
        if self._observed is not None:
            self._library.agent_observe(self._handle, self._observed)
        self._library.agent_start(self._handle)
        self._thread = threading.Thread(target=self._serve, name='mxhybrid-lane-agent', daemon=True)
        self._thread.start()

    def add_table(self, number: int, shape: Shape) -> None:
        """Add a table; its rows are zeros."""
        self._shapes[number] = shape
        self._library.agent_add_table(self._handle, number, *shape.for_library())

    def add_dynamic_table(self, number: int, name: str, shape: Shape, first_values: FirstValues,
                          options: RowStoreOptions) -> None:
        """Add a dynamic table without rows; `name` is for messages, and `options` are those of one partition."""
        self._library.agent_add_dynamic_table(self._handle, number, name.encode(), *shape.for_library(),
                                              *first_values.for_library(), *options.for_library())

    def with_store(self, number: int, part: int, use: Callable[[int], Any]) -> Any:
        """Return the result of `use`, called with the address of the row store of a partition of this agent.

        During the call, the agent does no other work.
        """
        results: List[Any] = []
        errors: List[BaseException] = []

        def call(store: int) -> None:
            try:
                results.append(use(store))
            except BaseException as error:
                errors.append(error)
        self._library.agent_with_store(self._handle, number, part, library.StoreFunction(call))
        if errors:
            raise errors[0]
        return results[0]

    def drop_table(self, number: int) -> None:
        """Drop a table that no process uses any more."""
        self._shapes.pop(number, None)
        self._library.agent_drop_table(self._handle, number)

    def rows(self, number: int, part: int, count: int) -> np.ndarray:
        """Return the `count` rows of a partition of this agent, writable and valid until the table is dropped."""
        shape = self._shapes[number]
        address = self._library.agent_shard(self._handle, number, part)
        return memory_view(address, (count, shape.width), shape.dtype)

    def set_rule(self, number: int, part: int, rule: str, slot: int = 0,
                 settings: Mapping[str, float] = MappingProxyType({})) -> None:
        """Set the rule for pushes to a partition from now on, by its name in ``kernels/src/kernels/update.cc``."""
        self._library.agent_set_rule(self._handle, number, part, self._library.rules[rule], slot,
                                     self._library.rule_settings(settings))

    def set_state(self, number: int, part: int, slot: int, rows: np.ndarray) -> None:
        """Set the memory of optimizer state: the contiguous array `rows`, which the caller keeps."""
        self._library.agent_set_state(self._handle, number, part, slot, rows.ctypes.data, rows.strides[0])

    def set_updates(self, number: int, part: int, count: int) -> None:
        """Set the number of updates of a partition so far."""
        self._library.agent_set_updates(self._handle, number, part, count)

    def close(self, timeout: float = CLOSE_S) -> None:
        """End the agent, whether or not it was connected.  If it has not ended within `timeout` seconds, log what it
        waits for and leave it as it is: this process is about to end.
        """
        self._peer_listener.close()
        if self._thread is None:
            self._listener.close()
            return
        deadline = time.monotonic() + timeout
        self._closer.send(b'!')
        self._thread.join(timeout)
        left_s = max(1.0, deadline - time.monotonic())  # joining the thread may have used up the time
        pending: List[str] = []
        if self._thread.is_alive():
            pending.append('an answer to %s of a worker of this host' % self._request)
        if self._library.agent_close(self._handle, int(1000 * left_s)):
            pending.append(self._updating or self._library.error().decode())
        if pending:
            logger.warning('the lane of server %d has not ended within %g s and is left as it is: it waits for %s',
                           self.number, timeout, ', and for '.join(pending))
            _UNENDED.append(self)
        else:
            self._library.agent_free(self._handle)
        self._thread = None

    def _run_callback(self, number: int, part: int, count: int, local_ids: int, rows: int) -> None:
        shape = self._shapes[number]
        self._updating = 'the optimizer, which updates partition %d of table %d' % (part, number)
        self._update(number, part, memory_view(local_ids, (count,), 'int32'),
                     memory_view(rows, (count, shape.width), shape.dtype))
        self._updating = ''

    # -- workers ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._closing, selectors.EVENT_READ)
                selector.register(self._listener, selectors.EVENT_READ)
                while True:
                    for key, _ in selector.select():
                        if key.fileobj is self._closing:
                            return
                        if isinstance(key.fileobj, Connection):
                            self._answer(selector, key.fileobj)
                        else:
                            # One at a time, so that a process that connects again and again delays no other.
                            connection = self._listener.accept_one()
                            if connection is not None:
                                selector.register(connection, selectors.EVENT_READ)
        except Exception as error:
            self._on_failure('%s: %s' % (type(error).__name__, error))

    def _answer(self, selector: selectors.BaseSelector, connection: Connection) -> None:
        try:
            (kind, number, *arguments), descriptor = connection.receive()
        except Left:  # the job monitor notices its death
            selector.unregister(connection)
            connection.close()
            return
        self._request = repr(kind)
        if kind == 'drop allreduce':
            self._library.agent_drop_allreduce(self._handle, number)
            return
        if descriptor is None:
            raise JobError('a worker of this host sent the message %r without the descriptor of shared memory: report '
                           'this as a bug of mxhybrid' % kind)
        try:
            if kind == 'worker':
                self._library.agent_add_worker(self._handle, number, descriptor)
                connection.tell(['doorbell'], self._library.agent_doorbell(self._handle))
                connection.tell(['block'], self._library.agent_block(self._handle))
            elif kind == 'allreduce':
                output = self._open_allreduce(descriptor, number, *arguments)
                try:
                    connection.tell(['allreduce', number], output)
                finally:
                    os.close(output)
            elif kind == 'channel':
                self._library.agent_open_channel(self._handle, number, *arguments, descriptor)
                connection.tell(['channel'])
            else:
                self._library.agent_attach(self._handle, number, arguments[0], descriptor)
                rows = self._library.agent_table(self._handle, number)
                try:
                    connection.tell(['table', number], rows)
                finally:
                    os.close(rows)
        finally:
            os.close(descriptor)

    def _open_allreduce(self, descriptor: int, number: int, local: int, dtype: int, count: int, ranges: int,
                        quantized: bool) -> Any:
        ends_bytes = ranges * np.dtype(np.uint64).itemsize
        ends = np.frombuffer(os.pread(descriptor, ends_bytes, os.fstat(descriptor).st_size - ends_bytes), np.uint64)
        return self._library.agent_open_allreduce(self._handle, number, local, dtype, count, ranges,
                                                  library.counts(ends.tolist()), int(quantized), descriptor)
