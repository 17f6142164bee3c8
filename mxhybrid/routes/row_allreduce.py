"""A dense weight with row_sparse gradients, of which a step touches most rows: allreduce sums the gradients."""
from typing import Any, List

import numpy as np

from .route import Route
from .row_gradients import RowGradients
from .row_sums import RowSum
from .rows import fill_outputs


class RowAllreduce(RowGradients):
    """Sums rows in a dense buffer, see :mod:`mxhybrid.routes.row_sums`."""

    kind = 'row allreduce'
    _without_table = 'it went to allreduce'

    def __init__(self, former: Route):
        super().__init__(former)
        self.wire_dtype = self.buffer_dtype  # int8 would round the marks of rows
        self._sum = RowSum(self.rows, self.width, self.wire_dtype, self.tag + '.rowsum', self._collective,
                           self.wire_dtype != self.dtype)

    def _sum_rows(self, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        self._sum.push(ids, rows, priority)
        self.traffic.add(rows=len(ids), **self._sum.moved)

    def _write_sum(self, outs: List[Any], priority: int) -> None:
        fill_outputs(self._sum.touched(), self._sum.take, self.shape, self.dtype, outs)
