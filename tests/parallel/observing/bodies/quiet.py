"""Training on which MXNet, or every worker, would have something to say: see ``test_quiet.py``."""
import sys

import mxnet as mx
import numpy as np
from mxnet import gluon

import mxhybrid
from tests.helpers.training_steps import TwoTables, make_step

ROWS, WIDTH, BATCH, STEPS = 20000, 16, 12, 11  # 1.3 MB: the route is measured


def train(net, trainer, rank):
    """Make steps whose rows nobody could ask for ahead: they are twice those of the batch."""
    random = np.random.RandomState(rank)
    batches = [mx.nd.array(random.randint(0, ROWS // 2, BATCH)) for _ in range(STEPS)]
    for batch in mxhybrid.prefetching(batches, net):
        make_step(trainer, BATCH, net, 2 * batch)


for number, (optimizer, options) in enumerate([('sgd', {'momentum': 0.9, 'wd': 1e-4}),  # lazily
                                               ('rmsprop', {})]):  # on dense copies
    net = TwoTables(ROWS, (WIDTH, WIDTH), prefix='net_')
    net.initialize(mx.init.Uniform(0.1))
    store = mxhybrid.create()
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options, learning_rate=0.01), kvstore=store)
    train(net, trainer, store.rank)
    if number == 0:
        mxhybrid.checkpoint.save(sys.argv[1], net, trainer, STEPS)
        trainer.set_learning_rate(0.02)
        mxhybrid.checkpoint.load(sys.argv[1], net, trainer)
