"""A dense weight with row_sparse gradients: servers sum the rows, workers pull the rows that any worker touched."""
from typing import Any, List

import numpy as np

from ..lane.row_format import row_format
from ..servers.lifecycle import TableSpec, create_table
from ..servers.partitioning import id_dtype
from ..servers.protocol import ASSIGN
from .on_demand_rows import OnDemandRows
from .route import Route
from .row_allreduce import RowAllreduce
from .row_gradients import RowGradients
from .rows import count_pulled, count_pushed, pull_async


class ServerGradients(RowGradients):
    """Sums rows in a table on the servers; workers gather the ids of the rows that any worker touched."""

    kind = 'server gradients'
    has_table = uses_servers = True

    def __init__(self, former: Route):
        super().__init__(former)
        self._table = self.server_table = create_table(self.context.servers, TableSpec(
            self.tag + '.gradient', self.shape, self.dtype, self.context.partitions_for(self),
            row_format(self.dtype, self.wire_dtype, self.width, sums=True),
            self.context.settings.staleness_for(self.name), exact=False), ASSIGN)
        self._touched = np.empty(0, np.int64)

    def to_allreduce(self, optimizer: Any) -> Route:
        """Return the route by allreduce; weight and state are in the workers."""
        return RowAllreduce(self)

    def to_on_demand_rows(self, weight: Any, state: Any, optimizer: Any) -> OnDemandRows:
        """Return the route by which servers hold and update worker 0's weight, see :meth:`OnDemandRows.fill`."""
        on_demand = OnDemandRows(self, self._table)
        on_demand.fill(weight, state, optimizer)
        self._stored = None
        return on_demand

    def _sum_rows(self, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        self._table.push(ids, rows, priority)
        everyone = self._collective.allgather(ids, self.tag + '.rows', id_dtype(self.rows))
        self._touched = np.unique(np.concatenate(everyone))
        count_pushed(self, len(ids))

    def _write_sum(self, outs: List[Any], priority: int) -> None:
        pull_async(self._table, self._touched, self.shape, outs, priority)
        count_pulled(self, len(self._touched))
