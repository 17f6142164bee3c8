"""Training on which MXNet, or every worker, would have something to say: see ``test_quiet.py``."""
import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

ROWS, WIDTH, BATCH, STEPS = 20000, 16, 12, 11  # 1.3 MB: the route is measured


class Net(gluon.Block):
    """A table of each kind and a dense layer."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.weight = SparseEmbedding(ROWS, WIDTH, prefix='weight_')
            self.gradient = nn.Embedding(ROWS, WIDTH, sparse_grad=True, prefix='gradient_')
            self.out = nn.Dense(1, in_units=2 * WIDTH, prefix='out_')

    def forward(self, ids):
        return self.out(mx.nd.concat(self.weight(ids), self.gradient(ids), dim=1))


def batches(rank):
    """Row ids of a worker's batches, wrapped so that nobody finds them there."""
    random = np.random.RandomState(rank)
    return [random.randint(0, ROWS // 2, BATCH) for _ in range(STEPS)]


def train(net, trainer, rank):
    """Steps whose rows nobody could ask for ahead: they are twice those of the batch."""
    for batch in mxhybrid.prefetching([mx.nd.array(ids) for ids in batches(rank)], net):
        with autograd.record():
            loss = net(2 * batch).sum()
        loss.backward()
        trainer.step(BATCH)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('directory')
    directory = parser.parse_args().directory
    for number, (optimizer, options) in enumerate([('sgd', {'momentum': 0.9, 'wd': 1e-4}),  # lazily
                                                   ('rmsprop', {})]):  # on dense copies
        net = Net()
        net.initialize(mx.init.Uniform(0.1))
        store = mxhybrid.create()
        trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options, learning_rate=0.01), kvstore=store)
        train(net, trainer, store.rank)
        if number == 0:
            mxhybrid.checkpoint.save(directory, net, trainer, STEPS)
            trainer.set_learning_rate(0.02)
            mxhybrid.checkpoint.load(directory, net, trainer)


if __name__ == '__main__':
    main()
