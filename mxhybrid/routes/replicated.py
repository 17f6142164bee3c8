"""The route of a row_sparse weight that every worker holds, in a :class:`~.replica.Replica`.

For a table of which a step touches most rows, this moves fewer bytes than servers do (Parallax, section 3.1).
"""
from typing import Any, List, Optional

import numpy as np

from ..native.arrays import row_reader
from .replica import Replica
from .route import RouteContext
from .rows import fill_outputs
from .table_weight import TableWeight


class Replicated(TableWeight):
    """The route to a :class:`Replica`; a new one is all zeros."""

    kind = 'replicated'
    sparse = True
    _table: Replica
    _without_table = 'it went to allreduce'

    def __init__(self, key: Any, name: str, array: Any, context: RouteContext, replica: Optional[Replica] = None):
        super().__init__(key, name, array, context)
        self.wire_dtype = self.buffer_dtype  # int8 would round the marks of rows
        self._table = replica or Replica(self.tag, self.rows, self.width, self.dtype, context.collective,
                                         self.wire_dtype)

    def init(self, value: Any, outs: List[Any], priority: int, keeps_dense: bool = True, was_set: bool = True) -> None:
        """Drop the optimizer state, and overwrite the rows by worker 0's."""
        self.forget_optimizer()
        if was_set:
            self.write_weight(row_reader(value))
        if outs:
            self.pull(outs, None, priority, ignore_sparse=False)

    def _count_push(self, rows: int) -> None:
        self.traffic.add(rows=rows, **self._table.sum.moved)

    def pull_rows(self, id_arrays: List[np.ndarray], outs: List[Any], priority: int) -> None:
        targets = [outs] if len(id_arrays) == 1 else [[out] for out in outs]
        for ids, targets_of_ids in zip(id_arrays, targets):
            self._write(ids, targets_of_ids)

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        if not ignore_sparse:
            self._write(np.arange(self.rows, dtype=np.int64), outs)

    def _write(self, ids: np.ndarray, outs: List[Any]) -> None:
        fill_outputs(ids, lambda rows: self._table.pull(ids, rows), self.shape, self.dtype, outs)
