"""Trains a model of two factors by dynamic tables without Gluon's blocks; reports losses, rows and statistics."""
import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from mxhybrid.job.join import current
from mxhybrid.row_store.row_store import FirstValues
from mxhybrid.servers.dynamic_table import DynamicTableSpec, create_dynamic_table
from mxhybrid.servers.lifecycle import retire_tables
from tests.helpers.row_stores import first_rows

WIDTH, STEPS, SAMPLES, RATE = 4, 40, 30, 0.5
FIRST = [FirstValues('normal', 0.5, seed) for seed in (1, 2)]


def batch(rank, step):
    """Return keys of users and items, and ratings, of a worker's share; one share is empty."""
    random = np.random.RandomState(1000 * step + rank)
    count = 0 if step == 3 and rank == 1 else SAMPLES
    # Keys on both sides of 2^31 and 2^53, and negative ones.
    users = random.randint(-20, 20, count).astype(np.int64) * (2 ** 30 + 1)
    items = random.randint(0, 30, count).astype(np.int64) * (2 ** 49 + 3)
    return users, items, ((users // (2 ** 30 + 1)) % 3 - 1.0) * (items % 5 - 2.0) / 2


def gradients(user_rows, item_rows, ratings):
    """Return the loss, and the gradients of rows of users and items."""
    errors = (user_rows * item_rows).sum(axis=1) - ratings
    return (errors ** 2).sum(), 2 * errors[:, None] * item_rows, 2 * errors[:, None] * user_rows


def main():
    """Train in a job; compare with NumPy."""
    store = mxhybrid.create()
    servers = current().servers
    tables = [create_dynamic_table(servers, DynamicTableSpec('test.' + name, WIDTH, 'float64', first, partitions))
              for name, first, partitions in zip(('users', 'items'), FIRST, (2, 5))]
    optimizer = mx.optimizer.create('sgd', momentum=0.5, rescale_grad=1 / SAMPLES)
    oracle = Oracle()
    losses = []
    for step in range(STEPS):
        keys, inverses, rows = [], [], []
        for table, ids in zip(tables, batch(store.rank, step)):
            distinct, inverse = np.unique(ids, return_inverse=True)
            array = np.empty((len(distinct), WIDTH))
            table.pull(distinct, array)
            keys.append(distinct), inverses.append(inverse), rows.append(array)
        ratings = batch(store.rank, step)[2]
        loss, *sample_gradients = gradients(*[array[inverse] for array, inverse in zip(rows, inverses)], ratings)
        losses.append(loss)
        for table, distinct, inverse, gradient in zip(tables, keys, inverses, sample_gradients):
            sums = np.zeros((len(distinct), WIDTH))
            np.add.at(sums, inverse, gradient)
            table.set_optimizer(optimizer, RATE, 0.0, step)
            table.push(distinct, sums)
        oracle.step(store.num_workers, step)
    for number, table in enumerate(tables):
        keys = np.array(sorted(oracle.rows[number]), np.int64)
        array = np.empty((len(keys), WIDTH))
        table.pull(keys, array)
        np.testing.assert_allclose(array, [oracle.rows[number][key] for key in keys], rtol=0, atol=1e-10)
    statistics = [table.statistics() if store.rank == 0 else {} for table in tables]
    rows = [len(rows) for rows in oracle.rows]
    retire_tables(servers, [name for name in servers.tables if name.startswith('test.')])
    report(store.rank, first_loss=losses[0], last_loss=losses[-1], statistics=statistics, rows=rows)


class Oracle:
    """Training in one process, by NumPy."""

    def __init__(self):
        self.rows, self.momenta = ({}, {}), ({}, {})

    def row(self, number, key):
        """Return a row."""
        return self.rows[number].setdefault(key, first_rows(FIRST[number], [key], WIDTH, 'float64')[0])

    def step(self, workers, step):
        """Update rows by the gradients of all workers."""
        sums = ({}, {})
        for rank in range(workers):
            users, items, ratings = batch(rank, step)
            if not len(users):
                continue
            rows = [np.array([self.row(number, key) for key in keys]) for number, keys in enumerate((users, items))]
            for number, (keys, gradient) in enumerate(zip((users, items), gradients(*rows, ratings)[1:])):
                for key, row in zip(keys, gradient):
                    sums[number][key] = sums[number].get(key, 0) + row
        for number in range(2):
            for key, total in sums[number].items():
                momentum = 0.5 * self.momenta[number].get(key, 0) - np.float32(RATE) * (np.float32(1 / SAMPLES) * total)
                self.momenta[number][key] = momentum
                self.rows[number][key] = self.rows[number][key] + momentum


main()
