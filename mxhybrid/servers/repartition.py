"""Change the number of partitions of a table during training: move its weights and optimizer state.

The new partitions get new keys.  A key is created by a push of all its rows from the worker with rank 0 in the native
store (``InitImpl`` in ``src/kvstore/kvstore_dist.h``), so the first move to a count sends as many bytes over the
network as the table has.  Then the rows move:

* Rows that stay in their server process are copied there, weights and state (``do_move`` in
  :mod:`mxhybrid.servers.handler`).  :meth:`mxhybrid.servers.partitioning.Placement.move` keeps rows in place as far as
  the loads of the servers allow it.  All rows stay if the new count is a multiple of the old one and every server has
  partitions.
* All other rows travel through the workers: each worker pulls and pushes a share of them.  State is pulled from the old
  keys, too: it overwrites their weights, slot by slot, after these have moved.

Keys cannot be deleted.  The servers give the memory of the old keys back to the system.  A later move to the same count
uses these keys again, without the push of all rows.
"""
import numpy as np

from ..base.errors import InputError
from ..native.arrays import trim_heap
from .lifecycle import rows_of_new_key
from .partitioning import Partitioning, chunks, partition_count
from .protocol import CAPTURE, overwrite_mode
from .table import Table

#: Bytes of rows that a worker pulls and pushes at a time; MXNet keeps buffers of that size for every key.
MOVE_CHUNK_BYTES = 4 << 20


def repartition(table: Table, partitions: int) -> None:
    """Cut a table into that number of `partitions`, as far as its rows and the size of keys allow (collective).

    Call it between steps, when all workers have pushed every key equally often and no pull is under way.  Rows,
    optimizer state and the number of updates do not change, so the result of training does not change.  InputError on
    all workers, with nothing changed, if the servers have too few keys left.
    """
    servers, old, itemsize = table.servers, table.partitioning, table.dtype.itemsize
    placement = servers.keys.placement
    count = partition_count(old.rows, old.width, itemsize, partitions)
    if count == old.count:
        return
    former = table.former.get(count)
    if former is None and placement.keys_left() < count:
        raise InputError('%s: %d partitions need more keys than the servers have left, %d each: start the job with '
                         'that count instead' % (table.name, count, placement.keys_left()))
    # No operation may be under way in this worker, and after the barrier in no other.
    servers.link.settle()
    table.collect()
    servers.barrier()
    servers.command('mode', keys=old.keys, mode=CAPTURE)
    if former is None:
        new = placement.move(old, itemsize, count)
    else:
        new = former
        placement.release(old, itemsize)
        placement.claim(former, itemsize)
    target = table.successor(new)
    if servers.on_lane:
        servers.open_table(target)
    elif former is None:
        _create(target)
    servers.command('move', table=table.name, rows=old.rows, old=old.keys, new=new.keys, count=table.updates)
    _carry(table, target)
    # For all types but float32 servers answer pulls from a copy, which they update after a push only (ApplyUpdates in
    # src/kvstore/kvstore_dist_server.h): rows that were copied in the server are not in it yet.
    target.touch()
    target.set_mode(table.mode)
    servers.command('release', keys=old.keys)
    if servers.lane is not None:
        servers.drop_table(table)
        servers.lane.move(target, table)
    else:
        table.touch()
    servers.link.settle()  # until then the link uses the old partitions
    table.move_to(new)
    trim_heap()
    servers.barrier()


def _create(target: Table) -> None:
    """Create the keys of `target`, with any contents."""
    servers, partitioning = target.servers, target.partitioning
    servers.command('table', table=target.name, keys=partitioning.keys, width=partitioning.width,
                    rows=[partitioning.shape(part)[0] for part in range(partitioning.count)])
    # One partition of each server at a time: servers work in parallel, and none buffers many messages.
    for start in range(0, partitioning.count, servers.num_servers):
        parts = range(start, min(start + servers.num_servers, partitioning.count))
        servers.initialise([partitioning.keys[part] for part in parts],
                           [rows_of_new_key(target, part, target.dtype, partitioning.width) for part in parts])
    target.touch()


def rows_between_servers(old: Partitioning, new: Partitioning) -> np.ndarray:
    """Return the ids, sorted, of the rows whose server changes."""
    ids = np.arange(old.rows, dtype=np.int64)
    return ids[np.array(old.servers)[ids % old.count] != np.array(new.servers)[ids % new.count]]


def _carry(table: Table, target: Table) -> None:
    """Move the rows whose server changes through the workers: weights, then each slot of state."""
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
        for positions in chunks(len(shares[0]), row_bytes, MOVE_CHUNK_BYTES):  # the first share is the longest
            # A pull of a worker, which follows its push, does not overtake the commands, because worker 0 pushes after
            # them.  Nor does a host keep rows that were pulled before the push.
            table.touch()
            ids = shares[servers.rank][positions[0]:positions[-1] + 1]
            rows = np.empty((len(ids), table.partitioning.width), table.dtype)
            if len(ids):
                table.pull_uncached(ids, rows)
            target.push(ids, rows)
        servers.link.settle()
