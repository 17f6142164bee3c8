"""A dense weight that servers hold and update, so that a worker pulls the rows that it needs itself.

Servers already have a table for such a parameter, in which they sum its row_sparse gradients.  To serve the
parameter, the same table takes weights and optimizer state, and a push updates them, as for a row_sparse weight.
Only optimizers qualify whose kernel for a dense weight and a row_sparse gradient changes the touched rows alone, by
the same code as for a row_sparse weight (``src/operator/optimizer_op-inl.h``, ``contrib/optimizer_op-inl.h``).
"""
from typing import Any, Iterator, List, Optional

import mxnet as mx
import numpy as np

from . import states
from .arrays import host_view
from .errors import InputError
from .optimizers import check_for_table, name_of, state_arrays
from .partition import chunks
from .ps import Table
from .routes import Dense, wire_bytes

#: MXNet's kernels for a dense weight, a row_sparse gradient and dense state that change touched rows only.  ftrl has
#: none, so one process computes it on all rows.
KERNELS = ('sgd', 'ccsgd', 'adam', 'adagrad', 'groupadagrad')

#: Bytes of rows that are pulled at a time where a whole table is needed.
CHUNK_BYTES = 8 << 20


def objection(optimizer: Any, route: Dense) -> str:
    """Why servers cannot update a dense weight as `optimizer` would in the workers; empty if they can."""
    if route.wire != route.dtype:
        return 'its rows travel as %s, and a forward pass would see them rounded' % route.wire
    name = name_of(optimizer)
    if name not in KERNELS or not getattr(optimizer, 'lazy_update', True):
        return 'optimizer %r may change rows without a gradient' % name
    try:
        check_for_table(optimizer, route.name, route.dtype, optimizer._get_wd(route.key))
    except InputError as error:
        return str(error)
    return ''


class OwnRows:
    """Weights and optimizer state of a dense parameter in its table on the servers.

    Parameters
    ----------
    route : Dense
        Of which servers sum the gradients.
    """

    def __init__(self, route: Dense):
        assert route.table is not None
        self._route = route
        self.table: Table = route.table

    def chunks(self) -> Iterator[np.ndarray]:
        """Ids of all rows, in portions that are not too large to pull at once."""
        return chunks(self._route.rows, self._route.width * self._route.dtype.itemsize, CHUNK_BYTES)

    def take(self, weight: Any, state: Any, optimizer: Any) -> None:
        """Give worker 0's weight and optimizer state to the servers, which update them from now on (collective).

        Parameters
        ----------
        weight : NDArray
            On the host.
        state : object
            As the optimizer made it in this worker; None before the first update and where it keeps none.
        optimizer : mxnet.optimizer.Optimizer
        """
        route, table = self._route, self.table
        values = host_view(weight)
        table.assign(values.__getitem__)
        count = optimizer._index_update_count.get(route.key, optimizer.begin_num_update)
        table.set_optimizer(optimizer, optimizer._get_lr(route.key), optimizer._get_wd(route.key), count)
        table.expect_count(count)
        for slot, array in enumerate(state_arrays(state)):
            table.assign(states.padded_rows(array, route), slot)
        route.own, route.kind = self, 'own rows'

    def push(self, ids: np.ndarray, rows: np.ndarray, optimizer: Any, priority: int,
             devices: Optional[List[int]] = None) -> None:
        """Have the servers update with the gradients of all workers (collective).

        Parameters
        ----------
        ids, rows : numpy.ndarray
            This worker's, merged.
        optimizer : mxnet.optimizer.Optimizer
        priority : int
        devices : list of int, optional
            Numbers of the devices for each of which the optimizer counts updates; by default one count serves all.
        """
        route, table = self._route, self.table
        count = optimizer._index_update_count.get(route.key, optimizer.begin_num_update)
        if devices is None:
            optimizer._update_count(route.key)
        for device in devices or ():
            optimizer._set_current_context(device)
            optimizer._update_count(route.key)
        table.set_optimizer(optimizer, optimizer._get_lr(route.key), optimizer._get_wd(route.key), count)
        table.push(ids, rows, priority)
        route.traffic.add(rows=len(ids), pushed=wire_bytes(len(ids), table))

    def pull(self, ids: np.ndarray, priority: int = 0) -> Any:
        """Rows `ids` (sorted, unique, not empty) of the weight, after this worker's pushes (not collective).

        Returns
        -------
        NDArray, shape (len(ids), width)
            On the host; its values arrive while the script goes on.
        """
        rows = np.empty((len(ids), self._route.width), self._route.dtype)
        array = mx.nd.from_numpy(rows.view(), zero_copy=True)
        self.table.servers.deliveries.put([array], self.table.pull_later(ids, rows, priority), priority)
        self._route.traffic.add(steps=0, pulled=wire_bytes(len(ids), self.table))
        return array

    def forget(self) -> None:
        """Have the servers sum gradients again, and forget weights and optimizer state (on all workers)."""
        self.table.forget_optimizer()
        self.table.set_mode('assign')
        self._route.own, self._route.kind = None, 'server gradients'

    def give_back(self, optimizer: Any) -> List[np.ndarray]:
        """As :meth:`forget`, and give every worker the optimizer state (collective).

        Every worker has pulled the weights that it wants.

        Returns
        -------
        list of numpy.ndarray, shape (rows, width of the state)
            Arrays of the state in order.
        """
        table, servers = self.table, self.table.servers
        widths = states.slot_widths(self._route, optimizer) if table.has_optimizer else []
        table.collect()
        servers.meet()
        table.set_mode('capture')
        found = []
        for slot, width in enumerate(widths):
            # As moving does it: weights make room for one array of the state after the other.
            servers.command('expose', keys=table.partitioning.keys, slot=slot)
            # No worker's pull, which comes after its push, overtakes the command: worker 0 pushes after it.
            table.touch()
            array = np.empty((self._route.rows, width), self._route.dtype)
            for ids in self.chunks():
                rows = np.empty((len(ids), self._route.width), self._route.dtype)
                servers.link.request(table, ids, 0)(rows)
                array[ids] = rows[:, :width]
            found.append(array)
            servers.meet()
        self.forget()
        return found
