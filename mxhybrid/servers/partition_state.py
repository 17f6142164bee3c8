"""The state of a partition: its rows, their optimizer state, and their updates, in servers and in workers.

Servers hold partitions of tables, and workers hold whole tables whose gradients travel by allreduce.  Servers that
``launch.py`` started import this module while MXNet is half imported, see :mod:`mxhybrid.servers.handler`.
"""
from typing import Any, Dict, List, Optional

import numpy as np
from mxnet import ndarray as nd
from mxnet.context import cpu

from ..native.arrays import allocate_rows, clear, host_view, make_row_sparse, row_sparse_parts
from ..native.optimizer_state import state_arrays
from ..native.optimizers import TableOptimizer
from .protocol import CAPTURE


class Partition:
    """A partition: its stored weights, its mode and its optimizer state."""

    def __init__(self, key: int, table: str, rows: int, width: int, mode: str):
        self.key, self.table = key, table
        self.shape = (rows, width)
        self.mode = mode
        self.stored: Any = None
        self.state: Any = None
        self.has_state = False
        #: By slot, the rows of row_sparse states that store every row: to find them costs a copy of all row ids.
        self._complete_states: Dict[int, np.ndarray] = {}
        self._dense: Any = None
        #: The rows as float16, writable, if workers pull them as float16.
        self.halves: Optional[np.ndarray] = None
        self._pairs: Optional[np.ndarray] = None

    @property
    def is_here(self) -> bool:
        """True if this process has the rows of the partition."""
        return self.stored is not None

    def follow(self, optimizer: TableOptimizer) -> None:
        """Use an optimizer, or its changed settings, for later updates."""

    def expect_count(self, optimizer: TableOptimizer, count: int) -> None:
        """Set the number of updates that have been made."""
        optimizer.expect_count(self.key, count)

    @property
    def view(self) -> np.ndarray:
        """The stored weights as a writable NumPy array of shape (rows, width); each access copies all row ids."""
        return self._rows_of(self.stored)

    def _rows_of(self, stored: Any) -> np.ndarray:
        ids, rows = row_sparse_parts(stored)
        if len(rows) != self.shape[0]:
            raise RuntimeError('partition %d of %s holds %d of its %d rows: report this as a bug of mxhybrid'
                               % (self.key, self.table, len(ids), self.shape[0]))
        return rows

    def set_mode(self, mode: str) -> None:
        """Set the meaning of pushes, see :mod:`mxhybrid.servers.protocol`."""
        self.mode = mode

    def hold(self, stored: Any) -> None:
        """Set the array of the weights, row_sparse with all rows."""
        self.stored = stored

    def pull_from(self, pairs: Any) -> None:
        """Set the array of float16 pairs from which workers pull."""
        self._pairs = self._rows_of(pairs)
        self.halves = self._pairs.view(np.float16)[:, :self.shape[1]]

    def overwrite(self, ids: Any, rows: Any) -> None:
        """Overwrite rows in all arrays of the partition."""
        if self.stored is not None:
            host_view(self.dense)[ids] = rows
        if self.halves is not None:
            self.halves[ids] = rows

    def _publish(self, ids: Optional[np.ndarray]) -> None:
        """Copy changed rows, all rows if `ids` is None, to the array from which workers pull."""
        if self.halves is None:
            return
        rows = host_view(self.dense)
        if ids is None:
            self.halves[:] = rows
        else:
            self.halves[ids] = rows[ids]

    @property
    def dense(self) -> Any:
        """The stored weights as a dense MXNet array that shares their memory."""
        if self._dense is None:
            self._dense = nd.from_numpy(self.view, zero_copy=True)
        return self._dense

    def forget_state(self) -> None:
        """Drop the optimizer state; the next update creates a new one."""
        self.state, self.has_state = None, False
        self._complete_states.clear()

    def release(self) -> None:
        """Free all memory; the rows are zeros then, and can be written again."""
        self.mode = CAPTURE
        self.forget_state()
        self._dense = None
        if self.stored is not None:
            clear(self.view)
        if self._pairs is not None:
            clear(self._pairs)

    def ensure_state(self, optimizer: TableOptimizer) -> None:
        """Create the optimizer state unless it exists."""
        if not self.has_state:
            self.state = optimizer.create_state(self.key, self.dense if optimizer.takes_dense else self.stored)
            self.has_state = True

    def update(self, optimizer: TableOptimizer, grad: Any) -> None:
        """Update the stored weights with a row_sparse gradient."""
        self.ensure_state(optimizer)
        weight = self.dense if optimizer.takes_dense else self.stored
        ids, rows = row_sparse_parts(grad)
        if optimizer.takes_dense:
            grad = nd.zeros(self.shape, dtype=weight.dtype, ctx=cpu())
            host_view(grad)[ids] = rows
        elif self.halves is not None:
            # Its shape is that of the key it was pushed to, its dtype float32 by the server's own doing.
            grad = make_row_sparse(ids, rows.astype(weight.dtype, copy=False), self.shape)
        optimizer.update(self.key, weight, grad, self.state)
        weight.wait_to_read()
        if not optimizer.takes_dense and not optimizer.keeps_rows(self.state):
            self._store_all_rows()
        self._publish(None if optimizer.changes_all_rows(self.state) else ids)

    def _store_all_rows(self) -> None:
        """Store the rows of zeros that MXNet has left out: servers find a row by its position."""
        self._complete_states.clear()
        self._dense = None  # the rows may have moved
        _all_rows(self.stored)

    def state_slots(self) -> List[Any]:
        """Return the arrays of optimizer state, of MXNet or of NumPy."""
        return state_arrays(self.state)

    def all_state_rows(self, slot: int) -> np.ndarray:
        """Return optimizer state `slot` as a writable array of all rows; make MXNet store them all if it does not."""
        array = state_arrays(self.state)[slot]
        return host_view(array).reshape(self.shape[0], -1) if array.stype == 'default' else _all_rows(array)

    def write_state(self, slot: int, ids: np.ndarray, rows: np.ndarray) -> None:
        """Overwrite rows of optimizer state `slot` by the first elements of rows, which may be wider."""
        current = self.all_state_rows(slot)
        current[ids] = rows[:, :current.shape[1]]

    def take(self, source: 'Partition', mine: slice, theirs: slice, optimizer: Optional[TableOptimizer]) -> None:
        """Copy rows of weights and optimizer state from another partition of the same table."""
        self.view[mine] = source.view[theirs]
        if optimizer is None or not source.has_state:
            return
        self.ensure_state(optimizer)
        for slot, array in enumerate(source.state_slots()):
            if getattr(array, 'stype', 'default') == 'default' or len(row_sparse_parts(array)[0]):
                self.all_state_rows(slot)[mine] = source.all_state_rows(slot)[theirs]

    def read(self, slot: int, start: int, stop: int, optimizer: TableOptimizer) -> np.ndarray:
        """Return rows ``start:stop`` of optimizer state `slot`."""
        self.ensure_state(optimizer)
        array = state_arrays(self.state)[slot]
        width = int(np.prod(array.shape[1:]))
        if array.stype == 'default':
            return host_view(array).reshape(-1, width)[start:stop]
        if slot in self._complete_states:
            array.wait_to_read()
            return self._complete_states[slot][start:stop]
        ids, rows = row_sparse_parts(array)
        if len(ids) == self.shape[0]:
            self._complete_states[slot] = rows
            return rows[start:stop]
        full = np.zeros((stop - start, width), array.dtype)
        inside = (ids >= start) & (ids < stop)
        full[ids[inside] - start] = rows[inside]
        return full


def _all_rows(array: Any) -> np.ndarray:
    """Return the rows of a row_sparse array, writable; make MXNet store them all, with zeros, if it does not."""
    ids, rows = row_sparse_parts(array)
    if len(ids) < array.shape[0]:
        full, filled = allocate_rows(np.arange(array.shape[0]), array.shape, array.dtype)
        filled[:] = 0
        filled[ids] = rows
        full.copyto(array)
        _, rows = row_sparse_parts(array)
    return rows


def updated_optimizer(known: Optional[TableOptimizer], parts: List[Partition], reference: str,
                      attributes: Dict[str, Any], count: Optional[int],
                      made_with: Optional[Dict[str, Any]] = None) -> TableOptimizer:
    """Return the optimizer of a table's partitions with changed settings; a new class starts without state.

    `attributes` are the changed ones, or all for a new class.  `made_with` are the attributes with which to make the
    state, if they differ: see :mod:`mxhybrid.servers.optimized_table`.
    """
    if known is None or known.reference != reference:
        known = TableOptimizer(reference, attributes, made_with)
        for part in parts:
            part.forget_state()
    else:
        known.change(attributes)
    for part in parts:
        part.follow(known)
        if count is not None:
            part.expect_count(known, count)
    return known
