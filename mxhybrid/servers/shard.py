"""A partition on the lane: rows in memory that the workers of the host map, updated by compiled kernels if possible.

The compiled part has access to rows and state.  An optimizer without a compiled kernel is MXNet's own.  It updates the
same rows if it takes a dense array; if it takes a row_sparse array, it updates a copy, whose changed rows are copied
back.
"""
from typing import Any, List, Optional

import numpy as np
from mxnet import ndarray as nd

from ..lane.agent import Agent
from ..native.arrays import make_row_sparse, row_sparse_parts
from ..native.optimizer_state import state_widths
from ..native.optimizers import TableOptimizer
from .kernel_rules import has_kernel, kernel_rule
from .lane_partition import LanePartition
from .protocol import CAPTURE, OPTIMIZE, state_slot


class Shard(LanePartition):
    """Partition number `part` of the table `number` on the lane, with `rows` rows of `width` elements."""

    def __init__(self, key: int, table: str, agent: Agent, number: int, part: int, rows: int, width: int):
        super().__init__(key, table, agent, number, part, rows, width)
        self._rows = agent.rows(number, part, rows)
        #: Optimizer state of the compiled kernels by slot; empty if MXNet keeps the state.
        self._arrays: List[np.ndarray] = []
        self._is_stale = True  # whether rows have changed, other than by MXNet, since `stored` was made

    @property
    def is_here(self) -> bool:
        return True

    @property
    def view(self) -> np.ndarray:
        self._is_stale = True  # the caller may write
        return self._rows

    @property
    def dense(self) -> Any:
        if self._dense is None:
            self._dense = nd.from_numpy(self._rows[:], zero_copy=True)  # makes its argument read-only
        return self._dense

    # -- rules for pushes ------------------------------------------------------------------------------------------

    def set_mode(self, mode: str) -> None:
        if mode != OPTIMIZE:
            self._is_stale = True
        super().set_mode(mode)

    def _set_state_rule(self, slot: int) -> None:
        self.ensure_state(self._optimizer)
        self._set_rule('assign state' if self._arrays else 'callback', slot)

    def _set_optimizer_rule(self) -> None:
        self.ensure_state(self._optimizer)
        if self._has_kernel(self._optimizer):
            rule, settings = kernel_rule(self._optimizer.live, has_state=bool(self._arrays))
            self._set_rule(rule, settings=settings)
        else:
            self._leave_kernels(self._optimizer)
            self._set_rule('callback')

    def _has_kernel(self, optimizer: TableOptimizer) -> bool:
        return self.state is None and has_kernel(optimizer.live, self._rows.dtype)

    def _leave_kernels(self, optimizer: TableOptimizer) -> None:
        """Hand the state of the compiled part over to MXNet."""
        if not self._arrays:
            return
        arrays, self._arrays = self._arrays, []
        self.has_state = False
        self._make_state(optimizer)
        for slot, rows in enumerate(arrays):
            self.all_state_rows(slot)[:] = rows

    # -- rows and state --------------------------------------------------------------------------------------------

    def ensure_state(self, optimizer: TableOptimizer) -> None:
        if self.has_state:
            return
        if not self._has_kernel(optimizer):
            self._make_state(optimizer)
            return
        widths = state_widths(optimizer.maker, self.key, self.shape, self._rows.dtype)
        self._arrays = [np.zeros((self.shape[0], width), self._rows.dtype) for width in widths]
        for slot, rows in enumerate(self._arrays):
            self._agent.set_state(self._number, self._part, slot, rows)
        self.has_state = True

    def _make_state(self, optimizer: TableOptimizer) -> None:
        if not optimizer.takes_dense:
            self._refresh()
        weight = self.dense if optimizer.takes_dense else self.stored
        self.state, self.has_state = optimizer.create_state(self.key, weight), True

    def forget_state(self) -> None:
        super().forget_state()
        self._arrays = []

    def release(self) -> None:
        self.set_mode(CAPTURE)
        self.forget_state()
        self.stored = self._dense = None  # the command that drops the table, which follows, frees the rows

    def update(self, optimizer: TableOptimizer, grad: Any) -> None:
        """Handle a push for which the compiled part has no rule."""
        if state_slot(self.mode) >= 0:
            ids, rows = row_sparse_parts(grad)
            self.write_state(state_slot(self.mode), ids, rows)
            return
        if not optimizer.takes_dense:
            self._refresh()
        super().update(optimizer, grad)

    def _refresh(self) -> None:
        """Copy the rows to `stored` if it is missing or stale."""
        if self.stored is None or self._is_stale:
            self.stored = make_row_sparse(np.arange(self.shape[0]), self._rows, self.shape)
            self._is_stale = False

    def _publish(self, ids: Optional[np.ndarray]) -> None:
        if self._optimizer.takes_dense:
            return
        rows = self._rows_of(self.stored)
        if ids is None:
            self._rows[:] = rows
        else:
            self._rows[ids] = rows[ids]

    def _store_all_rows(self) -> None:
        dense = self._dense
        super()._store_all_rows()
        self._dense = dense  # it shares memory with the rows, not with `stored`

    def state_slots(self) -> List[Any]:
        return list(self._arrays) or super().state_slots()

    def all_state_rows(self, slot: int) -> np.ndarray:
        return self._arrays[slot] if self._arrays else super().all_state_rows(slot)

    def read(self, slot: int, start: int, stop: int, optimizer: TableOptimizer) -> np.ndarray:
        self.ensure_state(optimizer)
        return self._arrays[slot][start:stop] if self._arrays else super().read(slot, start, stop, optimizer)
