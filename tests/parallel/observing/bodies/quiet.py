"""Training on which MXNet, or every worker, would have something to say: see ``test_quiet.py``."""
import sys

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from tests.helpers.training_steps import make_step

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


def train(net, trainer, rank):
    """Make steps whose rows nobody could ask for ahead: they are twice those of the batch."""
    random = np.random.RandomState(rank)
    batches = [mx.nd.array(random.randint(0, ROWS // 2, BATCH)) for _ in range(STEPS)]
    for batch in mxhybrid.prefetching(batches, net):
        make_step(trainer, BATCH, net, 2 * batch)


for number, (optimizer, options) in enumerate([('sgd', {'momentum': 0.9, 'wd': 1e-4}),  # lazily
                                               ('rmsprop', {})]):  # on dense copies
    net = Net()
    net.initialize(mx.init.Uniform(0.1))
    store = mxhybrid.create()
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options, learning_rate=0.01), kvstore=store)
    train(net, trainer, store.rank)
    if number == 0:
        mxhybrid.checkpoint.save(sys.argv[1], net, trainer, STEPS)
        trainer.set_learning_rate(0.02)
        mxhybrid.checkpoint.load(sys.argv[1], net, trainer)
