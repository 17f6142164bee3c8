"""Push and pull random rows, other ones on each worker, and compare them with a NumPy model.

Values are small whole numbers, so that sums are exact in any order.  Worker r pulls r times a step, none on the
others' steps, and asks for some rows early, rightly or not; pushes are empty, full, and grow, so that shared memory
grows while it is in use.
"""
import os

import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from mxhybrid.native.arrays import make_row_sparse

ROWS, WIDTH, STEPS = 9000, 3, 30


def size_of_push(step, rank, random):
    """Rows that a worker pushes."""
    return {1: 0, 2: ROWS, 3: ROWS if rank == 0 else 0, 4: 0 if rank == 0 else 7}.get(
        step % 10, int(random.randint(1, 20 + 150 * step)))


def push_of(step, rank, table):
    """Return the ids and rows of a push, which all workers know."""
    random = np.random.RandomState(1000 * step + 10 * rank + table)
    ids = np.sort(random.choice(ROWS, min(ROWS, size_of_push(step, rank, random)), replace=False))
    return ids, random.randint(-8, 9, (len(ids), WIDTH)).astype('float32')


store = mxhybrid.create(partitions=3)
rank, workers = store.rank, store.num_workers
link, lane, delivered, few = store.backend._servers.link, store.backend._servers.lane, [], []
if lane is not None:
    deliver, deliver_copies = lane.deliver_tables, lane.deliver_copies
    lane.deliver_tables = lambda *arguments: (delivered.append(1), deliver(*arguments))
    lane.deliver_copies = lambda *arguments: (few.append(deliver_copies(*arguments)), few[-1])[1]
models = [np.zeros((ROWS, WIDTH), np.float32) for _ in range(2)]
for key in range(2):
    store.init(key, mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)))
# Steps of a half: exact as well.
store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, lazy_update=True))
random = np.random.RandomState(rank)
pulled = 0
for step in range(STEPS):
    for key, model in enumerate(models):
        store.push(key, make_row_sparse(*push_of(step, rank, key), (ROWS, WIDTH)), priority=-key)
        for other in range(workers):
            ids, rows = push_of(step, other, key)
            model[ids] -= rows / 2
    for _ in range(rank if step % 2 else 1):
        for key in random.permutation(2):
            pulled_ids = random.randint(0, ROWS, random.choice([1, 50, 3 * ROWS]))
            if random.randint(3) == 0:
                early = pulled_ids if random.randint(2) else random.randint(0, ROWS, 40)
                store.prefetch(int(key), early, after_push=bool(random.randint(2)))
            out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
            store.row_sparse_pull(int(key), out=out, row_ids=mx.nd.array(pulled_ids, dtype='int64'))
            ids = np.unique(pulled_ids)
            np.testing.assert_array_equal(out.indices.asnumpy(), ids)
            np.testing.assert_array_equal(out.data.asnumpy(), models[key][ids])
            pulled += len(ids)
tables = []
for key in range(2):
    out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
    store.pull(key, out=out, ignore_sparse=False)
    np.testing.assert_array_equal(out.asnumpy(), models[key])
    tables.append(out.asnumpy())
report(rank, tables=tables, pulled=pulled, link=type(link).__name__, delivered=len(delivered), few=sum(few),
       client=store.backend._servers.client is not None, descriptors=len(os.listdir('/proc/self/fd')))
