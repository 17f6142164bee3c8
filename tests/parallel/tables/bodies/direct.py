"""Use the store directly; report the values after every call, to compare them with MXNet's own store.

With ``--alone N`` one process gives MXNet's ``local`` store the arrays of N workers as those of N devices.
"""
import argparse
import itertools

import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid


def rows(seed, ids, shape=(9, 2), dtype='float32'):
    """A row_sparse array with the given rows."""
    values = np.random.RandomState(seed).normal(size=(len(ids),) + shape[1:]).astype(dtype)
    return mx.nd.sparse.row_sparse_array((values, np.array(ids, np.int64)), shape=shape)


def table(shape=(9, 2), dtype='float32'):
    """A row_sparse array with all its rows."""
    return rows(1, list(range(shape[0])), shape, dtype)


class Store:
    """A store to which all workers' arrays are pushed, by several workers or, as devices, by one."""

    def __init__(self, alone):
        self.kv = mx.kv.create('local') if alone else mx.kv.create('hybrid')
        self.ranks = list(range(alone)) if alone else [self.kv.rank]
        self.results = {}

    def push(self, key, make):
        """Push ``make(rank)``."""
        if isinstance(key, list):
            self.kv.push(key, [[make(rank, one) for rank in self.ranks] for one in key])
        else:
            self.kv.push(key, [make(rank) for rank in self.ranks])

    def pushpull(self, key, make, **options):
        """Push ``make(rank)``, and pull the sum; return the arrays that were pushed."""
        values = [make(rank) for rank in self.ranks]
        self.kv.pushpull(key, values, **options)
        return values

    def note(self, name, array):
        """Remember an array."""
        self.results[name] = array.tostype('default').asnumpy()

    def pull(self, name, key, shape=(3, 2), dtype='float32', stype='default', **options):
        """Remember a whole value, pulled into an array of zeros."""
        out = mx.nd.sparse.zeros(stype, shape, dtype=dtype)
        self.kv.pull(key, out=out, **options)
        self.note(name, out)

    def pull_rows(self, name, key, ids, shape=(9, 2), dtype='float32'):
        """Remember rows of a row_sparse value."""
        out = mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype)
        self.kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array(ids, dtype='float32'))
        self.note(name, out)


def dense(store, key):
    """Dense calls with one key."""
    store.kv.init(key, mx.nd.ones((3, 2)) * 2)
    store.pull('dense/init', key)
    store.push(key, lambda rank: mx.nd.ones((3, 2)) * (rank + 1))
    store.pull('dense/push', key)
    store.push(key, lambda rank: mx.nd.arange(6).reshape((3, 2)) * (rank + 1))
    outs = [mx.nd.zeros((3, 2)), mx.nd.zeros((3, 2))]
    store.kv.pull(key, out=outs)
    store.note('dense/push again', outs[1])
    store.note('dense/pushpull', store.pushpull(key, lambda rank: mx.nd.ones((3, 2)) * (rank - 0.5))[0])
    out = mx.nd.zeros((3, 2))
    store.pushpull(key, lambda rank: mx.nd.ones((3, 2)) * rank, out=out)
    store.note('dense/pushpull out', out)
    store.pull('dense/after pushpull', key)


def values_of_the_store(store, keys):
    """Check the values of a store: it holds copies, casts them to the dtype of the array that they are pulled into, and
    takes rows that are pushed to a dense key as its value.
    """
    store.kv.init(keys[0], mx.nd.ones((3, 2)))
    out = mx.nd.zeros((3, 2))
    store.pushpull(keys[0], lambda rank: mx.nd.ones((3, 2)) * (rank + 1.5), out=out)
    out[:] = 77
    for dtype in ('float32', 'float16', 'float64', 'int32'):
        store.pull('own/' + dtype, keys[0], dtype=dtype)
    out = mx.nd.zeros((3, 2), dtype='float16')
    store.pushpull(keys[0], lambda rank: mx.nd.ones((3, 2)) * (rank + 0.3), out=out)
    store.note('own/pushpull', out)
    store.kv.init(keys[1], mx.nd.ones((9, 2)))
    for step, dtype in enumerate(('float32', 'float64')):
        store.push(keys[1], lambda rank, step=step: rows(rank + step, [rank, 5]))
        store.pull('own/rows as dense %d' % step, keys[1], (9, 2), dtype, ignore_sparse=False)
    if isinstance(store.kv, mxhybrid.Hybrid):
        store.push(keys[1], lambda rank: mx.nd.ones((9, 2)) * (rank + 1))
        store.pull('own/dense after rows', keys[1], (9, 2), ignore_sparse=False)
    else:  # which MXNet's store can do for one device only
        store.note('own/dense after rows', mx.nd.ones((9, 2)) * sum(rank + 1 for rank in store.ranks))


def lists(store, keys):
    """Lists of keys, and a broadcast."""
    store.kv.init(keys[:2], [mx.nd.ones((3, 2)), mx.nd.ones((3, 2)) * 3])
    store.push(keys[:2], lambda rank, key: mx.nd.ones((3, 2)) * (rank + keys.index(key)))
    outs = [mx.nd.zeros((3, 2)), mx.nd.zeros((3, 2))]
    store.kv.pull(keys[:2], out=outs)
    store.note('lists/0', outs[0])
    store.note('lists/1', outs[1])
    out = mx.nd.zeros((3, 2))
    store.kv.broadcast(keys[2], mx.nd.ones((3, 2)) * (7 + min(store.ranks)), out=out)  # worker 0's value counts
    store.note('lists/broadcast', out)


def sparse(store, key, dtype):
    """row_sparse calls without an optimizer."""
    label = 'sparse-%s/' % dtype
    store.kv.init(key, rows(20 + min(store.ranks), list(range(9)), dtype=dtype))  # worker 0's values count
    store.pull_rows(label + 'init', key, [0, 4, 4, 8], dtype=dtype)
    store.push(key, lambda rank: rows(rank, [rank, rank + 1, 5], dtype=dtype))
    store.pull_rows(label + 'push', key, list(range(9)), dtype=dtype)
    store.push(key, lambda rank: mx.nd.sparse.zeros('row_sparse', (9, 2), dtype=dtype) if rank else
               rows(3, [2], dtype=dtype))
    store.pull(label + 'all rows', key, (9, 2), dtype, 'row_sparse', ignore_sparse=False)
    store.pull(label + 'ignored', key, (9, 2), dtype, 'row_sparse', ignore_sparse=True)


def optimized(store, keys):
    """An optimizer on the store, for dense and row_sparse values and for a value given in part."""
    kv = store.kv
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    kv.init(keys[0], mx.nd.ones((3, 2)))
    kv.init(keys[1], table())
    kv.init(keys[2], table((6, 2, 3)))
    for name in ('optimizer', 'another of its class'):
        for step in range(3):
            store.push(keys[0], lambda rank, step=step: mx.nd.ones((3, 2)) * (rank + step))
            store.push(keys[1], lambda rank, step=step: rows(step, [step, rank + 3]))
            store.push(keys[2], lambda rank, step=step: rows(step, [rank + step], (6, 2, 3)))
        store.pull(name + '/dense', keys[0])
        store.pull_rows(name + '/sparse', keys[1], list(range(9)))
        store.pull_rows(name + '/three dimensions', keys[2], [0, 1, 5, 3], (6, 2, 3))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))  # starts without state


def cast(store, key):
    """Rows of a table in outputs of another dtype."""
    store.kv.init(key, table(dtype='float16'))
    store.pull_rows('cast/some', key, [1, 8], dtype='float32')
    store.pull('cast/all', key, (9, 2), 'float64', 'row_sparse', ignore_sparse=False)


def several_outputs(store, key):
    """Pull other rows to each of two outputs (MXNet's distributed store cannot)."""
    store.kv.init(key, table())
    outs = [mx.nd.sparse.zeros('row_sparse', (9, 2)) for _ in range(2)]
    store.kv.row_sparse_pull(key, out=outs, row_ids=[mx.nd.array([1, 2]), mx.nd.array([2, 7])])
    store.note('outputs/0', outs[0])
    store.note('outputs/1', outs[1])
    store.kv.row_sparse_pull(key, out=outs, row_ids=mx.nd.array([3]))
    store.note('outputs/same', outs[1])


def partial(store, key):
    """A table initialised with some of its rows: the others are zeros."""
    if isinstance(store.kv, mxhybrid.Hybrid):
        store.kv.init(key, rows(2, [1, 5]))
        store.pull_rows('partial', key, list(range(9)))
    else:
        store.note('partial', rows(2, [1, 5]))


parser = argparse.ArgumentParser()
parser.add_argument('--alone', type=int, default=0)
parser.add_argument('--strings', action='store_true')
arguments = parser.parse_args()
results = {}
keys = ('key%d' % number if arguments.strings else number for number in itertools.count(1))
for act, *given in ((dense, next(keys)), (lists, [next(keys), next(keys), next(keys)]),
                    (sparse, next(keys), 'float32'), (sparse, next(keys), 'float64'),
                    (optimized, [next(keys), next(keys), next(keys)]), (several_outputs, next(keys)),
                    (partial, next(keys)), (cast, next(keys)), (values_of_the_store, [next(keys), next(keys)])):
    store = Store(arguments.alone)
    act(store, *given)
    results.update(store.results)
rank = store.ranks[0]
if not arguments.alone:
    report(rank, kind=(store.kv.type, rank, store.kv.num_workers, store.kv.is_capable('optimizer')))
report(rank, outcomes=results)
