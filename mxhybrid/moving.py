"""Another number of partitions for a table, while training goes on: weights and optimizer state move.

The new partitions get keys of their own.  A key comes to life by a push of all its rows from the worker that is
the native store's rank 0 (``InitImpl`` in ``src/kvstore/kvstore_dist.h``), so the first move to a count sends as
many bytes over the network as the table has.  Then

* rows that stay in their server process are copied there, weights and state (``do_move`` in
  :mod:`mxhybrid.handler`).  :meth:`mxhybrid.partition.Placement.move` keeps rows in place where the servers'
  loads allow it; all of them do when the count is a multiple of the old one and every server has partitions;
* the others travel through the workers, each worker pulling and pushing its share.  State is pulled from the old
  keys too, whose weights it overwrites, slot by slot, once they have moved.

Keys cannot be deleted.  The servers give the pages of the old ones back to the system, and a later move to the same
count uses them again, without the push of all rows.
"""
from typing import Any

import numpy as np

from .arrays import allocate_rows, trim_heap
from .errors import InputError
from .partition import Partitioning, chunks, partition_count
from .ps import Table

#: Bytes of rows that one worker pulls and pushes at a time; MXNet keeps buffers of that size for every key.
MOVE_CHUNK_BYTES = 4 << 20


def repartition(table: Table, wanted: int) -> None:
    """Cut a table into `wanted` partitions, or as many as its rows and the size of a key allow (collective).

    To be called between steps: all workers have pushed every key equally often and pull nothing.  What the table
    holds, its optimizer state and its number of updates stay as they are, so training goes on as if nothing had
    happened.

    Raises
    ------
    InputError
        On all workers, when the servers have no keys left; nothing has changed then.
    """
    servers, old, itemsize = table.servers, table.partitioning, table.dtype.itemsize
    count = partition_count(old.rows, old.width, itemsize, wanted)
    if count == old.count:
        return
    known = table.former.get(count)
    if known is None and servers.placement.keys_left() < count:
        raise InputError('%s: %d partitions need more keys than the servers have left, %d each: start the job with '
                         'that count instead' % (table.name, count, servers.placement.keys_left()))
    # Nothing may be under way: not here, and behind the meeting not anywhere.
    servers.link.settle()
    table.collect()
    servers.meet()
    servers.command('mode', keys=old.keys, mode='capture')
    if known is None:
        new = servers.placement.move(old, itemsize, count)
    else:
        new = known
        servers.placement.release(old, itemsize)
        servers.placement.claim(known, itemsize)
    if table.helper is None:
        table.helper = servers.new_table(table.name, new, table.dtype)
    table.helper.use(new)
    if known is None:
        _create(table.helper)
    servers.command('move', table=table.name, rows=old.rows, old=old.keys, new=new.keys, count=table.updates)
    _carry(table, table.helper)
    table.helper.set_mode(table.mode)
    servers.command('release', keys=old.keys)
    table.touch()
    servers.link.settle()  # until then the link looks at the old partitions
    table.former[old.count] = old
    table.use(new)
    trim_heap()
    servers.meet()


def _create(target: Table) -> None:
    """Bring the keys of `target` to life, with contents that do not matter yet."""
    servers, partitioning = target.servers, target.partitioning
    servers.command('table', table=target.name, keys=partitioning.keys, width=partitioning.width,
                    rows=[partitioning.shape(part)[0] for part in range(partitioning.count)])
    # One a server at a time: they fill in parallel, and none holds many messages at once.
    for start in range(0, partitioning.count, servers.num_servers):
        parts = range(start, min(start + servers.num_servers, partitioning.count))
        servers.initialise([partitioning.keys[part] for part in parts], [_contents(target, part) for part in parts])
    target.touch()


def _contents(target: Table, part: int) -> Any:
    if target.servers.rank != target.servers.initialiser:
        return target.empty(part)
    shape = target.partitioning.shape(part)
    value, rows = allocate_rows(np.arange(shape[0], dtype=np.int64), shape, target.dtype)
    rows[:] = 0
    return value


def rows_between_servers(old: Partitioning, new: Partitioning) -> np.ndarray:
    """Ids of the rows whose server changes, sorted."""
    ids = np.arange(old.rows, dtype=np.int64)
    return ids[np.array(old.servers)[ids % old.count] != np.array(new.servers)[ids % new.count]]


def _carry(table: Table, target: Table) -> None:
    """Take the rows whose server changes through the workers: weights, then each slot of state."""
    servers = table.servers
    moving = rows_between_servers(table.partitioning, target.partitioning)
    if not len(moving):
        return
    row_bytes = table.partitioning.width * table.dtype.itemsize
    shares = np.array_split(moving, servers.num_workers)
    for slot in range(-1, table.state_slots()):
        if slot >= 0:
            servers.command('expose', keys=table.partitioning.keys, slot=slot)
        target.set_mode('assign' if slot < 0 else 'state:%d' % slot)
        for at in chunks(len(shares[0]), row_bytes, MOVE_CHUNK_BYTES):  # the first share is the longest
            # No worker's pull, which comes after its push, overtakes the commands: worker 0 pushes after them. Nor
            # does a host keep rows that were pulled before the push.
            table.touch()
            ids = shares[servers.rank][at[0]:at[-1] + 1]
            rows = np.empty((len(ids), table.partitioning.width), table.dtype)
            if len(ids):
                servers.link.request(table, ids, 0)(rows)
            target.push(ids, rows)
        servers.link.settle()
    target.touch()
