"""A dense weight with row_sparse gradients that servers hold and update, so that a worker pulls rows on demand.

Servers already have a table for such a parameter, in which they sum its gradients.  The same table takes weights and
optimizer state, and a push updates them, as for a row_sparse weight.  An optimizer qualifies only if its kernel for a
dense weight and a row_sparse gradient changes touched rows only, by the same code as for a row_sparse weight
(``src/operator/optimizer_op-inl.h``, ``contrib/optimizer_op-inl.h``).
"""
from typing import Any, Iterable, Iterator, List

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.settings import variable
from ..native.arrays import host_view, padded_row_reader
from ..native.optimizer_state import rates_of, state_arrays, state_shapes
from ..native.optimizers import check_for_table, is_known, name_of
from ..servers.protocol import ASSIGN
from ..servers.table import Table
from .route import ParameterSpec, Route
from .rows import count_pulled
from .table_weight import TableWeight

#: Optimizers of MXNet with a kernel for a dense weight, a row_sparse gradient and dense state that changes touched rows
#: only.  ftrl has no such kernel, so one process computes it on all rows.
KERNELS = ('sgd', 'ccsgd', 'adam', 'adagrad', 'groupadagrad')


def unsupported_reason(route: ParameterSpec, optimizer: Any, state: Any = None) -> str:
    """Return why servers cannot update a dense weight as `optimizer` would in the workers, '' if they can.

    `state` is the state that the optimizer made in this worker, before its settings may have changed.
    """
    if route.wire_dtype != route.dtype:
        return 'its rows travel as %s, and a forward pass would see rounded values' % route.wire_dtype
    name = name_of(optimizer)
    if not is_known(optimizer) or name not in KERNELS or not getattr(optimizer, 'lazy_update', True):
        return 'optimizer %r may change rows without a gradient' % name
    try:
        check_for_table(optimizer, route.name, route.dtype, rates_of(optimizer, route.key)[1])
    except InputError as error:
        return str(error)
    shapes = [tuple(array.shape) for array in state_arrays(state)]
    if shapes and shapes != state_shapes(optimizer, route.key, route.shape, route.dtype):
        return 'its state is not the state that optimizer %r would make with its present settings' % name
    return ''


class OnDemandRows(TableWeight):
    """Replaces the route `former`, whose `table` it uses, until the weight moves back to the workers."""

    kind = 'on-demand rows'
    uses_servers = True
    _table: Table

    def __init__(self, former: Route, table: Table):
        super().__init__(former.key, former.name, former, former.context)
        self.take_over(former)
        self._former, self._table, self.server_table = former, table, table

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the ids of all rows, in chunks that can be pulled at once."""
        return self._table.chunks()

    def push(self, arrays: List[Any], updater: Any, priority: int) -> None:
        """Raise InputError: the servers update with row_sparse gradients."""
        self._refuse('push')

    def pushpull(self, arrays: List[Any], outs: List[Any], updater: Any, priority: int) -> None:
        """Raise InputError, as a push does."""
        self._refuse('pushpull')

    def _refuse(self, call: str) -> None:
        raise InputError('%s: servers update %s with the optimizer of its Trainer, whose step alone pushes to it: set '
                         '%s=0 to push by hand' % (call, self.name, variable('on_demand_rows')))

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, updater: Any, priority: int) -> None:
        """Let the servers update with the store's optimizer."""
        if updater is None:
            self._refuse('push')
        super().push_rows(ids, rows, updater, priority)

    def update(self, ids: np.ndarray, rows: np.ndarray, optimizer: Any, priority: int, devices: Iterable[int]) -> None:
        """Let the servers update as `optimizer` would in the worker; the update counts for each of `devices`."""
        self._prepare(optimizer, devices)
        self._table.push(ids, rows, priority)
        self._count_push(len(ids))

    def pull_on_demand(self, ids: np.ndarray, priority: int = 0) -> Any:
        """Return rows `ids` (sorted, unique, not empty) after this worker's pushes (not collective).

        The array, on the host and of shape (ids, width), is filled while the script goes on.
        """
        rows = np.empty((len(ids), self.width), self.dtype)
        array = mx.nd.from_numpy(rows.view(), zero_copy=True)
        self._table.deliver(ids, array, rows, priority)
        count_pulled(self, len(ids))
        return array

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write the whole weight to dense outputs."""
        if any(array.stype == 'row_sparse' for array in outs):
            raise InputError('pull: servers update %s, so no worker has the sum of its gradients: give it a dense '
                             'output, or set %s=0' % (self.name, variable('on_demand_rows')))
        whole = mx.nd.empty(self.shape, dtype=self.dtype, ctx=mx.cpu())
        for ids in self.chunks():
            host_view(whole)[ids] = host_view(self.pull_on_demand(ids))
        for array in outs:
            whole.copyto(array)

    def fill(self, weight: Any, state: Any, optimizer: Any) -> None:
        """Give worker 0's weight, an array on the host, and its optimizer state to the servers (collective).

        `state` has the form in which the optimizer made it in this worker; it is None before the first update, and for
        an optimizer without state.
        """
        self.write_weight(host_view(weight).__getitem__)
        self.write_state(optimizer, optimizer, [padded_row_reader(array, self.width, self.dtype)
                                                for array in state_arrays(state)])

    def give_up(self) -> Route:
        """Let the servers forget weights and state and sum gradients again; return the route for that (on all workers).
        """
        self._table.forget_optimizer()
        self._table.set_mode(ASSIGN)
        return self._former

    def take_state(self) -> List[np.ndarray]:
        """Return the arrays of optimizer state, each of shape (rows, width of the state), on every worker (collective).

        The weights on the servers are lost: workers have to pull them before.
        """
        return self._table.take_state(self.state_widths())
