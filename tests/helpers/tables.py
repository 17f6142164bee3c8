"""A table in partitions on one handler, as servers hold it, and the same table in one process of MXNet's."""
import json

import mxnet as mx
import numpy as np

from mxhybrid.native.arrays import host_view, make_row_sparse, row_sparse_parts
from mxhybrid.native.optimizer_state import state_arrays
from mxhybrid.native.optimizers import TableOptimizer, attributes_of, reference_of
from mxhybrid.servers.handler import Handler
from mxhybrid.servers.partition_state import Partition
from mxhybrid.servers.partitioning import Placement
from mxhybrid.servers.protocol import MAILBOX_ELEMENTS, OPTIMIZE

ROWS, WIDTH = 11, 3
MAILBOX = 4
COMMON = {'rescale_grad': 1 / 3, 'clip_gradient': 0.4}
#: Arguments with which each optimizer for tables begins.
STARTS = {
    'sgd': [{}, {'momentum': 0.9}, {'lazy_update': False}, {'momentum': 0.9, 'lazy_update': False}],
    'ccsgd': [{'momentum': 0.9}], 'nag': [{}, {'momentum': 0.9}],
    'adam': [{}, {'lazy_update': False}, {'beta1': 0.8, 'beta2': 0.99, 'epsilon': 1e-3}],
    'adagrad': [{}, {'eps': 1e-4}], 'groupadagrad': [{}], 'ftrl': [{}, {'lamda1': 0.1, 'beta': 0.7}], 'adadelta': [{}],
    'rmsprop': [{}, {'centered': True}, {'clip_weights': 1.0}, {'centered': True, 'clip_weights': 1.0}],
}
WITHOUT_DECAY = ('adagrad', 'groupadagrad')


def split(table, ids):
    """Positions in `ids` (sorted, unique, int64) that belong to each partition of a table, as a push deals them out."""
    order = table.order(ids)
    return np.split(order, table.bounds(table.offsets(ids[order]))[1:-1])


def local(table, ids):
    """Row numbers inside their partitions of global rows `ids`."""
    return ids // table.count


class LoudHandler(Handler):
    """Raises the error that would end a server."""

    def die(self, doing):
        """Let the test see the exception."""
        raise  # noqa: PLE0704  (called while an exception is handled)


def merged_gradients(seed, dtype='float32', steps=7):
    """Merged pushes of some steps: one touches nothing, one a single row, one all rows."""
    random = np.random.RandomState(seed)
    for step in range(steps):
        count = {1: 0, 2: 1, 3: ROWS}.get(step, random.randint(1, 5))
        ids = np.sort(random.choice(ROWS, count, replace=False)).astype(np.int64)
        yield ids, random.standard_normal((count, WIDTH)).astype(dtype)


class Table:
    """A table cut into partitions that one handler holds, with the calls that servers and worker 0 make."""

    def __init__(self, values, count, handler=None):
        self.handler = handler or LoudHandler()
        self.partitioning = Placement(2, MAILBOX + 1).place(ROWS, WIDTH, values.itemsize, count)
        self.keys = list(self.partitioning.keys)
        shapes = [self.partitioning.shape(part) for part in range(count)]
        self.stored = [make_row_sparse(np.arange(shape[0]), values[self.partitioning.members(part)], shape)
                       for part, shape in enumerate(shapes)]
        self.handler.do_table('w', self.keys, [shape[0] for shape in shapes], WIDTH)
        Table.push(self, np.empty(0, np.int64), np.empty((0, WIDTH), values.dtype))

    def push(self, ids, rows, keys=None, stored=None):
        """Handle one merged push as servers do, partitions without rows included, to the weights or to other keys."""
        for part, at in enumerate(split(self.partitioning, ids)):
            grad = make_row_sparse(local(self.partitioning, ids[at]), rows[at], self.partitioning.shape(part))
            self.handler.update_multi_precision((keys or self.keys)[part], (stored or self.stored)[part], grad, None)

    def set_optimizer(self, optimizer, count=None, **changes):
        """Carry out a command of worker 0, by way of the text that is sent."""
        attributes = dict(attributes_of(optimizer), lr=optimizer.learning_rate, wd=optimizer.wd, **changes)
        self.handler.do_optimizer('w', self.keys, reference_of(optimizer), json.loads(json.dumps(attributes)), count)

    def values(self):
        """The whole table."""
        whole = np.empty((ROWS, WIDTH), self.stored[0].dtype)
        for part, array in enumerate(self.stored):
            ids, rows = row_sparse_parts(array)
            assert len(ids) == len(self.partitioning.members(part))
            whole[self.partitioning.members(part)] = rows
        return whole

    def read_state(self, slot, width, at_once=2, dtype=None):
        """Optimizer state of the whole table, as worker 0 reads it."""
        mailbox = mx.nd.zeros(MAILBOX_ELEMENTS)
        self.handler.do_mailbox([MAILBOX])
        self.handler.update_multi_precision(MAILBOX, mailbox, mx.nd.zeros(MAILBOX_ELEMENTS), None)
        dtype = np.dtype(dtype or self.stored[0].dtype)
        whole = np.empty((ROWS, width), dtype)
        for part, key in enumerate(self.keys):
            members = self.partitioning.members(part)
            for start in range(0, len(members), at_once):
                stop = min(start + at_once, len(members))
                mailbox[:] = -1
                mailbox.wait_to_read()
                self.handler.do_read(key, slot, start, stop, dtype.name)
                size = (stop - start) * width
                whole[members[start:stop]] = host_view(mailbox).view(dtype)[:size].reshape(-1, width)
        return whole


class Whole:
    """An uncut table in one process: a row_sparse weight that MXNet's own Updater updates, as its stores do."""

    def __init__(self, values, optimizer):
        self.weight = make_row_sparse(np.arange(ROWS), values, values.shape)
        self.updater = mx.optimizer.get_updater(optimizer)

    def push(self, ids, rows):
        """Apply one merged gradient."""
        self.updater(0, make_row_sparse(ids, rows, (ROWS, WIDTH)), self.weight)

    def values(self):
        """The whole table."""
        return self.weight.asnumpy()

    def states(self):
        """Return its optimizer state, dense."""
        return [array.asnumpy().reshape(ROWS, -1) for array in state_arrays(self.updater.states[0])]


def start_values(dtype='float32'):
    """Weights with a row of zeros, which MXNet's own conversions would drop."""
    values = np.random.RandomState(5).standard_normal((ROWS, WIDTH)).astype(dtype)
    values[4] = 0
    return values


def pair(name, arguments, count, dtype='float32', kind=Table):
    """A cut table on a handler and a whole one in MXNet, with equal optimizers."""
    table = kind(start_values(dtype), count)
    optimizer = mx.optimizer.create(name, **dict(COMMON, **arguments))
    table.set_optimizer(optimizer)
    return table, Whole(start_values(dtype), mx.optimizer.create(name, **dict(COMMON, **arguments)))


def equal(actual, expected):
    """Bit for bit, and something worth comparing."""
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(actual, expected)


def mxnets_partition(rows, optimizer):
    """Return a partition of rows that only MXNet's own optimizer updates, and this optimizer."""
    partition = Partition(17, 'table', *rows.shape, OPTIMIZE)
    partition.hold(make_row_sparse(np.arange(len(rows)), rows, rows.shape))
    attributes = dict(attributes_of(optimizer), lr=optimizer.lr, wd=optimizer.wd)
    return partition, TableOptimizer(reference_of(optimizer), attributes)


def push_to_both(table, whole, seed, dtype='float32', steps=7):
    """Push the same gradients to a cut and to a whole table, and compare them after each push."""
    for ids, rows in merged_gradients(seed, dtype, steps):
        before = whole.values()
        table.push(ids, rows)
        whole.push(ids, rows)
        equal(table.values(), whole.values())
        assert not len(ids) or not np.array_equal(before, whole.values())


def recut(table, count, through_workers=False):
    """Move a table to `count` partitions, as worker 0 commands it, all in this process or all through workers."""
    handler, old_keys, old_partitioning, old = table.handler, table.keys, table.partitioning, table.stored
    table.partitioning = Placement(1, max(old_keys) + 1).place(ROWS, WIDTH, 4, count)
    table.keys = list(table.partitioning.keys)
    shapes = [table.partitioning.shape(part) for part in range(count)]
    table.stored = [make_row_sparse(np.arange(shape[0]), np.full(shape, 7, old[0].dtype), shape) for shape in shapes]
    handler.do_table('w', table.keys, [shape[0] for shape in shapes], WIDTH)
    table.push(np.empty(0, np.int64), np.empty((0, WIDTH), old[0].dtype))
    updates = handler._optimizers['w'].live._index_update_count.get(old_keys[0], 0)
    if not through_workers:
        handler.do_move('w', ROWS, old_keys, table.keys, updates)
    else:
        handler.do_move('w', ROWS, [], table.keys, updates)
        slots = len(state_arrays(handler._partitions[old_keys[0]].state))
        for slot in range(-1, slots):
            if slot >= 0:
                handler.do_expose(old_keys, slot)
            whole = np.empty((ROWS, WIDTH), old[0].dtype)
            for part, array in enumerate(old):
                whole[old_partitioning.members(part)] = row_sparse_parts(array)[1]
            handler.do_mode(table.keys, 'assign' if slot < 0 else 'state:%d' % slot)
            table.push(np.arange(ROWS), whole)
    handler.do_mode(table.keys, 'optimize')
    handler.do_release(old_keys)
