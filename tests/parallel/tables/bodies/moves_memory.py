"""Report the resident memory of servers and workers while a table with momentum moves again and again."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from tests.helpers.job_memory import resident_mb, servers_of_this_job

ROWS, WIDTH = 120000, 128
TABLE_MB = ROWS * WIDTH * 4 / 1e6


store = mxhybrid.create(partitions=2)
shape = (ROWS, WIDTH)
store.init('table', mx.nd.sparse.zeros('row_sparse', shape))
store.set_optimizer(mx.optimizer.create('sgd', momentum=0.9, learning_rate=1.0))
ids = np.arange(store.rank, ROWS, 1000)


def step():
    """Push some rows."""
    store.push('table', mx.nd.sparse.row_sparse_array((np.ones((len(ids), WIDTH), 'f4'), ids), shape=shape))
    mx.nd.waitall()


for _ in range(2):
    step()
servers = servers_of_this_job() if store.rank == 0 else []
server_memory, worker_memory = [resident_mb(servers)], [resident_mb()]
for count in 5 * (8, 1, 4, 2):
    store.repartition('table', count)
    step()
    server_memory.append(resident_mb(servers))
    worker_memory.append(resident_mb())
row = mx.nd.sparse.zeros('row_sparse', shape)
store.row_sparse_pull('table', out=row, row_ids=mx.nd.array([store.rank]))
report(store.rank, server_memory=server_memory, worker_memory=worker_memory, servers=len(servers), table=TABLE_MB,
       row=row.data.asnumpy()[0, 0])
