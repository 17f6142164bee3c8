"""Train tables whose rows are looked up on a device, by copies alone: MXNet needs no kernel for the device.

Worker w adds 1 to column w of the rows of its batch, see ``tests/helpers/counting_tables.py``.  Ids, rows and gradients
are on the device.  The script computes nothing there: gradients are copied from NumPy.

args: ``--device cpu`` or ``gpu`` (several workers may share a GPU); ``--staleness`` and ``--wire-dtype``, the settings;
``--directory`` for a checkpoint.
"""
import argparse
import os

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from tests.helpers.counting_tables import check_rows, counts_by_step

ROWS, BATCH, STEPS, BAG = 40, 12, 16, 3
MOVED_AFTER, SAVED_AFTER = 8, 10
#: The key of row i of the table by keys is (i - 20) times this number, which no float64 holds.
KEY = (1 << 53) + 1
#: Errors of pulled rows, by the type in which they travel: counts up to 16 are exact in float16, and multiples of at
#: most 16 / 127 in int8.
TOLERANCES = {'float32': 0.0, 'float16': 0.0, 'int8': 0.1}


def batch(worker, step):
    """Return the distinct rows that a worker uses in a step, in no order."""
    return np.random.RandomState(1000 * worker + step).choice(ROWS, BATCH, replace=False)


class Net(gluon.Block):
    """A row_sparse weight, dynamic tables by number, by key and with bags, and a dense weight that is not trained."""

    def __init__(self, width):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.sparse = gluon.contrib.nn.SparseEmbedding(ROWS, width, prefix='sparse_')
            self.tables = mxhybrid.nn.EmbeddingCollection({
                'numbered': mxhybrid.nn.Embedding(1 << 40, width, prefix='numbered_'),
                'hashed': mxhybrid.nn.HashEmbedding(width, prefix='hashed_'),
                'bags': mxhybrid.nn.HashEmbedding(width, prefix='bags_')}, 'sum')
            self.frozen = self.params.get('frozen', shape=(3, width), grad_req='null')

    def row_tables(self):
        """Return a function for each table that returns the rows of an array of distinct rows, as NumPy."""
        def keys_of(rows):
            return mx.nd.array((rows.asnumpy() - 20) * KEY, ctx=rows.context, dtype='int64')
        return {'sparse': lambda rows: self.sparse.weight.row_sparse_data(rows).data.asnumpy(),
                'numbered': lambda rows: self.tables['numbered'](rows).asnumpy(),
                'hashed': lambda rows: self.tables['hashed'](keys_of(rows)).asnumpy(),
                'bags': lambda rows: self.tables['bags'](rows).asnumpy()}


def ids_in(form, rows, device):
    """Return ids as a script may have them: on the device, of one or two dimensions, or on the host."""
    if form == 'NumPy':
        return rows
    ids = rows.reshape(-1, 4) if form == 'matrix' else rows
    return mx.nd.array(ids, ctx=mx.cpu() if form == 'host' else device, dtype='int64')


class Training:
    """A net, its Trainer and its store; `expected` has the rows after each number of steps."""

    def __init__(self, store, device, staleness, tolerance):
        self.store, self.device, self.staleness, self.tolerance = store, device, staleness, tolerance
        self.rank = store.rank
        self.expected = counts_by_step(store.num_workers, STEPS, ROWS, batch)
        self.net = Net(store.num_workers)
        self.net.initialize(mx.init.Zero(), ctx=device)
        self.trainer = gluon.Trainer(self.net.collect_params(), 'sgd', {'learning_rate': -1.0}, kvstore=store)
        self.lagging = {}

    def gradient(self, count):
        """Return a gradient on the device that adds 1 to this worker's column of `count` rows."""
        return mx.nd.array(np.tile(np.eye(self.store.num_workers, dtype='float32')[self.rank], (count, 1)),
                           ctx=self.device)

    def step(self, step, form):
        """Make a training step, and check the rows that it looks up."""
        rows = batch(self.rank, step)
        with autograd.record():
            sparse = self.net.sparse.weight.row_sparse_data(
                mx.nd.array(np.sort(rows), ctx=self.device, dtype='int64')).data.asnumpy()
            looked_up = self.net.tables({
                'numbered': ids_in(form, rows, self.device), 'hashed': ids_in(form, (rows - 20) * KEY, self.device),
                'bags': (mx.nd.array(rows, ctx=self.device, dtype='int64'), np.arange(0, BATCH, BAG))})
        assert all(array.context == self.device for array in looked_up.values())
        self.check('sparse', sparse, np.sort(rows), step)
        for name in ('numbered', 'hashed'):
            self.check(name, looked_up[name].asnumpy().reshape(BATCH, -1), rows, step)
        self.check_bags(looked_up['bags'].asnumpy(), rows, step)
        autograd.backward(list(looked_up.values()), [
            self.gradient(array.size // array.shape[-1]).reshape(array.shape) for array in looked_up.values()])
        self.put_sparse_gradient(np.sort(rows))
        self.trainer.step(1)

    def put_sparse_gradient(self, rows):
        """Give the row_sparse weight a gradient, as a backward pass does."""
        weight = self.net.sparse.weight
        ids = mx.nd.array(rows, ctx=self.device, dtype='int64')
        mx.nd.sparse.row_sparse_array((self.gradient(BATCH), ids), shape=weight.shape, ctx=self.device).copyto(
            weight.list_grad()[0])
        weight._data[0]._fresh_grad = True

    def check(self, name, rows, ids, step):
        """Require rows that the staleness allows."""
        lag = check_rows(rows, ids, self.rank, step, self.staleness, self.expected, self.tolerance)
        self.lagging[name] = max(lag, self.lagging.get(name, 0))

    def check_bags(self, sums, ids, step):
        """Require sums of rows that the staleness allows."""
        highest = self.expected[step][ids].reshape(-1, BAG, self.store.num_workers).sum(axis=1)
        lowest = self.expected[max(0, step - self.staleness)][ids].reshape(-1, BAG, self.store.num_workers).sum(axis=1)
        slack = BAG * self.tolerance
        assert sums.shape == highest.shape and (lowest - slack <= sums).all() and (sums <= highest + slack).all(), (
            step, lowest, sums, highest)

    def check_all(self, steps):
        """Require that an evaluation gets the rows after all steps of all workers."""
        every = mx.nd.arange(ROWS, dtype='int64', ctx=mx.cpu()).copyto(self.device)
        for name, rows_of in self.net.row_tables().items():
            np.testing.assert_allclose(rows_of(every), self.expected[steps], rtol=0, atol=self.tolerance, err_msg=name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--device', default='gpu', choices=['cpu', 'gpu'])
    parser.add_argument('--staleness', type=int, default=0)
    parser.add_argument('--wire-dtype', default='float32', choices=sorted(TOLERANCES))
    parser.add_argument('--directory', required=True)
    arguments = parser.parse_args()
    device = mx.gpu(0) if arguments.device == 'gpu' else mx.cpu()
    store = mxhybrid.create(staleness=arguments.staleness, wire_dtype=arguments.wire_dtype)
    training = Training(store, device, arguments.staleness, TOLERANCES[arguments.wire_dtype])
    net, frozen = training.net, np.random.RandomState(store.rank).uniform(size=(3, store.num_workers)).astype('float32')
    net.frozen.set_data(mx.nd.array(frozen, ctx=device))
    checkpoint = os.path.join(arguments.directory, 'checkpoint')
    for step in range(STEPS):
        training.step(step, ('device', 'matrix', 'host', 'NumPy')[step % 4])
        if step % 3 == 0 and step + 1 < STEPS:
            mxhybrid.prefetch(net.tables['numbered'].weight,
                              mx.nd.array(batch(store.rank, step + 1), ctx=device, dtype='int64'))
        if step % 5 == 4:
            training.check_all(step + 1)
        if step == MOVED_AFTER and arguments.wire_dtype == 'float32':
            store.repartition(training.trainer._param2idx[net.sparse.weight.name], 3)
        if step == SAVED_AFTER:
            mxhybrid.checkpoint.save(checkpoint, net, training.trainer, step)
    training.check_all(STEPS)
    saved = net.frozen.data().asnumpy()
    net.frozen.set_data(mx.nd.array(frozen + 1, ctx=device))
    mxhybrid.checkpoint.load(checkpoint, net, training.trainer)
    training.check_all(SAVED_AFTER + 1)
    np.testing.assert_array_equal(net.frozen.data().asnumpy(), saved)
    report(store.rank, lagging=training.lagging, frozen=saved, text=store.report())


if __name__ == '__main__':
    main()
