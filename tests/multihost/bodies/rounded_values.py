"""Tables and dense sums that travel as int8 and float16 between hosts: values, errors, the report, and refusals."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from mxhybrid.native.arrays import make_row_sparse
from tests.helpers.outcomes import error_of

SHAPE, STEPS, LAYER = (300, 16), 25, (40, 30)
WIRE_DTYPE = {'half*': 'float16', 'exact*': 'float32', '*': 'int8'}


def start(rank, shape=SHAPE):
    """Return initial values; those of worker 0 count."""
    return np.random.RandomState(100 + rank).normal(size=shape).astype('f4')


def gradient(rank, step):
    """Return ids and rows of a worker's gradient."""
    random = np.random.RandomState(1000 * rank + step)
    ids = np.sort(random.choice(SHAPE[0], 60, replace=False)).astype(np.int64)
    return ids, random.normal(size=(60, SHAPE[1])).astype('f4')


def layer_gradient(rank, step):
    """Return a worker's dense gradient."""
    return np.random.RandomState(5000 + 1000 * rank + step).normal(size=LAYER).astype('f4')


def whole(store, key):
    """Return all rows of a table, as the servers hold them."""
    out = mx.nd.sparse.zeros('row_sparse', SHAPE)
    store.pull(key, out=out, ignore_sparse=False)
    return out.asnumpy()


def train(store):
    """Train tables by servers; return their first and last values, and the values that workers pull in the end."""
    values = {}
    for key in ('words', 'half_words', 'exact_words'):
        store.init(key, make_row_sparse(np.arange(SHAPE[0]), start(store.rank), SHAPE))
        values[key] = {'start': whole(store, key)}
        for step in range(STEPS):
            store.push(key, make_row_sparse(*gradient(store.rank, step), SHAPE))
        out = mx.nd.sparse.zeros('row_sparse', SHAPE)
        store.row_sparse_pull(key, out=out, row_ids=mx.nd.arange(SHAPE[0]))
        values[key].update(end=whole(store, key), pulled=out.asnumpy())
    return values


def sums(store):
    """Return the sums of a dense gradient, and of row_sparse gradients of a dense weight, over all steps."""
    store.init('layer', mx.nd.zeros(LAYER))
    store.init('embedding', mx.nd.zeros(SHAPE))
    totals = {'layer': np.zeros(LAYER), 'embedding': np.zeros(SHAPE)}
    for step in range(STEPS):
        values = mx.nd.array(layer_gradient(store.rank, step))
        store.pushpull('layer', values, out=values)
        totals['layer'] += values.asnumpy()
        rows = make_row_sparse(*gradient(store.rank, step), SHAPE)
        store.push('embedding', rows)
        store.pull('embedding', rows, ignore_sparse=False)
        totals['embedding'] += rows.asnumpy()
    return totals


def problems(store):
    """Return the errors of calls that int8 does not allow."""
    return [error_of(mxhybrid.create), error_of(store.repartition, 'words', 3),
            error_of(store.init, 'doubles', mx.nd.sparse.zeros('row_sparse', SHAPE, dtype='float64'))]


def main():
    store = mxhybrid.create(wire_dtype=WIRE_DTYPE, routes='servers', partitions=4)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    tables = train(store)
    summing = mxhybrid.create(wire_dtype=WIRE_DTYPE, routes='servers', partitions=4)
    totals = sums(summing)
    report(store.rank, tables=tables, totals=totals, reports=[store.report(), summing.report()],
           problems=problems(store))


if __name__ == '__main__':
    main()
