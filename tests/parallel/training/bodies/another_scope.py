"""Trains on the CPU, by explicit contexts, while the script works in ``with mx.gpu():``, where an array without an
explicit context would be. Without GPUs it would be an error, which names the operator that makes it.
"""
import os
import tempfile

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid

ROWS, BATCH, STEPS = 30, 8, 8


class Net(gluon.Block):
    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(ROWS, 3, prefix='words_')
            self.bins = nn.Embedding(ROWS, 2, sparse_grad=True, prefix='bins_')
            self.score = nn.Dense(1, prefix='score_')

    def forward(self, ids):
        return self.score(mx.nd.concat(self.words(ids), self.bins(ids), dim=1))


def fit(net, trainer, rank, workers):
    draw = np.random.RandomState(2)
    for _ in range(STEPS):
        ids, targets = draw.randint(0, ROWS, BATCH)[rank::workers], draw.rand(BATCH, 1)[rank::workers]
        with autograd.record():
            output = net(mx.nd.array(ids, ctx=mx.cpu()))
            loss = gluon.loss.L2Loss()(output, mx.nd.array(targets, ctx=mx.cpu()))
        loss.backward()
        mxhybrid.prefetch(net.bins.weight, ids)
        trainer.step(BATCH)


def train(directory, on_store, kvstore):
    """Train, save and load in each way, train on; returns all weights."""
    store = mxhybrid.create() if kvstore == 'hybrid' else kvstore
    rank, workers = (store.rank, store.num_workers) if kvstore == 'hybrid' else (0, 1)
    net = Net()
    net.initialize(mx.init.Constant(0.1), ctx=mx.cpu())
    options = {'update_on_kvstore': True} if on_store else {}
    trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1}, kvstore=store, **options)
    fit(net, trainer, rank, workers)
    states = os.path.join(directory, 'states')
    trainer.save_states(states)
    trainer.load_states(states)
    if kvstore == 'hybrid':
        mxhybrid.checkpoint.save(os.path.join(directory, 'checkpoints'), net, trainer, STEPS)
        mxhybrid.checkpoint.load(os.path.join(directory, 'checkpoints'), net, trainer)
    fit(net, trainer, rank, workers)
    return rank, {name: param._reduce().tostype('default').asnumpy() for name, param in net.collect_params().items()}


def main():
    _, expected = train(tempfile.mkdtemp(), True, 'device')
    directory = os.environ['SCOPE_DIRECTORY']
    with mx.gpu(0):
        for on_store in (False, True):
            rank, found = train(os.path.join(directory, str(on_store)), on_store, 'hybrid')
            report(rank, **{'error %s' % on_store: max(float(abs(found[name] - expected[name]).max())
                                                      for name in expected)})
    mx.nd.waitall()


if __name__ == '__main__':
    main()
