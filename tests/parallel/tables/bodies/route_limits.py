"""Use tables that cannot travel by allreduce: memory lacks, or rows of their state are too wide; report an error.

In the end worker 1 forces other routes than worker 0.
"""
from unittest import mock

import mxnet as mx
from lab.reports import report

import mxhybrid
from mxhybrid.routes.costs import Network, Speed
from tests.helpers.outcomes import error_of


def wide_states():
    """Push to a table whose rows of optimizer state are wider than can be read, and to one that just fits."""
    store = mxhybrid.create()
    store._job.measured['network'] = Network(Speed(0.1, 1e6), Speed(0.001, 1e9))
    store.set_optimizer(mx.optimizer.SGD(momentum=0.9))
    for name, width in (('wide', 65537), ('fits', 65536)):
        rows = mx.nd.ones((8, width)).tostype('row_sparse')
        store.init(name, rows)
        for _ in range(12):
            store.push(name, rows)
    print(store.report())


def hold_large_table():
    """Force a table to allreduce that is larger than the memory."""
    store = mxhybrid.create(routes='big*=allreduce')
    store.init('small', mx.nd.sparse.zeros('row_sparse', (50, 2)))
    store.init('big', mx.nd.sparse.zeros('row_sparse', (50000, 2)))


wide_states()
rank = mxhybrid.create().rank
with mock.patch('mxhybrid.routes.chooser.available_bytes', lambda: 1 << 20):  # for two workers
    report(rank, memory=error_of(hold_large_table))
mxhybrid.create(routes='servers' if rank == 1 else 'auto')
