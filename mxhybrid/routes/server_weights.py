"""A row_sparse weight on the servers, with its optimizer state: workers push and pull the rows that they use."""
from typing import Any, List

import numpy as np

from ..lane.row_format import row_format
from ..native.arrays import array_digest, row_reader
from ..native.optimizer_state import rates_of, update_count
from ..servers.lifecycle import TableSpec, create_table
from ..servers.partitioning import ROW_OVERHEAD_BYTES
from ..servers.protocol import REPLACE
from ..servers.table import Table
from .replica import Replica
from .replicated import Replicated
from .route import Route, RouteContext
from .rows import count_pulled, fill_outputs, pull_async, pull_each_async, sum_devices
from .table_weight import TableWeight


class ServerWeights(TableWeight):
    """The route to a table on the servers, which is created with its first value."""

    kind = 'server weights'
    sparse = uses_servers = True
    _table: Table

    def __init__(self, key: Any, name: str, array: Any, context: RouteContext):
        super().__init__(key, name, array, context)
        self._servers = context.servers

    def init(self, value: Any, outs: List[Any], priority: int, keeps_dense: bool = True, was_set: bool = True) -> None:
        """Create the table, or drop its optimizer state; its rows are worker 0's."""
        if self.server_table is None:
            spec = TableSpec(self.tag, self.shape, self.dtype, self.context.partitions_for(self),
                             row_format(self.dtype, self.wire_dtype, self.width),
                             self.context.settings.staleness_for(self.name))
            self._table = self.server_table = create_table(self._servers, spec, REPLACE, row_reader(value))
            if self._servers.initialiser != 0 and not self._starts_alike(value):
                self.write_weight(row_reader(value))
        else:
            self.forget_optimizer()
            if was_set:
                self.write_weight(row_reader(value))
        if outs:
            self.pull(outs, None, priority, ignore_sparse=False)

    def _starts_alike(self, value: Any) -> bool:
        """Return whether the worker that initialised the table has worker 0's values, as with equal seeds."""
        digest = np.zeros(4, np.int32)
        if self._servers.rank in (0, self._servers.initialiser):
            ids, rows = sum_devices([value])
            digest = np.frombuffer(array_digest(ids, rows), np.int32)
        digests = self.context.collective.allgather(digest, self.tag + '.digest')
        return np.array_equal(digests[0], digests[self._servers.initialiser])

    def pull_rows(self, id_arrays: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write rows to `outs`; each row is pulled once; may return before they arrive."""
        if len(id_arrays) == 1:
            count = len(id_arrays[0])
            pull_async(self._table, id_arrays[0], self.shape, outs, priority)
        else:
            count = pull_each_async(self._table, self._servers.deliveries, id_arrays, self.shape, outs, priority)
        count_pulled(self, count)

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write all rows to `outs`, exactly as the servers hold them."""
        if ignore_sparse:
            return
        ids = np.arange(self.rows, dtype=np.int64)
        fill_outputs(ids, lambda rows: self._table.pull_exactly(ids, rows, priority), self.shape, self.dtype, outs)
        self.traffic.add(steps=0, pulled=len(ids) * (self.width * self.dtype.itemsize + ROW_OVERHEAD_BYTES))

    def widths_to_move(self) -> List[int]:
        """Return the elements per row of the weight and of each array of state."""
        return [self.width] + self.state_widths()

    def can_move(self) -> bool:
        """Return whether the servers can send the rows of the state."""
        return all(map(self._table.can_read, self.state_widths()))

    def to_allreduce(self, optimizer: Any) -> Route:
        """Move the table to all workers, with its state (collective)."""
        replica = Replica(self.tag, self.rows, self.width, self.dtype, self.context.collective, self.buffer_dtype)
        if optimizer is not None and self.has_state:
            replica.inherit_optimizer(self._table)
            replica.set_optimizer(optimizer, *rates_of(optimizer, self.key), update_count(optimizer, self.key))
            for slot, width in enumerate(self.state_widths()):
                rows = self.read_state(slot, width, 0, self.rows) if self.context.collective.rank == 0 else np.empty(0)
                replica.assign(rows.__getitem__, slot)
        replica.assign(lambda ids: self.read_weight(ids[0], ids[-1] + 1))  # ids of a chunk follow each other
        replicated = Replicated(self.key, self.name, self, self.context, replica)
        replicated.take_over(self)
        return replicated
