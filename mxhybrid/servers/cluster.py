"""MXNet's native ``dist_sync`` parameter servers as a worker sees them: keys, commands, mailboxes.

The native store moves the bytes; :mod:`mxhybrid.servers.handler` decides in the servers what they mean.  Rules of the
native store that shape this folder (``src/kvstore/kvstore_dist.h`` and ``kvstore_dist_server.h``):

* every worker pushes every key once per step, so a partition without touched rows is pushed empty;
* row ids of a push are sorted and unique; a table is initialised with all its rows, by native rank 0;
* a command overtakes pushes that are still under way, so worker 0 waits for its own before it sends one.
"""
import itertools
import json
import struct
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from ..lane.membership import Endpoint, Membership
from ..lane.worker import Lane
from ..native.arrays import host_view
from ..native.deliveries import Deliveries
from ..native.stores import send_command
from ..telemetry.recorder import AnyRecorder
from ..telemetry.traffic import Network
from .client import Client
from .ps_lite_link import PsLiteLink
from .keys import KeyPool, TableKeys
from .protocol import MAILBOX_ELEMENTS

#: MXNet's command that has servers keep, and add, float32 for keys of other dtypes (``CommandType``).
_SET_MULTI_PRECISION = 1


class ParameterServers:
    """A worker's side of the servers: its native store, commands and what they answer, keys, and the tables there are.

    `client` is this worker's connection to the servers, None where rows will go by the lane and worker 0 alone has one.
    Worker 0 alone sends commands, whose text `encode_command` makes of name and arguments, and its values count;
    `initialiser` is the worker that is the native store's rank 0, whose pushes bring keys to life, from `first_key`
    on.  `barrier` waits until all workers call it.
    """

    def __init__(self, client: Optional[Client], num_servers: int, rank: int, num_workers: int, initialiser: int,
                 first_key: int, barrier: Callable[[], Any], trace: AnyRecorder,
                 encode_command: Callable[[str, Dict[str, Any]], str], deliveries: Deliveries):
        self.trace, self._encode_command, self.deliveries, self.client = trace, encode_command, deliveries, client
        #: How this worker's rows get there.
        self.link: Union[PsLiteLink, Lane] = PsLiteLink(client)
        self.rank = rank
        self.is_root = rank == 0
        self.initialiser = initialiser
        self.num_servers = num_servers
        self.num_workers = num_workers
        self.barrier = barrier
        self.keys = KeyPool(num_servers, first_key)
        self._mailboxes = [self.keys.placement.key_on(server) for server in range(num_servers)]
        #: Numbers for tables in the links between workers; equal on all workers.
        self.table_numbers = itertools.count()
        #: The tables in use and their keys by name, see :mod:`mxhybrid.servers.lifecycle`.
        self.tables: Dict[str, Tuple[Any, TableKeys]] = {}
        self._stand_in: Any = None
        self._lane_numbers = itertools.count()

    @property
    def native(self) -> Any:
        """The native store of this worker, a local one if it has no connection of its own."""
        if self.client is not None:
            return self.client.native
        if self._stand_in is None:
            self._stand_in = mx.kv.create('local')
        return self._stand_in

    def install(self, watch: Dict[str, Any], half_rows: bool) -> None:
        """Put the handler into every server and connect it to the job monitor (collective); with `half_rows` servers
        will add float16 rows in float32, which cannot be changed later.
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
        """From now on have rows travel by the lane (collective), which is returned; `memory_domains` of the workers
        are by rank, `exchange` gives every worker the JSON values of all.  None where servers are in memory domains
        that `is_served` finds too few.
        """
        self.command('listen')
        agents = [self._read_endpoint(server) for server in range(self.num_servers)] if self.is_root else []
        membership = Membership.from_json(exchange(agents)[0], list(memory_domains))
        agents, _ = membership.as_json()
        if not is_served([agent.memory_domain for agent in membership.agents]):
            self.part()
            return None
        self.command('connect', agents=agents, memory_domains=list(memory_domains), timeout=timeout)
        self.barrier()
        lane = self.link = Lane(membership, self.rank, self.trace)
        return lane

    def _read_endpoint(self, server: int) -> Endpoint:
        data = self.read_mailbox(server, np.uint8, MAILBOX_ELEMENTS * 4).tobytes()
        size, = struct.unpack_from('<I', data)
        return Endpoint(*json.loads(data[4:4 + size].decode()))

    def open_table(self, table: Any, halves: bool) -> None:
        """Have a table's rows, zeros, on the lane (collective)."""
        assert isinstance(self.link, Lane)
        number, cut = next(self._lane_numbers), table.partitioning
        shape = (cut.rows, cut.width, table.dtype.name, halves, list(cut.servers))
        self.command('shards', table=table.name, keys=cut.keys, number=number, rows=cut.rows, width=cut.width,
                     dtype=table.dtype.name, halves=halves, owners=cut.servers)
        self.barrier()
        self.link.open(table, number, shape)

    def drop_table(self, table: Any) -> None:
        """Drop a table from the lane (collective); nothing is under way."""
        assert isinstance(self.link, Lane)
        number = self.link.number(table)
        self.link.forget(table)
        if number is not None:
            self.barrier()
            self.command('drop', number=number)

    @property
    def on_lane(self) -> bool:
        """Whether rows travel by the lane."""
        return self.lane is not None

    @property
    def lane(self) -> Optional[Lane]:
        """The lane, if rows travel by it."""
        return self.link if isinstance(self.link, Lane) else None

    def network(self) -> Optional[Network]:
        """Bytes between this host and others so far; None where nobody counts them, as with ps-lite."""
        return self.link.network() if isinstance(self.link, Lane) else None

    def part(self) -> None:
        """No worker waits for rows any more: the lane, if there is one, may end."""
        self.command('part')

    def replace_table(self, successor: Any, table: Any) -> None:
        """From now on the rows of `table` on the lane are those of its successor (collective); nothing is under way."""
        assert isinstance(self.link, Lane)
        self.drop_table(table)
        self.link.move(successor, table)

    def initialise(self, keys: Any, values: Any) -> None:
        """Bring keys to life with the values of the worker that initialises (collective among clients)."""
        if self.client is not None:
            with self.client.lock:
                self.client.native.init(keys, values)

    def command(self, name: str, /, **arguments: Any) -> None:
        """Have all servers carry out a command, see :mod:`mxhybrid.servers.protocol`; a no-op but in worker 0."""
        if not self.is_root:
            return
        with self.trace.span('command ' + name, 'command'):
            self.link.settle()
            body = self._encode_command(name, arguments)
            assert self.client is not None
            with self.client.lock:
                send_command(self.client.native, 0, body)

    def read_mailbox(self, server: int, dtype: Any, count: int) -> np.ndarray:
        """The first `count` elements that a command left in a server's mailbox."""
        out = mx.nd.empty(MAILBOX_ELEMENTS, ctx=mx.cpu())
        assert self.client is not None
        with self.client.lock:
            self.client.native.pull(self._mailboxes[server], out=out)
        nbytes = count * np.dtype(dtype).itemsize
        return np.array(host_view(out).view(np.uint8)[:nbytes]).view(dtype)
