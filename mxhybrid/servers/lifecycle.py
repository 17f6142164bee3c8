"""Create tables on the servers, with keys and first values, and retire them, which frees memory and keys."""
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.settings import variable
from ..lane.row_format import RowFormat
from ..native.arrays import allocate_rows, trim_heap
from .cluster import ParameterServers
from .half_precision_keys import PullOrdering, WireFormat, half_pairs, packed_width
from .keys import TableKeys, TableKind
from .partitioning import partition_count
from .table import Table

#: The most slots of a host's cache of a table, and the row requests that a worker has for it: ``agent/key_cache.h`` and
#: ``kMaxRowRequests`` of ``memory/shared.h`` in the lane.
_MOST_SLOTS, _ROW_REQUESTS = (1 << 32) - 2, 8

#: Returns the rows of given ids.
Values = Callable[[np.ndarray], np.ndarray]


class TableSpec(NamedTuple):
    """The properties of a table."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any
    #: About that number of partitions.
    partitions: int
    #: The form in which rows travel; int8 by the lane only.
    row_format: RowFormat = RowFormat.EXACT
    #: The number of last pushes of other workers that pulled rows may lack, which needs the lane.
    staleness: int = 0
    #: With ps-lite and float16, servers keep only float16 rows unless the table is `exact`, and only the modes ASSIGN
    #: and REPLACE work.
    exact: bool = True
    #: Whether partitions are placed on the servers in turn, instead of on the servers with the fewest bytes.
    even: bool = False


def create_table(servers: ParameterServers, spec: TableSpec, mode: str, values: Optional[Values] = None) -> Table:
    """Create a table (collective); `mode` is the meaning of pushes to it.

    Its rows are the `values` of the worker that initialises, or zeros.
    InputError on all workers, with nothing changed, if the servers have too few keys left.
    """
    name, dtype = spec.name, np.dtype(spec.dtype)
    rows, width = spec.shape[0], int(np.prod(spec.shape[1:]))
    if servers.lane is not None and spec.staleness:
        check_stale_rows(name, rows, spec.staleness, max(servers.lane.membership.worker_counts))
    halves = spec.row_format is RowFormat.FLOAT16 and not servers.on_lane
    kind = TableKind(rows, width, dtype.name, halves, spec.exact or servers.on_lane, spec.even)
    count = partition_count(rows, width, dtype.itemsize, spec.partitions)
    keys = servers.keys.take(name, kind, count, dtype.itemsize * (kind.exact or not halves) + 2 * halves)
    if servers.on_lane:
        table = Table(servers, name, keys.partitioning, dtype)
        table.row_format, table.staleness = spec.row_format, spec.staleness
        servers.open_table(table)
    else:
        table = _create_native(servers, name, keys, values)
    if values is not None and (servers.on_lane or keys.used):
        table.assign(values)
    table.open(mode)
    servers.tables[name] = table, keys
    return table


def _create_native(servers: ParameterServers, name: str, keys: TableKeys, values: Optional[Values]) -> Table:
    """Create a table whose rows travel by ps-lite; only new keys get the `values`."""
    # At the native store's own barrier, below, no worker of any host may have rows under way.
    servers.link.settle()
    servers.barrier()
    kind, partitioning, dtype, width = keys.kind, keys.partitioning, np.dtype(keys.kind.dtype), keys.kind.width
    servers.command('table', table=name, keys=partitioning.keys, width=width,
                    rows=[partitioning.shape(part)[0] for part in range(partitioning.count)],
                    push_keys=keys.push_keys, pair_keys=keys.pair_keys)
    ordering = PullOrdering() if kind.halves else None
    half_table = Table(servers, name, replace(partitioning, keys=keys.pair_keys), dtype, WireFormat(
        name, dtype, width, keys.pair_keys, keys.push_keys, ordering)) if kind.halves else None
    if half_table is not None and not kind.exact:
        table = half_table
    else:
        table = Table(servers, name, partitioning, dtype,
                      WireFormat(name, dtype, width, partitioning.keys, ordering=ordering), half_table)
    if half_table is not None:
        if not keys.used:
            _fill(table, keys.push_keys, half_table.wire_format.pushed_as, width, None, all_rows=False)
            _fill(table, keys.pair_keys, dtype, packed_width(width), values and half_pairs(values, width))
        _announce(half_table)
    if table is not half_table:
        if not keys.used:
            _fill(table, partitioning.keys, dtype, width, values)
        table.touch()
    return table


def check_stale_rows(name: str, rows: int, staleness: int, workers: int) -> None:
    """Refuse a table with more rows than a host with that number of workers can cache (InputError)."""
    most = _MOST_SLOTS // (_ROW_REQUESTS * workers + 1)
    if rows > most:
        raise InputError('%s: staleness=%d: a table with staleness can have at most %d rows where a host has %d '
                         'workers, but it has %d: set %s to 0 for this table' % (name, staleness, most, workers, rows,
                                                                        variable('staleness')))


def _fill(table: Table, keys: Sequence[int], dtype: Any, width: int, values: Optional[Values],
          all_rows: bool = True) -> None:
    """Create one set of keys with all rows, or with the first row only."""
    for part, key in enumerate(keys):
        table.servers.initialise(key, rows_of_new_key(table, part, dtype, width, values, all_rows))


def rows_of_new_key(table: Table, part: int, dtype: Any, width: int, values: Optional[Values] = None,
                    all_rows: bool = True) -> Any:
    """Return the array with which this worker creates the key of a partition; only the initialiser's has rows."""
    shape = (table.partitioning.shape(part)[0], width)
    if table.servers.rank != table.servers.initialiser:
        return mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype, ctx=mx.cpu())
    array, rows = allocate_rows(np.arange(shape[0] if all_rows else 1, dtype=np.int64), shape, dtype)
    rows[:] = 0 if values is None else values(table.partitioning.members(part))
    return array


def _announce(half_table: Table) -> None:
    """Show the servers the stored pairs, by a push without rows (collective)."""
    client = half_table.servers.client
    if client is not None:
        shapes = [half_table.partitioning.shape(part) for part in range(half_table.partitioning.count)]
        empty = [mx.nd.sparse.zeros('row_sparse', (rows, packed_width(width)), dtype=half_table.dtype, ctx=mx.cpu())
                 for rows, width in shapes]
        with client.lock:
            client.native.push(list(half_table.wire_format.keys), empty)
    half_table.touch()


def retire_tables(servers: ParameterServers, names: Sequence[str]) -> None:
    """Free tables by their names (collective); no worker may use them any more."""
    mx.nd.waitall()
    tables = [servers.tables[name][0] for name in names]
    servers.link.settle()
    for table in tables:
        for member in table.family:
            member.collect()
    servers.barrier()
    for table in tables:
        # State is freed with the rows: a row store without it would be made again first.
        servers.command('forget_state', table=table.name, keys=[])
        servers.command('release', keys=table.server_keys)
        if servers.on_lane:
            servers.drop_table(table)
            continue
        for member in table.family:
            member.touch()
    servers.link.settle()
    for name in names:
        table, keys = servers.tables.pop(name)
        if keys is not None:
            servers.keys.give_back(keys, table.partitioning, table.former.values())
    trim_heap()
    servers.barrier()
