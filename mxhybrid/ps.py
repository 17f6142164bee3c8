"""Tables on MXNet's native ``dist_sync`` parameter servers, cut into partitions.

The native store moves the bytes; :mod:`mxhybrid.handler` decides in the servers what they mean.  Rules of the
native store that shape this module (``src/kvstore/kvstore_dist.h`` and ``kvstore_dist_server.h``):

* every worker pushes every key once per step, so a partition without touched rows is pushed empty;
* row ids of a push are sorted and unique; a table is initialised with all its rows, by native rank 0;
* a command overtakes pushes that are still under way, so rank 0 waits for its own before it sends one.
"""
import copy
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import mxnet as mx
import numpy as np

from .aggregation import Direct, Follower, Leader
from .ahead import Ahead
from .arrays import allocate_rows, host_view
from .client import Client
from .deliveries import Deliveries
from .errors import InputError
from .handler import MAILBOX_ELEMENTS
from .optimizers import build, name_of, scalars, state_arrays
from .partition import Partitioning, Placement, chunks, partition_count, rows_in_partition
from .settings import variable
from .trace import AnyRecorder
from .wire import Channel, Order, packed_width, pairs_of

#: Bytes of rows that travel in one push while a table is assigned.
ASSIGN_CHUNK_BYTES = 32 << 20

#: MXNet's command that has servers keep, and add, float32 for keys of other dtypes (``CommandType``).
_SET_MULTI_PRECISION = 1


class ParameterServers:
    """The sparse half of a job: the native store and the tables on its servers.

    Parameters
    ----------
    client : Client or None
        This worker's connection to the servers, unless only the leader of its host has one.
    link : Direct, Leader or Follower
        How this worker's rows get to the servers.
    num_servers : int
    rank : int
        This worker; rank 0 alone sends commands, and its values count.
    num_workers : int
    initialiser : int
        The worker that is the native store's rank 0, whose pushes initialise keys.
    first_key : int
        Smallest key that is free.
    meet : callable
        Waits until all workers call it.
    trace : Recorder or Off
    envelope : callable
        Makes the text that the servers take for a command, of its name and arguments.
    deliveries : Deliveries
    """

    def __init__(self, client: Optional[Client], link: Union[Direct, Leader, Follower], num_servers: int, rank: int,
                 num_workers: int, initialiser: int, first_key: int, meet: Callable[[], None],
                 trace: AnyRecorder, envelope: Callable[[str, Dict[str, Any]], str], deliveries: Deliveries):
        self.trace = trace
        self._envelope = envelope
        self.deliveries = deliveries
        self.client = client
        self.link = link
        self.rank = rank
        self.is_root = rank == 0
        self.initialiser = initialiser
        self.placement = Placement(num_servers, first_key)
        self.num_servers = num_servers
        self.meet = meet
        self.num_workers = num_workers
        self._mailboxes = [self.placement.key_on(server) for server in range(num_servers)]
        self._table_count = 0
        self._stand_in: Any = None

    @property
    def native(self) -> Any:
        """The native store of this worker, a local one if it has no connection of its own."""
        if self.client is not None:
            return self.client.native
        if self._stand_in is None:
            self._stand_in = mx.kv.create('local')
        return self._stand_in

    def install(self, watch: Dict[str, Any], half_rows: bool) -> None:
        """Put the handler into every server and connect it to the job monitor (collective).

        With `half_rows` servers will add float16 rows in float32, which cannot be changed later.
        """
        if self.client is None:
            return
        if half_rows and self.is_root:
            self.client.native._send_command_to_servers(_SET_MULTI_PRECISION, '')
        self.initialise(self._mailboxes, [mx.nd.zeros(MAILBOX_ELEMENTS)] * self.num_servers)
        self.command('mailbox', keys=self._mailboxes)
        self.command('watch', **watch)
        for key in self._mailboxes:
            self.client.native.push(key, mx.nd.zeros(MAILBOX_ELEMENTS))
        mx.nd.waitall()

    def initialise(self, keys: Any, values: Any) -> None:
        """Bring keys to life with the values of the worker that initialises (collective among clients)."""
        if self.client is not None:
            with self.client.lock:
                self.client.native.init(keys, values)

    def command(self, name: str, /, **arguments: Any) -> None:
        """Have all servers carry out a command of :class:`mxhybrid.handler.Handler`; a no-op but on rank 0."""
        if not self.is_root:
            return
        with self.trace.span('command ' + name, 'command'):
            self.link.settle()
            body = self._envelope(name, arguments)
            assert self.client is not None
            with self.client.lock:
                self.client.native._send_command_to_servers(0, body)

    def read_mailbox(self, server: int, dtype: Any, count: int) -> np.ndarray:
        """The first `count` elements that a command left in a server's mailbox."""
        out = mx.nd.empty(MAILBOX_ELEMENTS)
        assert self.client is not None
        with self.client.lock:
            self.client.native.pull(self._mailboxes[server], out=out)
        nbytes = count * np.dtype(dtype).itemsize
        return np.array(host_view(out).view(np.uint8)[:nbytes]).view(dtype)

    def create_table(self, name: str, shape: tuple, dtype: Any, wanted: int, mode: str,
                     values: Optional[Callable[[np.ndarray], np.ndarray]] = None, even: bool = False,
                     halves: bool = False, exact: bool = True) -> 'Table':
        """Create a table (collective).

        Parameters
        ----------
        name : str
            Unique name.
        shape : tuple of int
        dtype : numpy dtype
        wanted : int
            Partitions asked for.
        mode : str
            What the servers do with a push, see :mod:`mxhybrid.handler`.
        values : callable, optional
            Gives rows for ids; called on the worker that initialises. Zeros by default.
        even : bool
            Place the partitions on the servers in turn, instead of where the fewest bytes are.
        halves : bool
            Whether float32 rows travel as float16.
        exact : bool
            With `halves`: whether the servers keep float32 as well.  If not, only modes 'assign' and 'replace' work.

        Raises
        ------
        InputError
            On all workers, when the servers have no keys left; nothing has changed then.
        """
        started = time.perf_counter()
        dtype = np.dtype(dtype)
        rows, width = shape[0], int(np.prod(shape[1:]))
        count = partition_count(rows, width, dtype.itemsize, wanted)
        itemsize = dtype.itemsize * (exact or not halves) + 2 * halves
        placement = copy.deepcopy(self.placement)  # which stays as it is where keys are too few
        try:
            partitioning = (placement.spread if even else placement.place)(rows, width, itemsize, count)
            further = [tuple(map(placement.key_on, partitioning.servers)) for _ in range(halves + (halves and exact))]
        except OverflowError as error:
            raise InputError('%s: %d partitions need more keys than the servers have left, %d each: give a smaller '
                             'count, see %s' % (name, count, self.placement.keys_left(), variable('partitions'))
                             ) from error
        self.placement = placement
        # The native store's own barrier, below, must find no worker of any host with rows still under way.
        self.link.settle()
        self.meet()
        pairs = (further[-1] if exact else partitioning.keys) if halves else ()
        self.command('table', table=name, keys=partitioning.keys, width=width,
                     rows=[partitioning.shape(part)[0] for part in range(count)],
                     push_keys=further[0] if halves else (), pair_keys=pairs)
        order = Order() if halves else None
        wire = self.new_table(name, replace(partitioning, keys=pairs), dtype, further[0], order) if halves else None
        table = self.new_table(name, partitioning, dtype, None, order) if exact or not halves else None
        if table is not None and wire is not None:
            table.travels_through(wire)
        if wire is not None:
            self._fill(wire, wire.channel.push_keys, wire.channel.pushed_as, width, None, everything=False)
            self._fill(wire, pairs, dtype, packed_width(width), values and pairs_of(values, width))
            self._announce(wire)
        if table is not None:
            self._fill(table, partitioning.keys, dtype, width, values)
            table.touch()
        result = table or wire
        assert result is not None
        result.set_mode(mode)
        result.seconds_to_create = time.perf_counter() - started
        return result

    def new_table(self, name: str, partitioning: Partitioning, dtype: np.dtype,
                  push_keys: Optional[Tuple[int, ...]] = None, order: Optional[Order] = None) -> 'Table':
        """A table with a number of its own in the links between workers; nothing is sent."""
        self._table_count += 1
        channel = Channel(name, dtype, partitioning.width, partitioning.keys, push_keys, order)
        return Table(self, self._table_count - 1, name, partitioning, dtype, channel)

    def _fill(self, table: 'Table', keys: Any, dtype: Any, width: int,
              values: Optional[Callable[[np.ndarray], np.ndarray]], everything: bool = True) -> None:
        """Initialise one set of keys with all rows, or with the first row only."""
        partitioning = table.partitioning
        for part, key in enumerate(keys):
            shape = (partitioning.shape(part)[0], width)
            if self.rank == self.initialiser:
                local = np.arange(shape[0] if everything else 1, dtype=np.int64)
                value, view = allocate_rows(local, shape, dtype)
                view[:] = 0 if values is None else values(partitioning.members(part))
            else:
                value = mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype)
            self.initialise(key, value)

    def _announce(self, wire: 'Table') -> None:
        """Have the handler see the stored pairs, in a push without rows (collective)."""
        if self.client is not None:
            shapes = [wire.partitioning.shape(part) for part in range(wire.partitioning.count)]
            empty = [mx.nd.sparse.zeros('row_sparse', (rows, packed_width(width)), dtype=wire.dtype)
                     for rows, width in shapes]
            with self.client.lock:
                self.client.native.push(list(wire.channel.keys), empty)
        wire.touch()


class Table:
    """One table on the servers.  Row ids are global; partitions do not show.

    Attributes
    ----------
    partitioning : Partitioning
    former : dict of int to Partitioning
        Partitionings that the table had before, by count; their keys exist on the servers, without contents.
    helper : Table or None
        Through which rows go to the partitions that the table is about to get.
    seconds_to_create : float
        How long it took, the transfer of all rows from one worker included.
    channel : Channel
        How its rows travel.
    family : list of Table
        This table and the one that shows its changes, or whose changes it shows.
    """

    def __init__(self, servers: ParameterServers, index: int, name: str, partitioning: Partitioning, dtype: np.dtype,
                 channel: Channel):
        #: Where the table lives.
        self.servers = servers
        #: Number of the table in its job, and of pushes made to it; equal on all workers.
        self.index = index
        self.pushes = 0
        self.name = name
        self.partitioning = partitioning
        self.dtype = dtype
        self.channel = channel
        self.family = [self]
        #: The table through which rows that may be rounded travel, if it is not this one.
        self._wire: Optional[Table] = None
        self._empty: List[Any] = [None] * partitioning.count
        self._sent_optimizer: Any = None
        self._sent_count = 0
        self.mode = 'capture'
        self._ahead = Ahead(lambda ids, priority: servers.link.request(self, ids, priority), partitioning.width, dtype)
        self.former: Dict[int, Partitioning] = {}
        self.helper: Optional['Table'] = None
        self.seconds_to_create = 0.0

    @property
    def updates(self) -> int:
        """Updates that the servers' optimizer has made to every partition."""
        return self._sent_count

    def state_slots(self) -> int:
        """Arrays of optimizer state that the servers keep for the table."""
        if self._sent_optimizer is None:
            return 0
        row = mx.nd.sparse.zeros('row_sparse', (1, self.partitioning.width), dtype=self.dtype)
        return len(state_arrays(build(*self._sent_optimizer).create_state_multi_precision(0, row)))

    def use(self, partitioning: Partitioning) -> None:
        """Go on with other partitions, which hold the same rows; see :mod:`mxhybrid.moving`."""
        self.partitioning = partitioning
        self.channel = Channel(self.name, self.dtype, partitioning.width, partitioning.keys)
        self._empty = [None] * partitioning.count

    def collect(self) -> None:
        """Wait for rows that were asked for, early or to be written by another thread."""
        self._ahead.collect()

    def touch(self) -> None:
        """Push no rows (collective), which frees the servers' buffers; to be called after :meth:`collect`."""
        self.push_exactly(np.empty(0, np.int64), np.empty((0, self.partitioning.width), self.dtype))

    @property
    def has_optimizer(self) -> bool:
        """Whether the servers keep optimizer state for this table."""
        return self._sent_optimizer is not None

    def can_read(self, width: int) -> bool:
        """Whether rows of optimizer state of `width` elements can be read, see :meth:`read`."""
        return width * self.dtype.itemsize <= MAILBOX_ELEMENTS * 4

    def empty(self, part: int) -> Any:
        """A row_sparse array without rows in the shape of a partition."""
        if self._empty[part] is None:
            self._empty[part] = mx.nd.sparse.zeros('row_sparse', self.partitioning.shape(part),
                                                   dtype=self.channel.pushed_as)
        return self._empty[part]

    def travels_through(self, wire: 'Table') -> None:
        """Have rows that may be rounded take another table, which shows what this one holds."""
        self._wire = wire
        self.family = wire.family = [self, wire]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on its way."""
        return (self._wire or self).channel.row_bytes

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Push rows (collective); returns before the servers answer.

        Parameters
        ----------
        ids : numpy.ndarray of int64, shape (n,)
            Sorted and unique.
        rows : numpy.ndarray, shape (n, width)
        priority : int
        """
        table = self._wire or self
        table._ahead.before_push()
        table.push_exactly(ids, rows, priority)
        table._ahead.after_push()

    def push_exactly(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """As :meth:`push`, but rows travel as they are."""
        (self._wire or self)._ahead.settle()  # for callers that did not: the host forgets the rows that it holds
        self.pushes += 1
        self.servers.link.push(self, ids, rows, priority)

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write rows of the table into `result`, after all earlier pushes of this worker (blocks; not collective).

        Parameters
        ----------
        ids : numpy.ndarray of int64, shape (n,)
            Sorted and unique.
        result : numpy.ndarray, shape (n, width)
        priority : int
        """
        (self._wire or self)._ahead.pull(ids, result, priority)

    def pull_later(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> Callable[[], None]:
        """As :meth:`pull`, but it only asks: what it returns waits, for a :class:`mxhybrid.deliveries.Deliveries`."""
        return (self._wire or self)._ahead.pull_later(ids, result, priority)

    def pull_exactly(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """As :meth:`pull`, but rows are not rounded."""
        if self._wire is None:
            self.pull(ids, result, priority)
        else:
            self.servers.link.request(self, ids, priority)(result)

    def pull_aside(self, ids: np.ndarray, result: np.ndarray) -> None:
        """As :meth:`pull_exactly`, but nobody keeps the rows: the cache of the host would grow to a whole table.

        On worker 0 only, which is a client of the servers; not collective.
        """
        self.servers.link.settle()
        assert self.servers.client is not None
        Direct(self.servers.client).request(self, ids, 0)(result)

    def prefetch(self, ids: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Ask for rows before they are pulled, see :meth:`mxhybrid.ahead.Ahead.want`."""
        (self._wire or self)._ahead.want(ids, priority, after_push)

    def set_mode(self, mode: str) -> None:
        """Tell the servers what pushes to this table mean from now on."""
        self.mode = mode
        self.servers.command('mode', keys=self.partitioning.keys, mode=mode)

    def set_optimizer(self, optimizer: Any, lr: float, wd: float, count: int) -> None:
        """Bring the servers' optimizer for this table up to date, if anything changed.

        Parameters
        ----------
        optimizer : mxnet.optimizer.Optimizer
            The live optimizer of the Trainer.
        lr, wd : float
            Effective learning rate and weight decay of this table, multipliers and schedule applied.
        count : int
            Updates made to this table before the one to come.
        """
        attributes = dict(scalars(optimizer), lr=float(lr), wd=float(wd))
        current = (name_of(optimizer), attributes)
        if current != self._sent_optimizer or count != self._sent_count:
            if self._sent_optimizer is not None and self._sent_optimizer[0] == current[0]:
                old = self._sent_optimizer[1]
                attributes = {name: value for name, value in attributes.items() if old.get(name, old) != value}
            self.servers.command('optimizer', table=self.name, keys=self.partitioning.keys, name=current[0],
                                 attributes=attributes, count=None if count == self._sent_count else count)
            self._sent_optimizer = current
            self.mode = 'optimize'
        self._sent_count = count + 1

    def expect_count(self, count: int) -> None:
        """Correct the number of updates that the servers have made."""
        self._sent_count = count

    def forget_optimizer(self) -> None:
        """Drop optimizer and state on the servers."""
        self.servers.command('forget_state', table=self.name, keys=self.partitioning.keys)
        self._sent_optimizer, self._sent_count = None, 0

    def assign(self, values: Callable[[np.ndarray], np.ndarray], slot: int = -1) -> None:
        """Overwrite the weights, or optimizer state `slot`, with rank 0's values (collective).

        Parameters
        ----------
        values : callable
            Gives rows for ids; called on rank 0 only.
        """
        before = self.mode
        ahead = (self._wire or self)._ahead
        ahead.before_push()
        self.set_mode('assign' if slot < 0 else 'state:%d' % slot)
        for ids in chunks(self.partitioning.rows, self.partitioning.width * self.dtype.itemsize, ASSIGN_CHUNK_BYTES):
            if self.servers.is_root:
                self.push_exactly(ids, values(ids))
            else:
                self.touch()
            self.servers.link.settle()
        ahead.after_push()
        self.set_mode(before)

    def read(self, slot: int, width: int) -> np.ndarray:
        """All rows of optimizer state `slot`, each of `width` elements (rank 0 only; not collective)."""
        return self.read_rows(slot, width, 0, self.partitioning.rows)

    def read_rows(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Rows ``first:last`` of optimizer state `slot`, each of `width` elements (rank 0 only; not collective).

        Raises
        ------
        InputError
            A row does not fit into a mailbox.
        """
        partitioning = self.partitioning
        count = partitioning.count
        step = MAILBOX_ELEMENTS * 4 // (width * self.dtype.itemsize)
        if not step:
            raise InputError('%s: rows of %d elements are too wide to read optimizer state from the servers, '
                             'at most %d' % (self.name, width, MAILBOX_ELEMENTS * 4 // self.dtype.itemsize))
        result = np.empty((last - first, width), self.dtype)
        for part, (key, server) in enumerate(zip(partitioning.keys, partitioning.servers)):
            rows = result[(part - first) % count::count]
            begin = rows_in_partition(first, count, part)
            for at in range(0, len(rows), step):
                number = min(step, len(rows) - at)
                self.servers.command('read', key=key, slot=slot, start=begin + at, stop=begin + at + number,
                                      dtype=self.dtype.name)
                data = self.servers.read_mailbox(server, self.dtype, number * width)
                rows[at:at + number] = data.reshape(number, width)
        return result
