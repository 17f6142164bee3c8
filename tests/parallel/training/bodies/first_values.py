"""Train networks whose values differ between workers when they are made: ``first_values.py [--kvstore device]``.

Each case reports the weights after one step and after three, to be compared with worker 0's network in one process.
"""
import os
import tempfile

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding
from train import Worker, parser_of, weights

import mxhybrid
from tests.helpers.training_steps import make_step, sum_of_squares

ROWS, BATCH, LATE = 12, 8, 3.0
DEVICES = [mx.cpu(0), mx.cpu(1)]


class Net(gluon.HybridBlock):
    """An embedding below two layers, of which the second one need not be used."""

    def __init__(self, deferred=False):
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(ROWS, 4, sparse_grad=True)
            self.hidden = nn.Dense(5, in_units=0 if deferred else 4, activation='tanh')
            self.more = nn.Dense(5, in_units=0 if deferred else 5)
            self.out = nn.Dense(1, in_units=0 if deferred else 5)
        self.uses_more = True

    def hybrid_forward(self, F, x):
        hidden = self.hidden(self.words(x).mean(axis=1))
        return self.out(self.more(hidden) if self.uses_more else hidden)


def layers(inputs, hidden):
    """Two layers; 0 for a size that a forward pass finds."""
    net = nn.HybridSequential(prefix='layers_')
    with net.name_scope():
        net.add(nn.Dense(5, in_units=inputs, activation='tanh'), nn.Dense(1, in_units=hidden))
    return net


class TableNet(gluon.Block):
    """A row_sparse weight below a layer that waits for its shape."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.words, self.out = SparseEmbedding(ROWS, 4), nn.Dense(1)

    def forward(self, x):
        return self.out(self.words(x).mean(axis=1))


class Cases:
    """Networks whose random values depend on the rank, and calls of the script before it trains."""

    def __init__(self, kvstore):
        self.worker = Worker(kvstore)
        self.rank, self.alone = self.worker.rank, not self.worker.hybrid
        self.results = {}

    def start(self, net, ctx=None):
        """Initialise a network, on each worker in another way."""
        mx.random.seed(1 + self.rank)
        net.initialize(mx.init.Uniform(0.5), ctx=ctx)
        return net

    def trainer(self, net, **keywords):
        return gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5, 'momentum': 0.9},
                             kvstore='device' if self.alone else 'hybrid', **keywords)

    def batch(self, step):
        return np.random.RandomState(step).randint(0, ROWS, (BATCH, 3))

    def look(self, net):
        """Make a forward pass, as an evaluation does."""
        net(mx.nd.array(self.batch(0))).wait_to_read()

    def fit(self, case, net, trainer, devices=DEVICES[:1], ignore_stale_grad=False):
        """Make three steps; report the weights after the first and after the last one."""
        for step in range(3):
            ids = self.batch(step)[self.rank::self.worker.size]
            with autograd.record():
                losses = [sum_of_squares(net(share)) for share in gluon.utils.split_and_load(ids, devices)]
            autograd.backward(losses)
            trainer.step(BATCH, ignore_stale_grad)
            if step in (0, 2):
                self.results['%s, step %d' % (case, step)] = weights(net)

    def starts(self):
        """Networks of each kind, on one device and on two."""
        for case, net, options in (
                ('initialised', Net(), {}), ('deferred', Net(deferred=True), {}), ('tables', TableNet(), {}),
                ('hybridized', Net(deferred=True), {'update_on_kvstore': True})):
            self.start(net)
            if case == 'hybridized':
                net.hybridize(static_alloc=True)
            self.fit(case, net, self.trainer(net, **options))
        net = self.start(Net(deferred=True), DEVICES)
        self.fit('devices', net, self.trainer(net), DEVICES)

    def looks_before(self):
        """Worker 0 alone, or worker 1 alone, has made a forward pass before the Trainer is made."""
        for rank in (0, 1):
            net = self.start(Net(deferred=True))
            if self.rank == rank:
                self.look(net)
            self.fit('worker %d looks before' % rank, net, self.trainer(net))

    def looks_after(self):
        """Worker 0 alone makes a forward pass after the Trainer was made, and all meet before they train."""
        net = self.start(Net(deferred=True))
        trainer = self.trainer(net)
        if self.rank == 0:
            self.look(net)
            mx.nd.waitall()
        self.worker.barrier()
        self.fit('looks after', net, trainer)

    def loads(self):
        """Worker 0 alone loads a file after the Trainer was made, into layers that wait for their shapes."""
        net = self.start(layers(0, 0))
        trainer = self.trainer(net)
        if self.rank == 0:
            saved = layers(3, 5)
            saved.initialize(mx.init.Constant(0.25))
            with tempfile.TemporaryDirectory() as folder:
                saved.save_parameters(os.path.join(folder, 'saved'))
                net.load_parameters(os.path.join(folder, 'saved'))
        self.fit('loads', net, trainer)

    def branches(self):
        """A layer that only worker 0, or only worker 1, uses."""
        for rank in (0, 1):
            net = self.start(Net())
            if not self.alone and self.rank != rank:
                net.uses_more = False
            if self.alone:  # a worker's share goes the way that it goes there
                net.hybrid_forward = lambda F, x, net=net, rank=rank: _by_shares(net, x, rank)
            self.fit('only worker %d' % rank, net, self.trainer(net), ignore_stale_grad=True)

    def split(self):
        """A network that is split, where MXNet alone has the plain one."""
        net = self.start(layers(3, 5))
        if not self.alone:
            net = mxhybrid.parallelize(net, mxhybrid.parallel.data_parallel(), data=(BATCH, 3))
        trainer = self.trainer(net)
        samples = slice(None) if self.alone else net.samples
        for step in range(3):
            make_step(trainer, BATCH, net, mx.nd.array(self.batch(step))[samples] / ROWS, loss_of=sum_of_squares)
            if step == 0:
                output = net(mx.nd.array(self.batch(9))[samples] / ROWS)
                self.results['split, step 0'] = {'sum': self.total(output)}

    def total(self, output):
        """Return the sum over all workers."""
        array = output.sum()
        if not self.alone:
            store = mxhybrid.create()
            store.init('total', mx.nd.zeros(1))
            store.pushpull('total', array, out=array)
        return array.asnumpy()

    def late(self):
        """Worker 1 alone changes values after the Trainer was made, which is said."""
        net = self.start(Net())
        trainer = self.trainer(net)
        if self.rank == 1:
            net.hidden.weight.set_data(mx.nd.ones((5, 4)) * LATE)
        make_step(trainer, BATCH, net, mx.nd.array(self.batch(0)), loss_of=sum_of_squares)


def _by_shares(net, x, rank):
    hidden = net.hidden(net.words(x).mean(axis=1))
    mine = mx.nd.array(np.arange(len(x)) % 2 == rank).expand_dims(1)
    return net.out(mine * net.more(hidden) + (1 - mine) * hidden)


cases = Cases(parser_of([]).parse_args().kvstore)
for case in (cases.starts, cases.looks_before, cases.looks_after, cases.loads, cases.branches, cases.split, cases.late):
    case()
report(cases.rank, **cases.results)
