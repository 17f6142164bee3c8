"""A worker's view of MXNet's native ``dist_sync`` parameter servers: keys, commands, mailboxes.

The native store moves bytes; :mod:`mxhybrid.servers.handler` interprets them in the servers.  Rules of the native store
that shape this folder (``src/kvstore/kvstore_dist.h`` and ``kvstore_dist_server.h``):

* Every worker pushes every key once per step, so a partition without touched rows is pushed empty.
* Row ids of a push are sorted and unique.  The worker with native rank 0 initialises a table with all its rows.
* A command overtakes pushes that are under way, so worker 0 waits for its pushes before it sends a command.
"""
import functools
import itertools
import json
import struct
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from ..lane.agent import Shape
from ..lane.membership import Membership
from ..lane.worker import Lane
from ..native.arrays import host_view
from ..native.deliveries import Deliveries
from ..native.stores import send_command
from ..telemetry.recorder import AnyRecorder
from ..telemetry.traffic import Network
from .dynamic_shard import named_table
from .keys import KeyPool, TableKeys
from .protocol import MAILBOX_ELEMENTS
from .ps_lite_link import PsLiteLink

#: MXNet's command after which servers keep, and add, float32 for keys of other dtypes (``CommandType``).
_SET_MULTI_PRECISION = 1


class Place(NamedTuple):
    """The place of a worker in a job with servers."""

    rank: int
    num_workers: int
    num_servers: int
    #: The worker with rank 0 in the native store, whose pushes create keys, from `first_key` on.
    initialiser: int
    first_key: int


class ParameterServers:
    """The servers, for a worker: its native store, commands and their answers, keys, and the tables in use.

    `client` is this worker's link by ps-lite; None if `native` is None: if rows travel by the lane, only worker 0 has a
    native store.  Only worker 0 sends commands, as text that `encode_command` makes of name and arguments.  `barrier`
    waits until all workers call it.
    """

    def __init__(self, native: Any, worker_place: Place, barrier: Callable[[], Any], trace: AnyRecorder,
                 encode_command: Callable[[str, Dict[str, Any]], str], deliveries: Deliveries):
        self.trace, self._encode_command, self.deliveries = trace, encode_command, deliveries
        link = PsLiteLink(native, trace)
        self.client = None if native is None else link
        #: The link that carries this worker's rows.
        self.link: Union[PsLiteLink, Lane] = link
        self.rank, self.num_workers, self.num_servers, self.initialiser, first_key = worker_place
        self.is_root = self.rank == 0
        self.barrier = barrier
        self.keys = KeyPool(self.num_servers, first_key)
        self._mailboxes = [self.keys.placement.key_on(server) for server in range(self.num_servers)]
        #: Numbers of tables, equal on all workers.
        self.table_numbers = itertools.count()
        #: The tables in use and their keys by name, see :mod:`mxhybrid.servers.lifecycle`; dynamic tables have no keys.
        self.tables: Dict[str, Tuple[Any, Optional[TableKeys]]] = {}
        # Whether the pulls of a thread get rows without staleness.
        self._local = threading.local()
        self._lane_numbers = itertools.count()

    @functools.cached_property
    def native(self) -> Any:
        """The native store of this worker; a local store if it has no connection to the servers."""
        return mx.kv.create('local') if self.client is None else self.client.native

    def install(self, watch: Dict[str, Any], half_rows: bool) -> None:
        """Install the handler in every server and connect it to the job monitor (collective).

        With `half_rows` servers add float16 rows in float32, which cannot be changed later.
        """
        if self.client is None:
            return
        if half_rows and self.is_root:
            send_command(self.client.native, _SET_MULTI_PRECISION, '')
        self.initialise(self._mailboxes, [mx.nd.zeros(MAILBOX_ELEMENTS, ctx=mx.cpu())] * self.num_servers)
        self.command('mailbox', keys=self._mailboxes)
        self.command('watch', **watch)
        for key in self._mailboxes:
            self.client.native.push(key, mx.nd.zeros(MAILBOX_ELEMENTS, ctx=mx.cpu()))
        mx.nd.waitall()

    def open_lane(self, memory_domains: Sequence[str], exchange: Callable[[Any], List[Any]], timeout: float,
                  is_served: Callable[[List[str]], bool]) -> Optional[Lane]:
        """Open the lane, by which rows travel from then on, and return it (collective).

        `memory_domains` are those of the workers, by rank; `exchange` gives every worker the JSON values of all
        workers.  Return None, and open nothing, if `is_served` returns false for the memory domains of the servers.
        """
        self.command('listen')
        agents = [self.read_answer(server) for server in range(self.num_servers)] if self.is_root else []
        agents = exchange(agents)[0]
        membership = Membership.from_json(agents, list(memory_domains))
        if not is_served([agent.memory_domain for agent in membership.agents]):
            self.command('part')
            return None
        self.command('connect', agents=agents, memory_domains=list(memory_domains), timeout=timeout)
        self.barrier()
        lane = self.link = Lane(membership, self.rank, self.trace)
        return lane

    def read_answer(self, server: int) -> Any:
        """Return the JSON value with which a server has answered a command."""
        size, text = self._read_part(server)
        if len(text) < size:  # the answer is longer than the mailbox
            while len(text) < size:
                self.command('rest_of_answer', start=len(text))
                text += self._read_part(server)[1][:size - len(text)]
            self.command('rest_of_answer', start=0)  # other servers show the beginnings of their answers again
        return json.loads(text.decode())

    def _read_part(self, server: int) -> Tuple[int, bytes]:
        """Return the length of an answer, and the part of its text that is in the mailbox."""
        data = self.read_mailbox(server, np.uint8, MAILBOX_ELEMENTS * 4).tobytes()
        size, = struct.unpack_from('<I', data)
        return size, data[4:4 + size]

    def open_table(self, table: Any) -> None:
        """Create a table's rows, as zeros, on the lane (collective)."""
        assert isinstance(self.link, Lane)
        number, partitioning = next(self._lane_numbers), table.partitioning
        shape = Shape(partitioning.rows, partitioning.width, table.dtype.name, int(table.row_format),
                      partitioning.servers, table.staleness)
        self.command('shards', table=table.name, keys=partitioning.keys, number=number, shape=shape)
        self.barrier()
        self.link.open(table, number, shape)

    def open_dynamic_table(self, table: Any) -> None:
        """Create a dynamic table, without rows, on the lane (collective)."""
        assert isinstance(self.link, Lane)
        number = next(self._lane_numbers)
        shape = Shape(0, table.width, table.dtype.name, int(table.row_format), table.owners, table.staleness,
                      table.max_batch_rows)
        self.command('dynamic_table', table=table.name, keys=table.server_keys, number=number, shape=shape,
                     first_values=table.first_values, options=table.options)
        self.barrier()
        with named_table(table.name, table.max_batch_rows):
            self.link.open(table, number, shape)

    def storage_problems(self, directory: str) -> List[Tuple[str, str]]:
        """Return the hosts whose servers cannot keep rows in files of a directory, with reasons (worker 0 only)."""
        self.command('storage', directory=directory)
        answers = [self.read_answer(server) for server in range(self.num_servers)]
        return [(host, problem) for host, problem in answers if problem]

    def drop_table(self, table: Any) -> None:
        """Drop a table from the lane (collective); no operation may be under way."""
        assert isinstance(self.link, Lane)
        number = self.link.forget(table)
        self.barrier()
        self.command('drop', number=number)

    @property
    def on_lane(self) -> bool:
        """True if rows travel by the lane."""
        return self.lane is not None

    @property
    def lane(self) -> Optional[Lane]:
        """The lane, if rows travel by it."""
        return self.link if isinstance(self.link, Lane) else None

    @property
    def pulls_fresh(self) -> bool:
        """True while the pulls of this thread get rows without staleness."""
        return getattr(self._local, 'fresh', False)

    @contextmanager
    def fresh_pulls(self) -> Iterator[None]:
        """Let pulls of this thread get rows with all pushes of all workers."""
        former, self._local.fresh = self.pulls_fresh, True
        try:
            yield
        finally:
            self._local.fresh = former

    def network(self) -> Optional[Network]:
        """Return the bytes between this host and others so far; None with ps-lite, which does not count them."""
        return self.link.network() if isinstance(self.link, Lane) else None

    def part(self) -> None:
        """End the lane, if there is one; no worker may wait for rows any more."""
        if self.on_lane:
            self.command('part')

    def initialise(self, keys: Any, values: Any) -> None:
        """Create keys with the values of the worker that initialises (collective among clients)."""
        if self.client is not None:
            with self.client.lock:
                self.client.native.init(keys, values)

    def command(self, name: str, /, **arguments: Any) -> None:
        """Send a command, see :mod:`mxhybrid.servers.protocol`, to all servers; a no-op except in worker 0."""
        if not self.is_root:
            return
        with self.trace.span('command ' + name, 'command'):
            self.link.settle()
            body = self._encode_command(name, arguments)
            assert self.client is not None
            with self.client.lock:
                send_command(self.client.native, 0, body)

    def read_mailbox(self, server: int, dtype: Any, count: int) -> np.ndarray:
        """Return the first `count` elements that a command left in a server's mailbox."""
        out = mx.nd.empty(MAILBOX_ELEMENTS, ctx=mx.cpu())
        assert self.client is not None
        with self.client.lock:
            self.client.native.pull(self._mailboxes[server], out=out)
        nbytes = count * np.dtype(dtype).itemsize
        return np.array(host_view(out).view(np.uint8)[:nbytes]).view(dtype)
