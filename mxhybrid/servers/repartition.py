"""Another number of partitions for a table, while training goes on: weights and optimizer state move.

The new partitions get keys of their own.  A key comes to life by a push of all its rows from the worker that is
the native store's rank 0 (``InitImpl`` in ``src/kvstore/kvstore_dist.h``), so the first move to a count sends as
many bytes over the network as the table has.  Then

* rows that stay in their server process are copied there, weights and state (``do_move`` in
  :mod:`mxhybrid.servers.handler`).  :meth:`mxhybrid.servers.partitioning.Placement.move` keeps rows in place where
  the servers' loads allow it; all of them do when the count is a multiple of the old one and every server has
  partitions;
* the others travel through the workers, each worker pulling and pushing its share.  State is pulled from the old
  keys too, whose weights it overwrites, slot by slot, once they have moved.

Keys cannot be deleted.  The servers give the pages of the old ones back to the system, and a later move to the same
count uses them again, without the push of all rows.
"""
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..native.arrays import allocate_rows, trim_heap
from .partitioning import Partitioning, chunks, partition_count
from .protocol import CAPTURE, overwrite_mode
from .table import Table

#: Bytes of rows that one worker pulls and pushes at a time; MXNet keeps buffers of that size for every key.
MOVE_CHUNK_BYTES = 4 << 20


def repartition(table: Table, wanted: int) -> None:
    """Cut a table into `wanted` partitions, or as many as its rows and the size of a key allow (collective).

    To be called between steps: all workers have pushed every key equally often and pull nothing.  What the table holds,
    its optimizer state and its number of updates stay as they are, so training goes on as if nothing had happened; as
    it does after an InputError, on all workers, when the servers have no keys left.
    """
    servers, old, itemsize = table.servers, table.partitioning, table.dtype.itemsize
    placement = servers.keys.placement
    count = partition_count(old.rows, old.width, itemsize, wanted)
    if count == old.count:
        return
    known = table.former.get(count)
    if known is None and placement.keys_left() < count:
        raise InputError('%s: %d partitions need more keys than the servers have left, %d each: start the job with '
                         'that count instead' % (table.name, count, placement.keys_left()))
    # Nothing may be under way: not here, and behind the barrier not anywhere.
    servers.link.settle()
    table.collect()
    servers.barrier()
    servers.command('mode', keys=old.keys, mode=CAPTURE)
    if known is None:
        new = placement.move(old, itemsize, count)
    else:
        new = known
        placement.release(old, itemsize)
        placement.claim(known, itemsize)
    target = table.successor(new)
    if servers.on_lane:
        target.halves = table.halves
        servers.open_table(target, table.halves)
    elif known is None:
        _create(target)
    servers.command('move', table=table.name, rows=old.rows, old=old.keys, new=new.keys, count=table.updates)
    _carry(table, target)
    # Of all types but float32 servers hand out a copy, which they bring up to date after a push and not before
    # (ApplyUpdates in src/kvstore/kvstore_dist_server.h): what was copied in the server is not in it yet.
    target.touch()
    target.set_mode(table.mode)
    servers.command('release', keys=old.keys)
    if servers.on_lane:
        servers.replace_table(target, table)
    else:
        table.touch()
    servers.link.settle()  # until then the link looks at the old partitions
    table.move_to(new)
    trim_heap()
    servers.barrier()


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
            table.expose(slot)
        target.set_mode(overwrite_mode(slot))
        for at in chunks(len(shares[0]), row_bytes, MOVE_CHUNK_BYTES):  # the first share is the longest
            # No worker's pull, which comes after its push, overtakes the commands: worker 0 pushes after them. Nor
            # does a host keep rows that were pulled before the push.
            table.touch()
            ids = shares[servers.rank][at[0]:at[-1] + 1]
            rows = np.empty((len(ids), table.partitioning.width), table.dtype)
            if len(ids):
                table.pull_uncached(ids, rows)
            target.push(ids, rows)
        servers.link.settle()
