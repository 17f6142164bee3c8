"""Random steps on tables and a dense array, each compared with NumPy; :mod:`.steps` reads the arguments.

Every worker draws the gradients of all workers from one seed, so that each worker can compute the rows that the servers
must hold.  Gradients have rows anywhere in a table, or no rows; learning rates change, partitions move, rows are
prefetched, and all rows are pulled from time to time.  Gradients are small whole numbers and learning rates powers of
two: sgd without momentum must give the same bits as NumPy, the other optimizers may differ by rounding.
"""
import mxnet as mx
import numpy as np

import mxhybrid
from lab.soak.model import Adam, Sgd
from lab.soak.steps import finish, steps

ROWS, WIDTH = 3000, 12
DENSE = (40, 50)
MOST_ROWS = 400

#: Difference from NumPy, of values around 1, that rounding in another order explains after thousands of updates.
TOLERANCE = 1e-5

#: Steps between comparisons of whole tables; between moves; between changes of the learning rate.
WHOLE, MOVE, RATE = 500, 90, 70


class Tested:
    """A store with one table, and its model."""

    def __init__(self, name, optimizer, model, exact):
        self.name, self.model, self.exact = name, model, exact
        self.optimizer = optimizer
        self.store = mxhybrid.create(partitions=2, routes='servers')
        self.store.init(self.name, mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)))
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
        total = np.zeros((ROWS, WIDTH), np.float32)
        touched = np.zeros(ROWS, bool)
        for worker in range(workers):
            count = 0 if without_rows or random.rand() < 0.1 else random.randint(1, MOST_ROWS)
            ids = np.sort(random.choice(ROWS, count, replace=False))
            rows = random.randint(-4, 5, (count, WIDTH)).astype(np.float32)
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
        self.store.push(self.name, mx.nd.sparse.row_sparse_array((pushed[1], pushed[0]), shape=(ROWS, WIDTH)))
        changed = np.flatnonzero(touched)
        self.model.update(changed, total[changed], self.optimizer.learning_rate)
        if len(pulled_ids):
            self.pull(pulled_ids)

    def pull(self, ids):
        """Pull rows and compare them."""
        out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
        self.store.row_sparse_pull(self.name, out=out, row_ids=mx.nd.array(ids, dtype=np.int64))
        np.testing.assert_array_equal(out.indices.asnumpy(), ids)
        self.compare(ids, out.data.asnumpy())


def main():
    """Run the steps."""
    shape, rate = (ROWS, WIDTH), 2.0 ** -10
    momentum = mx.optimizer.SGD(learning_rate=rate, momentum=0.9, lazy_update=True)
    tested = [
        Tested('sgd', mx.optimizer.SGD(learning_rate=rate, lazy_update=True), Sgd(shape, 'float32'), True),
        Tested('momentum', momentum, Sgd(shape, 'float32', 0.9), False),
        Tested('adam', mx.optimizer.Adam(learning_rate=rate, lazy_update=True), Adam(shape, 'float32'), False)]
    dense_store = mxhybrid.create()
    dense_store.init('dense', mx.nd.zeros(DENSE))
    rank, workers = dense_store.rank, dense_store.num_workers
    for step in steps():
        random = np.random.RandomState(step)
        for each in tested:
            each.step(random, rank, workers)
        values = random.randint(-9, 10, (workers,) + DENSE).astype(np.float32)
        total = mx.nd.array(values[rank])
        dense_store.pushpull('dense', total, out=total)
        np.testing.assert_array_equal(total.asnumpy(), values.sum(axis=0))
        done = step + 1
        if done % RATE == 0:
            for each in tested:
                each.optimizer.set_learning_rate(2.0 ** -random.randint(8, 13))
        if done % MOVE == 0:
            each = tested[random.randint(len(tested))]
            each.store.repartition(each.name, random.randint(1, 9))
        if done % WHOLE == 0:
            for each in tested:
                each.pull(np.arange(ROWS))
    for each in tested:
        each.pull(np.arange(ROWS))
    finish(rank, done)


main()
