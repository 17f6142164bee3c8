"""A dense weight with row_sparse gradients: servers sum the rows, workers pull those that anyone touched."""
from typing import Any, List, Optional

import numpy as np

from ..servers.lifecycle import create_table
from ..servers.partitioning import id_dtype
from ..servers.protocol import ASSIGN
from ..servers.table import Table
from .own_rows import OwnRows, objection
from .route import Route
from .row_allreduce import RowAllreduce
from .row_gradients import RowGradients
from .rows import wire_bytes, write_later


class ServerGradients(RowGradients):
    """The servers' table has the sum of the last push; which rows anyone touched, workers learn from each other."""

    kind = 'server gradients'
    has_table = uses_servers = True

    def __init__(self, former: Route):
        super().__init__(former)
        self._servers = self.means.servers
        self._table = create_table(self._servers, self.tag + '.gradient', self.shape, self.dtype,
                                   self.means.partitions_for(self), ASSIGN,
                                   halves=self.wire != self.dtype, exact=False)
        self._touched = np.empty(0, np.int64)

    @property
    def server_table(self) -> Optional[Table]:
        """The table of sums."""
        return self._table

    def to_allreduce(self, optimizer: Any) -> Route:
        """Have allreduce sum the rows; weight and state are in the workers."""
        return RowAllreduce(self)

    def objection(self, optimizer: Any, state: Any = None) -> str:
        """Why servers cannot hold and update the weight, see :func:`mxhybrid.routes.own_rows.objection`."""
        return objection(self, optimizer, state)

    def to_own_rows(self, weight: Any, state: Any, optimizer: Any) -> OwnRows:
        """Have the servers update worker 0's weight from now on, see :meth:`mxhybrid.routes.own_rows.OwnRows.fill`."""
        own = OwnRows(self, self._table)
        own.fill(weight, state, optimizer)
        self._stored = None
        return own

    def _sum_rows(self, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        self._table.push(ids, rows, priority)
        everyone = self._collective.gather(ids, self.tag + '.rows', id_dtype(self.rows))
        self._touched = np.unique(np.concatenate(everyone))
        self.traffic.add(rows=len(ids), pushed=wire_bytes(len(ids), self._table))

    def _write_sum(self, outs: List[Any], priority: int) -> None:
        write_later(self._table, self._touched, self.shape, outs, priority)
        self.traffic.add(steps=0, pulled=wire_bytes(len(self._touched), self._table))
