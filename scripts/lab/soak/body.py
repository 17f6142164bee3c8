"""Random steps on tables and a dense array, each compared with NumPy; args: SECONDS STEPS DIRECTORY.

They end after the seconds and steps, once the directory has the file `sampled`.

Every worker draws the gradients of all workers from one seed, so that each worker can compute the rows that the servers
must hold.  Gradients have rows anywhere in a table, or no rows; learning rates change, partitions move, rows are
prefetched, and all rows are pulled from time to time.  Gradients are small whole numbers and learning rates powers of
two: sgd without momentum must give the same bits as NumPy, the other optimizers may differ by rounding.
"""
import os
import sys
import time

import mxnet as mx
import numpy as np

import mxhybrid
from lab.reports import report
from lab.soak.model import Adam, Sgd
from mxhybrid.job.join import current

ROWS, WIDTH = 3000, 12
DENSE = (40, 50)
MOST_ROWS = 400

#: Difference from NumPy, of values around 1, that rounding in another order explains after thousands of updates.
TOLERANCE = 1e-5

#: Steps between comparisons of whole tables; between moves; between changes of the learning rate; between progress.
WHOLE, MOVE, RATE, TELL = 500, 90, 70, 100


class Tested:
    """A store with one table, and its model."""

    def __init__(self, name, dtype, optimizer, model, exact):
        self.name, self.model, self.exact = name, model, exact
        self.dtype = np.dtype(dtype)
        self.optimizer = optimizer
        self.store = mxhybrid.create(partitions=2, routes='servers')
        self.store.init(name, mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH), dtype=dtype))
        self.store.set_optimizer(optimizer)

    def compare(self, ids, rows):
        """Raise AssertionError if rows differ from the rows of the model."""
        expected = self.model.weights[ids]
        if self.exact:
            np.testing.assert_array_equal(rows, expected, self.name)
        else:
            np.testing.assert_allclose(rows, expected, TOLERANCE, TOLERANCE, err_msg=self.name)

    def step(self, random, rank, workers):
        """Push the gradients of one step and pull some rows."""
        without_rows = random.rand() < 0.05
        total = np.zeros((ROWS, WIDTH), self.dtype)
        touched = np.zeros(ROWS, bool)
        for worker in range(workers):
            count = 0 if without_rows or random.rand() < 0.1 else random.randint(1, MOST_ROWS)
            ids = np.sort(random.choice(ROWS, count, replace=False))
            rows = random.randint(-4, 5, (count, WIDTH)).astype(self.dtype)
            total[ids] += rows
            touched[ids] = True
            if worker == rank:
                pushed = ids, rows
        pulled_ids = np.sort(random.choice(ROWS, random.randint(1, MOST_ROWS), replace=False))
        pulled_ids = pulled_ids[rank::2] if random.rand() < 0.5 else pulled_ids
        chance = random.rand()
        if chance < 0.4:
            prefetched_ids = pulled_ids if chance < 0.3 else pulled_ids[::3]
            self.store.prefetch(self.name, mx.nd.array(prefetched_ids, dtype=np.int64), after_push=True)
        gradient = mx.nd.sparse.row_sparse_array((pushed[1], pushed[0]), shape=(ROWS, WIDTH), dtype=self.dtype)
        self.store.push(self.name, gradient)
        changed = np.flatnonzero(touched)
        self.model.update(changed, total[changed], self.optimizer.learning_rate)
        if len(pulled_ids):
            self.pull(pulled_ids)

    def pull(self, ids):
        """Pull rows and compare them."""
        out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH), dtype=self.dtype)
        self.store.row_sparse_pull(self.name, out=out, row_ids=mx.nd.array(ids, dtype=np.int64))
        np.testing.assert_array_equal(out.indices.asnumpy(), ids)
        self.compare(ids, out.data.asnumpy())


def main():
    """Run the steps."""
    until, steps, sampled = (time.monotonic() + float(sys.argv[1]), int(sys.argv[2]),
                             os.path.join(sys.argv[3], 'sampled'))
    shape = (ROWS, WIDTH)
    rate = 2.0 ** -10
    tested = [
        Tested('sgd', 'float32', mx.optimizer.SGD(learning_rate=rate, lazy_update=True), Sgd(shape, 'float32'), True),
        Tested('momentum', 'float32', mx.optimizer.SGD(learning_rate=rate, momentum=0.9, lazy_update=True),
               Sgd(shape, 'float32', 0.9), False),
        Tested('adam', 'float32', mx.optimizer.Adam(learning_rate=rate, lazy_update=True), Adam(shape, 'float32'),
               False)]
    store = tested[0].store
    rank, workers = store.rank, store.num_workers
    dense_store = mxhybrid.create()
    dense_store.init('dense', mx.nd.zeros(DENSE))
    done = 0
    going = True
    while going:
        random = np.random.RandomState(done)
        for each in tested:
            each.step(random, rank, workers)
        values = random.randint(-9, 10, (workers,) + DENSE).astype(np.float32)
        total = mx.nd.array(values[rank])
        dense_store.pushpull('dense', total, out=total)
        np.testing.assert_array_equal(total.asnumpy(), values.sum(axis=0))
        done += 1
        if done % RATE == 0:
            for each in tested:
                each.optimizer.set_learning_rate(2.0 ** -random.randint(8, 13))
        if done % MOVE == 0:
            each = tested[random.randint(len(tested))]
            each.store.repartition(each.name, random.randint(1, 9))
        if done % WHOLE == 0:
            for each in tested:
                each.pull(np.arange(ROWS))
        if done % TELL == 0:
            if rank == 0:
                print('soak: %d steps' % done, flush=True)
            # All workers agree whether to go on.
            late = mx.nd.array([time.monotonic() > until and done >= steps and os.path.exists(sampled)])
            dense_store.pushpull('late', late, out=late) if done > TELL else dense_store.init('late', mx.nd.zeros(1))
            going = done <= TELL or late.asscalar() < workers
    for each in tested:
        each.pull(np.arange(ROWS))
    client = current().servers.client
    report(rank, steps=done, pid=os.getpid(), requests=client.requests if client else 0,
           sums={each.name: float(np.abs(each.model.weights).sum()) for each in tested})


main()
