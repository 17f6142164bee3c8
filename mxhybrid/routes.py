"""The ways a parameter takes through the job; one object per key of a store.

======================  ==================================  ==================================================
route                   for                                 how
======================  ==================================  ==================================================
:class:`Dense`          dense weight                        gradients summed by allreduce; an updater on the
                                                            store works in this process
 with row_sparse        dense weight, row_sparse gradient   servers sum the rows, workers pull the rows that
 gradients                                                  anyone touched and update them; or allreduce does it;
                                                            or servers hold the weight (:mod:`mxhybrid.serving`)
:class:`Sparse`         row_sparse weight                   servers hold rows and optimizer state, workers pull
                                                            the rows they ask for; or every worker holds them
======================  ==================================  ==================================================

Where there are two ways, :mod:`mxhybrid.chooser` says which, and may say so in mid-training.
"""
import hashlib
from typing import Any, Callable, List, Optional, Tuple, Union

import mxnet as mx
import numpy as np

from . import checks
from .arrays import allocate_rows, row_sparse_parts, sum_row_sparse
from .collective import Collective
from .costs import Choice, ring_bytes
from .partition import ROW_OVERHEAD_BYTES, id_dtype
from .ps import ParameterServers, Table
from .replicated import Replica, RowSum, buffer_elements
from .report import Traffic
from .trace import AnyRecorder
from .wire import HalfSum, OverflowAlarm, dtype_for


class Route:
    """What all routes share: identity, shape and traffic of a key.

    Parameters
    ----------
    key : int or str
        The user's key.
    name : str
        Name for messages and the report.
    array : NDArray
        Gives shape and dtype.
    wire : str
        What float32 travels as, see :mod:`mxhybrid.wire`.
    """

    kind = ''

    def __init__(self, key: Any, name: str, array: Any, wire: str = 'float32'):
        self.key = key
        self.name = name
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self.wire = dtype_for(self.dtype, wire)
        self.sparse = array.stype == 'row_sparse'
        self.traffic = Traffic()
        #: Why a table takes servers or allreduce, once that was weighed or given.
        self.choice: Optional[Choice] = None

    @property
    def rows(self) -> int:
        """Rows of the parameter."""
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(np.prod(self.shape[1:]))

    @property
    def table(self) -> Union[Table, Replica, None]:
        """The table on the servers or in this worker, if this route has one."""
        return None

    def merge(self, arrays: List[Any], trace: AnyRecorder) -> Tuple[np.ndarray, np.ndarray]:
        """Sum the row_sparse gradients of this worker's devices to ids (sorted, unique) and rows.

        Raises
        ------
        InputError
            A row id is out of range.
        """
        with trace.span('merge ' + self.name, 'merge', devices=len(arrays)) as span:
            ids, rows = merge(arrays)
            span.note(rows=len(ids))
        checks.row_ids('push', self.name, ids, self.rows)
        return ids, rows

    def _count_rows(self, rows: int, workers: int) -> None:
        """Count a push of `rows` rows by allreduce: what this worker sends and receives in a ring."""
        moved = _ring_bytes(buffer_elements(self.rows, self.width) * self.wire.itemsize, workers)
        self.traffic.add(rows=rows, pushed=moved, pulled=moved)


def tag(prefix: str, key: Any, name: str) -> str:
    """What operations and tables of a key are called in its job; names, unlike keys, need not be unique in a store."""
    return '%s.%r' % (prefix, key) + ('.' + name if name != str(key) else '')


def merge(arrays: List[Any]) -> Tuple[np.ndarray, np.ndarray]:
    """Sum the row_sparse arrays of this worker's devices to ids (sorted, unique) and rows."""
    return sum_row_sparse([row_sparse_parts(array) for array in arrays])


def deliver(ids: np.ndarray, fill: Callable[[np.ndarray], None], shape: tuple, dtype: Any, outs: List[Any]) -> None:
    """Build a row_sparse array, let `fill` write its rows, and copy it to `outs`."""
    array, rows = allocate_rows(ids, shape, dtype)
    fill(rows)
    for out in outs:
        array.copyto(out)


def deliver_later(table: Table, ids: np.ndarray, shape: tuple, outs: List[Any], priority: int) -> None:
    """Copy a row_sparse array of a table's rows to `outs`; returns before they are there."""
    array, rows = allocate_rows(ids, shape, table.dtype)
    if len(ids):
        table.servers.deliveries.put([array], table.pull_later(ids, rows, priority), priority)
    for out in outs:
        array.copyto(out)


def deliver_each_later(table: Table, wanted: List[np.ndarray], shape: tuple, outs: List[Any], priority: int) -> int:
    """Copy other rows of a table to each of `outs`, asking for each row once; returns how many these are."""
    union = np.unique(np.concatenate(wanted))
    rows = np.empty((len(union), table.partitioning.width), table.dtype)
    made = [allocate_rows(ids, shape, table.dtype) for ids in wanted]

    def write() -> None:
        fill()
        for ids, (_, view) in zip(wanted, made):
            np.take(rows, np.searchsorted(union, ids), axis=0, out=view, mode='clip')

    if len(union):
        fill = table.pull_later(union, rows, priority)
        table.servers.deliveries.put([array for ids, (array, _) in zip(wanted, made) if len(ids)], write, priority)
    for (array, _), out in zip(made, outs):
        array.copyto(out)
    return len(union)


class Dense(Route):
    """A dense parameter: allreduce, by whom is up to :mod:`mxhybrid.collective`."""

    kind = 'allreduce'

    def __init__(self, key: Any, name: str, array: Any, prefix: str, collective: Collective,
                 wire: str = 'float32'):
        super().__init__(key, name, array, wire)
        self._half_sum = HalfSum(OverflowAlarm(name)) if self.wire != self.dtype else None
        self._tag = tag(prefix, key, name)
        self._collective = collective
        self.stored: Any = None
        self._scratch: Any = None
        self._sums: Optional[Table] = None
        self._touched: Optional[np.ndarray] = None
        self._row_sum: Optional[RowSum] = None
        #: The :class:`mxhybrid.serving.OwnRows` while servers hold the weight.
        self.own: Any = None

    @property
    def sums_rows(self) -> bool:
        """Whether row_sparse gradients were pushed."""
        return self._sums is not None or self._row_sum is not None

    def replicate(self) -> None:
        """Sum row_sparse gradients by allreduce from now on (on all workers)."""
        self.kind = 'row allreduce'
        self._row_sum = RowSum(self.rows, self.width, self.wire, self._tag + '.rowsum', self._collective,
                               self.wire != self.dtype)
        self._sums = self._touched = None

    @property
    def table(self) -> Optional[Table]:
        """The table in which servers sum row_sparse gradients, once one was pushed."""
        return self._sums

    def broadcast(self, value: Any, outs: List[Any], keep: bool, priority: int) -> None:
        """Give all workers rank 0's value, in `outs` and, with `keep`, in the store."""
        if keep:
            self.stored = value.copy()
        target = self.stored if keep else outs[0]
        if not keep:
            _copy(value, [target])
        self._collective.broadcast_(target, self._tag + '.init', priority)
        _copy(target, outs)

    def sum_into(self, target: Any, values: List[Any], priority: int) -> None:
        """Sum dense values over devices and workers into `target`."""
        if len(values) > 1:
            same_place = [value.as_in_context(target.context) for value in values]
            mx.nd.add_n(*same_place, out=target)
        else:
            _copy(values[0], [target])
        if self._half_sum is not None:
            self._half_sum.allreduce_(target, self._collective, self._tag, priority)
        else:
            self._collective.allreduce_(target, self._tag, priority)
        moved = _ring_bytes(int(np.prod(self.shape)) * self.wire.itemsize, self._collective.size)
        self.traffic.add(rows=self.rows, pushed=moved, pulled=moved)

    def scratch(self, like: Any) -> Any:
        """An array of this parameter's shape on the device of `like`, reused from call to call."""
        if self._scratch is None or self._scratch.context != like.context:
            self._scratch = mx.nd.empty(self.shape, ctx=like.context, dtype=self.dtype)
        return self._scratch

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, servers: ParameterServers, wanted: int,
                  priority: int) -> None:
        """Sum rows, merged from row_sparse gradients, over all workers, on the servers or by allreduce.

        The first time on the servers a table of `wanted` partitions is made.
        """
        if self._row_sum is not None:
            self._row_sum.push(ids, rows, priority)
            self._count_rows(len(ids), self._collective.size)
            return
        if self._sums is None:
            self.kind = 'server gradients'
            self._sums = servers.create_table(self._tag + '.gradient', self.shape, self.dtype, wanted, 'assign',
                                              halves=self.wire != self.dtype, exact=False)
        self._sums.push(ids, rows, priority)
        everyone = self._collective.gather(ids, self._tag + '.rows', id_dtype(self.rows))
        self._touched = np.unique(np.concatenate(everyone))
        self.traffic.add(rows=len(ids), pushed=wire_bytes(len(ids), self._sums))

    def summed_rows(self, outs: Optional[List[Any]] = None, priority: int = 0) -> Any:
        """The summed row_sparse gradient of the last push, written to `outs` or returned as an array."""
        assert self.sums_rows
        outs = [mx.nd.sparse.zeros('row_sparse', self.shape, dtype=self.dtype)] if outs is None else outs
        if self._row_sum is not None:
            deliver(self._row_sum.touched(), self._row_sum.take, self.shape, self.dtype, outs)
            return outs[0]
        touched, sums = self._touched, self._sums
        assert touched is not None and sums is not None
        deliver_later(sums, touched, self.shape, outs, priority)
        self.traffic.add(steps=0, pulled=wire_bytes(len(touched), sums))
        return outs[0]


class Sparse(Route):
    """A row_sparse parameter: its rows live on the servers, or in every worker."""

    kind = 'server weights'

    def __init__(self, key: Any, name: str, array: Any, servers: ParameterServers, collective: Collective, prefix: str,
                 wanted: int, replicated: bool = False, wire: str = 'float32'):
        super().__init__(key, name, array, wire)
        self._tag = tag(prefix, key, name)
        self._collective = collective
        self._table: Union[Table, Replica]
        if replicated:
            self.become(self.replica(), rows_of(array))
            return
        self._table = servers.create_table(self._tag, self.shape, self.dtype, wanted, 'replace', rows_of(array),
                                           halves=self.wire != self.dtype)
        if servers.initialiser != 0 and not _starts_alike(array, servers, collective, self._tag):
            self._table.assign(rows_of(array))

    @property
    def table(self) -> Union[Table, Replica]:
        """The table on the servers or in this worker."""
        return self._table

    def replica(self) -> Replica:
        """A table in every worker, all zeros, that could take over."""
        return Replica(self._tag, self.rows, self.width, self.dtype, self._collective, self.wire)

    def become(self, replica: Replica, values: Callable[[np.ndarray], np.ndarray]) -> None:
        """Have `replica` take over, with rank 0's `values` as its weights (collective)."""
        replica.assign(values)
        self._table, self.kind = replica, 'replicated'

    def restart(self, value: Optional[Any]) -> None:
        """Drop the optimizer state and, with a `value`, overwrite all rows by rank 0's (collective)."""
        self._table.forget_optimizer()
        if value is not None:
            self._table.assign(rows_of(value))

    def push(self, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        """Push this worker's merged gradient."""
        self._table.push(ids, rows, priority)
        if isinstance(self._table, Replica):
            self._count_rows(len(ids), self._collective.size)
        else:
            self.traffic.add(rows=len(ids), pushed=wire_bytes(len(ids), self._table))

    def _count_pull(self, count: int) -> None:
        if not isinstance(self._table, Replica):
            self.traffic.add(steps=0, pulled=wire_bytes(count, self._table))

    def pull(self, ids: np.ndarray, outs: List[Any], priority: int) -> None:
        """Write the rows `ids` (sorted, unique) into `outs`; may return before they are there."""
        if isinstance(self._table, Replica):
            deliver(ids, lambda rows: self._table.pull(ids, rows, priority), self.shape, self.dtype, outs)
        else:
            deliver_later(self._table, ids, self.shape, outs, priority)
        self._count_pull(len(ids))

    def pull_all(self, outs: List[Any], priority: int) -> None:
        """Write all rows into `outs`, exactly as the servers hold them."""
        ids = np.arange(self.rows, dtype=np.int64)
        deliver(ids, lambda rows: self._table.pull_exactly(ids, rows, priority), self.shape, self.dtype, outs)
        if not isinstance(self._table, Replica):
            self.traffic.add(steps=0, pulled=len(ids) * (self.width * self.dtype.itemsize + ROW_OVERHEAD_BYTES))

    def pull_each(self, wanted: List[np.ndarray], outs: List[Any], priority: int) -> None:
        """Write other rows into every output, pulling each row once; may return before they are there."""
        if isinstance(self._table, Replica):
            for ids, out in zip(wanted, outs):
                self.pull(ids, [out], priority)
        else:
            self._count_pull(deliver_each_later(self._table, wanted, self.shape, outs, priority))


def _starts_alike(array: Any, servers: ParameterServers, collective: Collective, tag: str) -> bool:
    """Whether the worker that initialised a table has rank 0's values, as equal seeds give."""
    digest = np.zeros(2, np.int32)
    if servers.rank in (0, servers.initialiser):
        ids, rows = merge([array])
        state = hashlib.blake2b(np.ascontiguousarray(ids).data, digest_size=8)
        state.update(np.ascontiguousarray(rows).data)
        digest = np.frombuffer(state.digest(), np.int32)
    digests = collective.gather(digest, tag + '.digest')
    return np.array_equal(digests[0], digests[servers.initialiser])


def rows_of(array: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A function that gives rows of a row_sparse array by id, zeros where it stores none."""
    held, stored = merge([array])

    def values(ids: np.ndarray) -> np.ndarray:
        if not len(held):
            return np.zeros((len(ids), stored.shape[1]), stored.dtype)
        at = np.minimum(np.searchsorted(held, ids), len(held) - 1)
        rows = stored[at]
        rows[held[at] != ids] = 0
        return rows

    return values


def _ring_bytes(size: int, workers: int) -> int:
    """Bytes that a worker sends, and as many that it receives, when `size` bytes are summed in a ring of workers."""
    return int(ring_bytes(size, workers, workers) / 2)


def wire_bytes(count: int, table: Table) -> int:
    """Bytes that `count` rows of a table take on the wire."""
    return count * (table.row_bytes + ROW_OVERHEAD_BYTES)


def _copy(source: Any, targets: List[Any]) -> None:
    for target in targets:
        if target is not source:
            source.copyto(target)
