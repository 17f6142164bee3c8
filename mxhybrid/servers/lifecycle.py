"""How tables come to the servers, taking keys and filling them, and go, giving memory and keys back."""
from dataclasses import replace
from typing import Any, Callable, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..native.arrays import allocate_rows, trim_heap
from .half_precision_keys import WireFormat, PullOrdering, packed_width, half_pairs
from .cluster import ParameterServers
from .keys import TableKind
from .partitioning import partition_count
from .table import Table

#: Gives rows for ids.
Values = Callable[[np.ndarray], np.ndarray]


def create_table(servers: ParameterServers, name: str, shape: tuple, dtype: Any, wanted: int, mode: str,
                 values: Optional[Values] = None, even: bool = False, halves: bool = False,
                 exact: bool = True) -> Table:
    """Create a table of about `wanted` partitions (collective); servers do with a push what `mode` says.

    Its rows are `values`, of the worker that initialises, or zeros.  With `even` its partitions lie on the servers in
    turn, instead of where the fewest bytes are.  With `halves` float32 rows travel as float16; unless the table is
    `exact` the servers keep nothing else then, and only the modes ASSIGN and REPLACE work.  An InputError on all
    workers, when the servers have no keys left; nothing has changed then.
    """
    dtype = np.dtype(dtype)
    if servers.on_lane:
        return _create_on_lane(servers, name, shape, dtype, wanted, mode, values, even, halves)
    rows, width = shape[0], int(np.prod(shape[1:]))
    count = partition_count(rows, width, dtype.itemsize, wanted)
    keys = servers.keys.take(name, TableKind(rows, width, dtype.name, halves, exact, even), count,
                             dtype.itemsize * (exact or not halves) + 2 * halves)
    partitioning = keys.partitioning
    # The native store's own barrier, below, must find no worker of any host with rows still under way.
    servers.link.settle()
    servers.barrier()
    servers.command('table', table=name, keys=partitioning.keys, width=width,
                    rows=[partitioning.shape(part)[0] for part in range(count)],
                    push_keys=keys.push_keys, pair_keys=keys.pair_keys)
    ordering = PullOrdering() if halves else None
    half_table = Table(servers, name, replace(partitioning, keys=keys.pair_keys), dtype,
                 WireFormat(name, dtype, width, keys.pair_keys, keys.push_keys, ordering)) if halves else None
    if half_table is not None and not exact:
        table = half_table
    else:
        table = Table(servers, name, partitioning, dtype, WireFormat(name, dtype, width, partitioning.keys, ordering=ordering),
                      half_table)
    if half_table is not None:
        if not keys.used:
            _fill(table, keys.push_keys, half_table.wire_format.pushed_as, width, None, everything=False)
            _fill(table, keys.pair_keys, dtype, packed_width(width), values and half_pairs(values, width))
        _announce(half_table)
    if table is not half_table:
        if not keys.used:
            _fill(table, partitioning.keys, dtype, width, values)
        table.touch()
    if keys.used and values is not None:
        table.assign(values)
    table.open(mode)
    servers.tables[name] = table, keys
    return table


def _create_on_lane(servers: ParameterServers, name: str, shape: tuple, dtype: np.dtype, wanted: int, mode: str,
                    values: Optional[Values], even: bool, halves: bool) -> Table:
    rows, width = shape[0], int(np.prod(shape[1:]))
    count = partition_count(rows, width, dtype.itemsize, wanted)
    keys = servers.keys.take(name, TableKind(rows, width, dtype.name, False, True, even), count, dtype.itemsize)
    partitioning = keys.partitioning
    table = Table(servers, name, partitioning, dtype, WireFormat(name, dtype, width, partitioning.keys))
    table.halves = halves
    servers.open_table(table, halves)
    if values is not None:
        table.assign(values)
    table.open(mode)
    servers.tables[name] = table, keys
    return table


def _fill(table: Table, keys: Sequence[int], dtype: Any, width: int, values: Optional[Values],
          everything: bool = True) -> None:
    """Bring one set of keys to life with all rows, or with the first row only."""
    servers = table.servers
    for part, key in enumerate(keys):
        shape = (table.partitioning.shape(part)[0], width)
        if servers.rank == servers.initialiser:
            local = np.arange(shape[0] if everything else 1, dtype=np.int64)
            value, view = allocate_rows(local, shape, dtype)
            view[:] = 0 if values is None else values(table.partitioning.members(part))
        else:
            value = mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype, ctx=mx.cpu())
        servers.initialise(key, value)


def _announce(half_table: Table) -> None:
    """Have servers see the stored pairs, in a push without rows (collective)."""
    client = half_table.servers.client
    if client is not None:
        shapes = [half_table.partitioning.shape(part) for part in range(half_table.partitioning.count)]
        empty = [mx.nd.sparse.zeros('row_sparse', (rows, packed_width(width)), dtype=half_table.dtype, ctx=mx.cpu())
                 for rows, width in shapes]
        with client.lock:
            client.native.push(list(half_table.wire_format.keys), empty)
    half_table.touch()


def retire_tables(servers: ParameterServers, prefixes: Tuple[str, ...]) -> None:
    """Give back what the tables with names that begin so hold (collective); no worker uses them any more."""
    mx.nd.waitall()
    names = [name for name in servers.tables if name.startswith(prefixes)]
    tables = [servers.tables[name][0] for name in names]
    servers.link.settle()
    for table in tables:
        for each in table.family:
            each.collect()
    servers.barrier()
    for table in tables:
        table.forget_optimizer()
        servers.command('release', keys=table.partitioning.keys)
        if servers.on_lane:
            servers.drop_table(table)
            continue
        for each in table.family:
            each.touch()
    servers.link.settle()
    for name in names:
        table, keys = servers.tables.pop(name)
        servers.keys.give_back(keys, table.partitioning, table.former.values())
        table.close()
    trim_heap()
    servers.barrier()
