"""A row_sparse weight on the servers, with its optimizer state: workers push and pull the rows that they use."""
import hashlib
from typing import Any, List, Optional

import numpy as np

from ..native.arrays import row_reader
from ..native.optimizer_state import rates_of, update_count
from ..servers.lifecycle import create_table
from ..servers.partitioning import ROW_OVERHEAD_BYTES
from ..servers.protocol import REPLACE
from ..servers.table import Table
from .held_weight import HeldWeight
from .replicated import Replica, Replicated
from .route import Means, Route
from .rows import sum_devices, wire_bytes, write_each_later, write_later, write_now


class ServerWeights(HeldWeight):
    """A table on the servers; it is made when it gets its first value."""

    kind = 'server weights'
    sparse = uses_servers = True
    _table: Table

    def __init__(self, key: Any, name: str, array: Any, means: Means):
        super().__init__(key, name, array, means)
        self._servers, self._made = means.servers, False

    @property
    def server_table(self) -> Optional[Table]:
        """The table of weights."""
        return self._table

    def init(self, value: Any, outs: List[Any], priority: int, keeps_dense: bool = True, was_set: bool = True) -> None:
        """Make the table, or drop its optimizer state; its rows are worker 0's."""
        if not self._made:
            self._table = create_table(self._servers, self.tag, self.shape, self.dtype,
                                       self.means.partitions_for(self), REPLACE, row_reader(value),
                                       halves=self.wire != self.dtype)
            self._made = True
            if self._servers.initialiser != 0 and not self._starts_alike(value):
                self.write_weight(row_reader(value))
        else:
            self.forget_optimizer()
            if was_set:
                self.write_weight(row_reader(value))
        if outs:
            self.pull(outs, None, priority, ignore_sparse=False)

    def _starts_alike(self, value: Any) -> bool:
        """Whether the worker that initialised the table has worker 0's values, as equal seeds give."""
        digest = np.zeros(2, np.int32)
        if self._servers.rank in (0, self._servers.initialiser):
            ids, rows = sum_devices([value])
            state = hashlib.blake2b(np.ascontiguousarray(ids).data, digest_size=8)
            state.update(np.ascontiguousarray(rows).data)
            digest = np.frombuffer(state.digest(), np.int32)
        digests = self.means.collective.gather(digest, self.tag + '.digest')
        return np.array_equal(digests[0], digests[self._servers.initialiser])

    def _count_push(self, rows: int) -> None:
        self.traffic.add(rows=rows, pushed=wire_bytes(rows, self._table))

    def pull_rows(self, wanted: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows into `outs`, pulling each row once; may return before they are there."""
        table = self._table
        if len(wanted) == 1:
            count = len(wanted[0])
            write_later(table, wanted[0], self.shape, outs, priority)
        else:
            count = write_each_later(table, self._servers.deliveries, wanted, self.shape, outs, priority)
        self.traffic.add(steps=0, pulled=wire_bytes(count, table))

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write all rows into `outs`, exactly as the servers hold them."""
        if ignore_sparse:
            return
        ids = np.arange(self.rows, dtype=np.int64)
        write_now(ids, lambda rows: self._table.pull_exactly(ids, rows, priority), self.shape, self.dtype, outs)
        self.traffic.add(steps=0, pulled=len(ids) * (self.width * self.dtype.itemsize + ROW_OVERHEAD_BYTES))

    def widths_to_move(self) -> List[int]:
        """Of the weight and of each array of state."""
        return [self.width] + self.state_widths()

    def can_move(self) -> bool:
        """Whether the servers can send the rows of the state."""
        return all(map(self._table.can_read, self.state_widths()))

    def to_allreduce(self, optimizer: Any) -> Route:
        """Bring the table to all workers, with its state (collective)."""
        replica = Replica(self.tag, self.rows, self.width, self.dtype, self.means.collective, self.wire)
        table = self._table
        if optimizer is not None and table.has_optimizer:
            replica.inherit_optimizer(table)
            replica.set_optimizer(optimizer, *rates_of(optimizer, self.key), update_count(optimizer, self.key))
            for slot, width in enumerate(self.state_widths()):
                rows = self.read_state(slot, width, 0, self.rows) if self.means.collective.rank == 0 else np.empty(0)
                replica.assign(rows.__getitem__, slot)

        def weights(ids: np.ndarray) -> np.ndarray:
            rows = np.empty((len(ids), self.width), self.dtype)
            table.pull_uncached(ids, rows)
            return rows

        replica.assign(weights)
        moved = Replicated(self.key, self.name, self, self.means, replica)
        moved.take_over(self)
        return moved
