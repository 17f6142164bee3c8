"""A table on the servers, as a worker pushes and pulls its rows and sets its optimizer."""
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..lane.keyed_rows import KeyedRows
from ..lane.row_format import RowFormat
from .cluster import ParameterServers
from .half_precision_keys import WireFormat
from .partitioning import Partitioning, chunks, rows_in_partition
from .protocol import CAPTURE, MAILBOX_ELEMENTS, OPTIMIZE, REPLACE, overwrite_mode
from .served_table import ServedTable

#: Bytes of rows that travel in one push while a table is assigned.
ASSIGN_CHUNK_BYTES = 32 << 20

#: Bytes of rows that are pulled at a time if all rows are needed.
PULL_CHUNK_BYTES = 8 << 20


class Table(ServedTable):
    """A table on the servers.  Row ids are global; partitions are hidden.

    With a `half_table`, rows that may be rounded travel by ps-lite through that table, which shows the rows of this
    one; both tables are a `family`.  `former` partitionings, by count, have keys on the servers, without contents.
    `seconds_to_create` include the transfer of all rows from one worker.
    """

    def __init__(self, servers: ParameterServers, name: str, partitioning: Partitioning, dtype: np.dtype,
                 wire_format: Optional[WireFormat] = None, half_table: Optional['Table'] = None):
        super().__init__(servers, name, partitioning.width, dtype)
        self._use(partitioning, wire_format)
        self._half_table = half_table
        if half_table is not None:
            half_table.family.insert(0, self)
            self.family, self._prefetcher = half_table.family, half_table._prefetcher
        self.former: Dict[int, Partitioning] = {}
        self._started = time.perf_counter()
        self.seconds_to_create = 0.0

    def open(self, mode: str) -> None:
        """Set the mode, once all rows are on the servers."""
        self.set_mode(mode)
        self.seconds_to_create = time.perf_counter() - self._started

    def successor(self, partitioning: Partitioning) -> 'Table':
        """Return the table that carries rows to new partitions of this one."""
        successor = Table(self.servers, self.name, partitioning, self.dtype)
        successor.row_format, successor.staleness = self.row_format, self.staleness
        return successor

    def move_to(self, partitioning: Partitioning) -> None:
        """Use new partitions, which hold the same rows; see :mod:`mxhybrid.servers.repartition`."""
        self.former[self.partitioning.count] = self.partitioning
        self._use(partitioning)

    def _use(self, partitioning: Partitioning, wire_format: Optional[WireFormat] = None) -> None:
        self.partitioning, self.server_keys = partitioning, partitioning.keys
        self.wire_format = wire_format or WireFormat(self.name, self.dtype, partitioning.width, partitioning.keys)
        self._empty: List[Any] = [None] * partitioning.count

    def touch(self) -> None:
        """Push no rows (collective), which frees the servers' buffers; call it after :meth:`collect`."""
        self.push_exactly(np.empty(0, np.int64), np.empty((0, self.partitioning.width), self.dtype))

    def can_read(self, width: int) -> bool:
        """Return whether rows of optimizer state of `width` elements can be read, see :meth:`read_rows`."""
        return width * self.dtype.itemsize <= MAILBOX_ELEMENTS * 4

    def empty(self, part: int) -> Any:
        """Return a row_sparse array without rows in the shape of a partition."""
        if self._empty[part] is None:
            self._empty[part] = mx.nd.sparse.zeros('row_sparse', self.partitioning.shape(part),
                                                   dtype=self.wire_format.pushed_as, ctx=mx.cpu())
        return self._empty[part]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on the wire."""
        if self.row_format is not RowFormat.EXACT:
            return self.row_format.row_bytes(self.partitioning.width, self.dtype)
        return (self._half_table or self).wire_format.row_bytes

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Push rows, (n, width), of the `ids`, int64, sorted and unique (collective); returns before servers answer."""
        self._prefetcher.before_push(ids if self.lag else None)
        (self._half_table or self)._push(ids, rows, priority)
        self._prefetcher.after_push()
        self._warn()

    def push_exactly(self, ids: np.ndarray, rows: np.ndarray, priority: int = 0) -> None:
        """Push rows like :meth:`push`, but unrounded."""
        self._push(ids, rows, priority, exact=True)

    def pull(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Write the rows `ids`, after all earlier pushes of this worker, to `result` (blocks; not collective)."""
        self._prefetcher.pull(ids, result, priority)

    def pull_later(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> Callable[[], None]:
        """Request rows; the function returned waits for them, see :class:`mxhybrid.native.deliveries.Deliveries`."""
        return self._prefetcher.pull_later(ids, result, priority)

    def deliver(self, ids: np.ndarray, array: Any, rows: np.ndarray, priority: int = 0) -> None:
        """Request rows that the engine writes to `rows`, the memory of `array`; readers of the array wait for them."""
        self._deliver([self], [KeyedRows(np.ascontiguousarray(ids, np.int64), None, rows)], array, priority)

    def deliver_copies(self, ids: np.ndarray, outs: List[Any], priority: int = 0) -> bool:
        """Request few rows and copy them to row_sparse `outs`, all in one call, see :meth:`deliver`.

        Return False, with nothing done, if that is not possible.
        """
        lane = self.servers.lane
        if lane is None or self._prefetcher.has_rows() or not lane.deliver_copies(self, ids, outs, priority):
            return False
        self._prefetcher.mark_pulled()
        self._warn()
        return True

    def pull_exactly(self, ids: np.ndarray, result: np.ndarray, priority: int = 0) -> None:
        """Pull rows like :meth:`pull`, but unrounded and without staleness."""
        if self.row_format is not RowFormat.EXACT or self.staleness:
            self.pull_uncached(ids, result)
        elif self._half_table is None:
            self.pull(ids, result, priority)
        else:
            self.servers.link.request(self, ids, priority)(result)

    def pull_uncached(self, ids: np.ndarray, result: np.ndarray) -> None:
        """Pull rows like :meth:`pull_exactly`, but past prefetched rows and the cache of the host (not collective).

        The cache would otherwise grow to a whole table.
        """
        self.servers.link.request_uncached(self, ids)(result)

    def prefetch(self, ids: np.ndarray, priority: int = 0, after_push: bool = False) -> None:
        """Request rows before they are pulled, see :meth:`mxhybrid.servers.row_prefetcher.RowPrefetcher.prefetch`."""
        self._prefetcher.prefetch(ids, priority, after_push)

    def _drop_optimizer(self) -> None:
        super()._drop_optimizer()
        if self.mode == OPTIMIZE:  # partitions that are made before the next optimizer comes could not update
            self.set_mode(REPLACE)

    def assign(self, values: Callable[[np.ndarray], np.ndarray], slot: int = -1) -> None:
        """Overwrite the weights, or optimizer state `slot`, with rows of worker 0's `values` (collective)."""
        former_mode = self.mode
        self._prefetcher.before_push()
        try:
            self.set_mode(overwrite_mode(slot))
            for ids in chunks(self.partitioning.rows, self.partitioning.width * self.dtype.itemsize,
                              ASSIGN_CHUNK_BYTES):
                if self.servers.is_root:
                    self.push_exactly(ids, values(ids))
                else:
                    self.touch()
                self.servers.link.settle()
            self._prefetcher.after_push()
        finally:
            self.set_mode(former_mode)

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the ids of all rows in chunks that are small enough to pull at once."""
        return chunks(self.partitioning.rows, self.partitioning.width * self.dtype.itemsize, PULL_CHUNK_BYTES)

    def expose(self, slot: int) -> None:
        """Overwrite the weights on the servers with optimizer state `slot`, so that workers can pull it.

        All workers must push, for example by :meth:`touch`, before they pull: a pull does not overtake the command
        then, because it follows the worker's push, and worker 0 pushes after the command.
        """
        self.servers.command('expose', keys=self.partitioning.keys, slot=slot)

    def take_state(self, widths: Sequence[int]) -> List[np.ndarray]:
        """Return the arrays of optimizer state in order, each of shape (rows, width of the state) (collective).

        The weights are lost: workers must have pulled those that they need.
        """
        states = []
        self.collect()
        self.servers.barrier()
        self.set_mode(CAPTURE)
        for slot, width in enumerate(widths):
            # As in a repartition, each array of the state in turn overwrites the weights.
            self.expose(slot)
            self.touch()
            array = np.empty((self.partitioning.rows, width), self.dtype)
            for ids in self.chunks():
                rows = np.empty((len(ids), self.partitioning.width), self.dtype)
                self.pull_uncached(ids, rows)
                array[ids] = rows[:, :width]
            states.append(array)
            self.servers.barrier()
        return states

    def read_rows(self, slot: int, width: int, first: int, last: int) -> np.ndarray:
        """Return rows ``first:last`` of optimizer state `slot`, each of `width` elements (worker 0 only).

        Not collective.  InputError if a row does not fit into a mailbox.
        """
        partitioning = self.partitioning
        count = partitioning.count
        step = MAILBOX_ELEMENTS * 4 // (width * self.dtype.itemsize)
        if not step:
            raise InputError('%s: rows of %d elements are too wide to read optimizer state from the servers, which '
                             'takes at most %d: use an allreduce route for this table, see MXHYBRID_ROUTES'
                             % (self.name, width, MAILBOX_ELEMENTS * 4 // self.dtype.itemsize))
        result = np.empty((last - first, width), self.dtype)
        for part, (key, server) in enumerate(zip(partitioning.keys, partitioning.servers)):
            rows = result[(part - first) % count::count]
            begin = rows_in_partition(first, count, part)
            for offset in range(0, len(rows), step):
                count_read = min(step, len(rows) - offset)
                self.servers.command('read', key=key, slot=slot, start=begin + offset,
                                     stop=begin + offset + count_read, dtype=self.dtype.name)
                data = self.servers.read_mailbox(server, self.dtype, count_read * width)
                rows[offset:offset + count_read] = data.reshape(count_read, width)
        return result
