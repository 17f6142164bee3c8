"""Tables with staleness 1, and a model that counts: worker w adds 1 to column w of the rows of its batch."""
import os
import time

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from tests.helpers.counting_tables import check_rows, counts_by_step

ROWS, STEPS = 40, 16


def batch(worker, step):
    return np.sort(np.random.RandomState(1000 * worker + step).choice(ROWS, 12, replace=False))


class Tables(gluon.Block):
    """A table of each kind."""

    def __init__(self, width):
        super().__init__(prefix='test_')
        with self.name_scope():
            self.sparse = gluon.contrib.nn.SparseEmbedding(ROWS, width, prefix='sparse_')
            self.replicated = gluon.nn.Embedding(ROWS, width, sparse_grad=True, prefix='replicated_')
            self.dynamic = mxhybrid.nn.Embedding(ROWS, width, prefix='dynamic_')

    @property
    def blocks(self):
        return {'sparse': self.sparse, 'replicated': self.replicated, 'dynamic': self.dynamic}

    def forward(self, ids):
        return {name: block(ids) for name, block in self.blocks.items()}


def main():
    store = mxhybrid.create(staleness=1, routes='servers')
    rank, expected = store.rank, counts_by_step(store.num_workers, STEPS, ROWS, batch)
    net = Tables(store.num_workers)
    net.initialize(mx.init.Zero())
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': -1.0}, kvstore=store)
    column, every = mx.nd.array(np.eye(store.num_workers)[rank]), mx.nd.arange(ROWS, dtype='int64')
    lagging = 0

    def check_all(steps):
        """Require that evaluation gets the rows after all steps of all workers."""
        for name, rows in net(every).items():
            np.testing.assert_array_equal(rows.asnumpy(), expected[steps], name)

    def data():
        for step in range(STEPS):
            yield mx.nd.array(batch(rank, step), dtype='int64')

    def row_ids_of(ids):
        return {net.sparse.weight: ids, net.replicated.weight: ids}

    for step, ids in enumerate(mxhybrid.prefetching(data(), row_ids_of)):
        time.sleep(0.02 * rank)
        with autograd.record():
            outputs = net(ids)
            loss = sum((rows * column).sum() for rows in outputs.values())
        for rows in outputs.values():
            lagging += check_rows(rows.asnumpy(), batch(rank, step), rank, step, 1, expected)
        loss.backward()
        trainer.step(1)
        if step % 5 == 4:
            check_all(step + 1)
        if step == 8:
            store.repartition(trainer._param2idx[net.sparse.weight.name], 3)
        if step == 10:
            mxhybrid.checkpoint.save(os.environ['MXHYBRID_TEST_CHECKPOINT'], net, trainer, step)
    check_all(STEPS)
    mxhybrid.checkpoint.load(os.environ['MXHYBRID_TEST_CHECKPOINT'], net, trainer)
    check_all(11)
    report(rank, lagging=lagging, route=store.backend.routes[trainer._param2idx[net.replicated.weight.name]].kind,
           text=store.report())


if __name__ == '__main__':
    main()
