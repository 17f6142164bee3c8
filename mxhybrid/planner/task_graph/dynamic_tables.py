"""Dynamic tables in the model of a step: the rows of a batch, their bytes, and the tasks that move them.

The ids of later batches are not known.  It is assumed that no id occurs twice in a batch, so times and bytes are upper
bounds.  A step pushes the gradients of the rows when its backward pass is complete, and the next step begins to compute
when its rows have arrived.
"""
import numbers
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from ...kvstore.table_parameter import TableParameter
from ..cluster.machine_model import Machine
from .task_builder import TaskBuilder
from .weight_tasks import between_hosts, server_shares

#: Bytes of a key.
_KEY_BYTES = 8
#: Bytes of a row on a server besides its elements and optimizer state: the key, the index at its usual load, and the
#: step of its last change; and with expiry the step and the number of its updates.
_ROW_OVERHEAD_BYTES, _EXPIRY_BYTES = _KEY_BYTES + 7 + 4, 8
#: Arrays of the rows of a batch for each worker: rows and gradients in MXNet, and in shared memory the rows that it
#: pushes and those in the cache of its host.
_WORKER_ARRAYS = 4


class DynamicTable(NamedTuple):
    """A dynamic table, and the ids that ranks look up in a step."""

    name: str
    #: The numbers of rows that it may have by its keys and by its capacity; 0 for any number.
    rows: int
    capacity: int
    width: int
    itemsize: int
    #: Whether rows are removed, by capacity or age.
    expires: bool
    #: By rank: ids in its part of a batch.
    ids: Tuple[float, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of the elements of a row."""
        return self.width * self.itemsize

    @property
    def most_rows(self) -> Optional[int]:
        """The number of rows that the table may have; None for any number."""
        bounds = [bound for bound in (self.rows, self.capacity) if bound]
        return min(bounds) if bounds else None

    def batch_rows(self) -> np.ndarray:
        """Return by rank the most distinct rows of a batch."""
        return np.minimum(self.ids, self.rows or np.inf)

    def worker_bytes(self) -> np.ndarray:
        """Return by rank the most bytes that the rows of a batch take."""
        return self.batch_rows() * (_WORKER_ARRAYS * self.row_bytes + 2 * _KEY_BYTES)

    def server_row_bytes(self, states: int) -> int:
        """Return the bytes of a row on its server, given the number of arrays of optimizer state."""
        return (1 + states) * self.row_bytes + _ROW_OVERHEAD_BYTES + (_EXPIRY_BYTES if self.expires else 0)


def dynamic_tables(tables: Mapping[Any, float], ranges: Sequence[Tuple[int, int]]) -> List[DynamicTable]:
    """Return the dynamic tables of a script; InputError for values of another kind.

    - `tables`: by Block of :mod:`mxhybrid.nn`, or its parameter: the ids of a sample, on average.
    - `ranges`: the samples of each rank.
    """
    described: List[DynamicTable] = []
    for table, ids in tables.items():
        param = getattr(table, 'weight', table)
        if not isinstance(param, TableParameter):
            raise InputError('tables: %r is no dynamic table: give an mxhybrid.nn.Embedding or HashEmbedding'
                             % (table,))
        if not isinstance(ids, numbers.Real) or isinstance(ids, bool) or not 0 <= ids < float('inf'):
            raise InputError('tables: %s=%r: give the number of ids that a sample looks up, on average'
                             % (param.name, ids))
        capacity, expire_after = (param.options.get(option, 0) for option in ('capacity', 'expire_after'))
        described.append(DynamicTable(
            param.name, param.rows or 0, capacity, param.width, np.dtype(param.dtype).itemsize,
            bool(capacity or expire_after), tuple(float(ids) * (last - first) for first, last in ranges)))
    return described


def add_table_tasks(tasks: TaskBuilder, machine: Machine, tables: Sequence[DynamicTable], first: int,
                    before: List[int]) -> List[int]:
    """Add the pushes and pulls of tables, which begin after a task of each rank; return the last task of each rank.

    Every table has a partition on each host.  `first` is the number of tables before these.
    """
    costs, partitions = machine.cluster.costs, machine.hosts
    push, pull = costs['push'], costs['pull']
    ends: List[List[int]] = [[] for _ in before]
    for number, table in enumerate(tables):
        shares = server_shares(machine.hosts, first + number, partitions)
        moved_bytes = table.batch_rows() * (table.row_bytes + _KEY_BYTES)
        host_bytes = np.bincount(machine.host, moved_bytes, machine.hosts)
        others_bytes = host_bytes.sum() - host_bytes
        send = [tasks.spend('push', rank, push.seconds(partitions, float(moved_bytes[rank])), push.latency_s, [task])
                for rank, task in enumerate(before)]
        pushed = between_hosts(machine, tasks, 'push', send, host_bytes * (1 - shares), others_bytes * shares)
        pulled = between_hosts(machine, tasks, 'pull', pushed, others_bytes * shares, host_bytes * (1 - shares))
        for rank, end in enumerate(ends):
            pull_s = pull.seconds(partitions, float(moved_bytes[rank]))
            end.append(tasks.spend('pull', rank, pull_s, pull.latency_s, pulled))
    return [tasks.add('pull', rank, -1, 0.0, after=end) for rank, end in enumerate(ends)] if tables else before
