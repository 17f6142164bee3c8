"""A dense weight with row_sparse gradients that servers hold and update, so that a worker pulls its own rows only.

Servers already have a table for such a parameter, in which they sum its gradients.  The same table takes weights and
optimizer state, and a push updates them, as for a row_sparse weight.  Only optimizers qualify whose kernel for a dense
weight and a row_sparse gradient changes the touched rows alone, by the same code as for a row_sparse weight
(``src/operator/optimizer_op-inl.h``, ``contrib/optimizer_op-inl.h``).
"""
from typing import Any, Iterable, Iterator, List, Optional

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.settings import variable
from ..native.arrays import host_view, padded_row_reader
from ..native.optimizer_state import rates_of, state_arrays, state_shapes, update_count
from ..native.optimizers import check_for_table, is_known, name_of
from ..servers.table import Table
from .held_weight import HeldWeight
from .route import Identity, Route
from .rows import wire_bytes

#: MXNet's kernels for a dense weight, a row_sparse gradient and dense state that change touched rows only.  ftrl has
#: none, so one process computes it on all rows.
KERNELS = ('sgd', 'ccsgd', 'adam', 'adagrad', 'groupadagrad')


def objection(route: Identity, optimizer: Any, state: Any = None) -> str:
    """Why servers cannot update a dense weight as `optimizer` would in the workers; empty if they can.

    `state` is what the optimizer made in this worker, before settings may have changed.
    """
    if route.wire != route.dtype:
        return 'its rows travel as %s, and a forward pass would see them rounded' % route.wire
    name = name_of(optimizer)
    if not is_known(optimizer) or name not in KERNELS or not getattr(optimizer, 'lazy_update', True):
        return 'optimizer %r may change rows without a gradient' % name
    try:
        check_for_table(optimizer, route.name, route.dtype, rates_of(optimizer, route.key)[1])
    except InputError as error:
        return str(error)
    found = [tuple(array.shape) for array in state_arrays(state)]
    if found and found != state_shapes(optimizer, route.key, route.shape, route.dtype):
        return 'its state is not what optimizer %r would make with its present settings' % name
    return ''


class OwnRows(HeldWeight):
    """Takes the place of `former`, whose `table` it uses, until the weight goes back to the workers."""

    kind = 'own rows'
    uses_servers = True
    _table: Table

    def __init__(self, former: Route, table: Table):
        super().__init__(former.key, former.name, former, former.means)
        self.take_over(former)
        self._former, self._table = former, table
        self._servers = self.means.servers

    @property
    def server_table(self) -> Optional[Table]:
        """The table of weights."""
        return self._table

    def objection(self, optimizer: Any, state: Any = None) -> str:
        """Why servers cannot go on updating the weight."""
        return objection(self, optimizer, state)

    def chunks(self) -> Iterator[np.ndarray]:
        """Ids of all rows, in portions that are not too large to pull at once."""
        return self._table.chunks()

    def push(self, arrays: List[Any], updater: Any, priority: int) -> None:
        """Refused: the servers update with row_sparse gradients."""
        self._refuse('push')

    def pushpull(self, arrays: List[Any], outs: List[Any], updater: Any, priority: int) -> None:
        """Refused, as a push."""
        self._refuse('pushpull')

    def _refuse(self, call: str) -> None:
        raise InputError('%s: servers update %s with the optimizer of its Trainer, whose step alone pushes to it: set '
                         '%s=0 to push by hand' % (call, self.name, variable('own_rows')))

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, updater: Any, priority: int) -> None:
        """Have the servers update with the store's optimizer."""
        if updater is None:
            self._refuse('push')
        super().push_rows(ids, rows, updater, priority)

    def update(self, ids: np.ndarray, rows: np.ndarray, optimizer: Any, priority: int, devices: Iterable[int]) -> None:
        """Have the servers update as `optimizer` would in the worker, for each of whose `devices` it counts."""
        self._prepare(optimizer, devices)
        self._table.push(ids, rows, priority)
        self._count_push(len(ids))

    def _count_push(self, rows: int) -> None:
        self.traffic.add(rows=rows, pushed=wire_bytes(rows, self._table))

    def pull_own(self, ids: np.ndarray, priority: int = 0) -> Any:
        """Rows `ids` (sorted, unique, not empty) after this worker's pushes, as an array on the host, of shape
        (ids, width), that is filled while the script goes on (not collective).
        """
        rows = np.empty((len(ids), self.width), self.dtype)
        array = mx.nd.from_numpy(rows.view(), zero_copy=True)
        self._table.deliver(ids, array, rows, priority)
        self.traffic.add(steps=0, pulled=wire_bytes(len(ids), self._table))
        return array

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write the whole weight to dense outputs."""
        if any(array.stype == 'row_sparse' for array in outs):
            raise InputError('pull: servers update %s, and nobody has the sum of its gradients: give it a dense '
                             'output, or set %s=0' % (self.name, variable('own_rows')))
        whole = mx.nd.empty(self.shape, dtype=self.dtype, ctx=mx.cpu())
        for ids in self.chunks():
            host_view(whole)[ids] = host_view(self.pull_own(ids))
        for array in outs:
            whole.copyto(array)

    def fill(self, weight: Any, state: Any, optimizer: Any) -> None:
        """Give worker 0's weight, an array on the host, and optimizer state to the servers (collective).

        The state is as the optimizer made it in this worker; None before the first update and where it keeps none.
        """
        self.write_weight(host_view(weight).__getitem__)
        count = update_count(optimizer, self.key)
        self._table.set_optimizer(optimizer, *rates_of(optimizer, self.key), count)
        self._table.expect_count(count)
        for slot, array in enumerate(state_arrays(state)):
            self._table.assign(padded_row_reader(array, self.width, self.dtype), slot)

    def give_up(self) -> Route:
        """Have the servers sum gradients again, and forget weights and state (on all workers); the route for that."""
        self._table.hold_sums()
        return self._former

    def take_state(self) -> List[np.ndarray]:
        """The arrays of optimizer state in order, each of shape (rows, width of the state), for every worker, which
        has pulled the weights that it wants: they are lost (collective).
        """
        return self._table.take_state(self.state_widths())
