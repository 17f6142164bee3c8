"""Networks whose values differ between workers when they are made, by ``first_values.py [--kvstore device]``.

Each case reports the weights after one step and after three, to be compared with worker 0's network in one process.
"""
import argparse
import os
import tempfile

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

ROWS, BATCH, LATE = 12, 8, 3.0


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
    """Return the cases: networks whose random values depend on the rank, and calls of the script before it trains."""

    def __init__(self, kvstore):
        self.kvstore, self.alone = kvstore, kvstore != 'hybrid'
        store = None if self.alone else mxhybrid.create()
        self.rank, self.size = (0, 1) if store is None else (store.rank, store.num_workers)
        self.results = {}

    def start(self, net, ctx=None):
        """Initialise a network, on each worker in another way."""
        mx.random.seed(1 + self.rank)
        net.initialize(mx.init.Uniform(0.5), ctx=ctx)
        return net

    def trainer(self, net, **keywords):
        return gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5, 'momentum': 0.9},
                             kvstore=self.kvstore, **keywords)

    def batch(self, step):
        return np.random.RandomState(step).randint(0, ROWS, (BATCH, 3))

    def fit(self, case, net, trainer, devices=None, take=None, ignore_stale_grad=False):
        """Three steps."""
        for step in range(3):
            ids = self.batch(step)[self.rank::self.size]
            shares = [mx.nd.array(ids)] if devices is None else gluon.utils.split_and_load(ids, devices)
            if take is not None:
                shares = [take(share) for share in shares]
            with autograd.record():
                losses = [(net(share) ** 2).sum() for share in shares]
            autograd.backward(losses)
            trainer.step(BATCH, ignore_stale_grad)
            if step in (0, 2):
                self.results['%s, step %d' % (case, step)] = {
                    str(place): param._reduce().tostype('default').asnumpy()
                    for place, param in enumerate(net.collect_params().values())}

    def initialised(self):
        net = self.start(Net())
        self.fit('initialised', net, self.trainer(net))

    def deferred(self):
        net = self.start(Net(deferred=True))
        self.fit('deferred', net, self.trainer(net))

    def hybridized(self):
        net = self.start(Net(deferred=True))
        net.hybridize(static_alloc=True)
        self.fit('hybridized', net, self.trainer(net, update_on_kvstore=True))

    def tables(self):
        net = self.start(TableNet())
        self.fit('tables', net, self.trainer(net))

    def devices(self):
        devices = [mx.cpu(0), mx.cpu(1)]
        net = self.start(Net(deferred=True), devices)
        self.fit('devices', net, self.trainer(net), devices)

    def looks_before(self):
        """Worker 0 alone has made a forward pass before the Trainer is made."""
        net = self.start(Net(deferred=True))
        if self.rank == 0:
            net(mx.nd.array(self.batch(0))).wait_to_read()
        self.fit('looks before', net, self.trainer(net))

    def looks_after(self):
        """Worker 0 alone makes a forward pass after the Trainer was made, and all meet before they train."""
        net = self.start(Net(deferred=True))
        trainer = self.trainer(net)
        if self.rank == 0:
            net(mx.nd.array(self.batch(0))).wait_to_read()
            mx.nd.waitall()
        if not self.alone:
            mxhybrid.create()._barrier()
        self.fit('looks after', net, trainer)

    def others_look(self):
        """Worker 1 alone makes a forward pass."""
        net = self.start(Net(deferred=True))
        if self.rank == 1:
            net(mx.nd.array(self.batch(0))).wait_to_read()
        self.fit('others look', net, self.trainer(net))

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
        """A layer that only worker 0 uses in the first step."""
        for rank, name in ((0, 'only worker 0'), (1, 'only worker 1')):
            net = self.start(Net())
            if not self.alone and self.rank != rank:
                net.uses_more = False
            if self.alone:  # a worker's share goes the way that it goes there
                net.hybrid_forward = lambda F, x, net=net, rank=rank: _by_shares(net, x, rank)
            self.fit(name, net, self.trainer(net), ignore_stale_grad=True)

    def split(self):
        """A network that is split, where MXNet alone has the plain one."""
        net = self.start(layers(3, 5))
        if not self.alone:
            net = mxhybrid.parallelize(net, mxhybrid.parallel.data_parallel(), data=(BATCH, 3))
        trainer = self.trainer(net)
        for step in range(3):
            x = mx.nd.array(self.batch(step)) / ROWS
            with autograd.record():
                loss = (net(x if self.alone else x[net.samples]) ** 2).sum()
            loss.backward()
            trainer.step(BATCH)
            if step == 0:
                x = mx.nd.array(self.batch(9)) / ROWS
                out = net(x if self.alone else x[net.samples])
                self.results['split, step 0'] = {'sum': self.total(out)}

    def total(self, out):
        """The sum over all workers."""
        array = out.sum()
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
        with autograd.record():
            loss = (net(mx.nd.array(self.batch(0))) ** 2).sum()
        loss.backward()
        trainer.step(BATCH)


def _by_shares(net, x, rank):
    hidden = net.hidden(net.words(x).mean(axis=1))
    mine = mx.nd.array(np.arange(len(x)) % 2 == rank).expand_dims(1)
    return net.out(mine * net.more(hidden) + (1 - mine) * hidden)


parser = argparse.ArgumentParser()
parser.add_argument('--kvstore', default='hybrid')
cases = Cases(parser.parse_args().kvstore)
for case in (cases.initialised, cases.deferred, cases.hybridized, cases.tables, cases.devices, cases.looks_before,
             cases.looks_after, cases.others_look, cases.loads, cases.branches, cases.split, cases.late):
    case()
report(cases.rank, **cases.results)
