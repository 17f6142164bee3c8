"""Train with dynamic tables in files until the job fails: ``dynamic_tables.py what directory``.

delta
    A checkpoint, then deltas with many rows, one after the other.
churn
    A checkpoint, then steps in which one table grows, and rows of another one expire.
full
    Steps in which a table grows until its disk is full.
refused
    Steps and checkpoints until one is refused, and further steps: the only training that ends well.
"""
import sys

import mxnet as mx
import numpy as np
from mxnet import gluon

import mxhybrid
from tests.helpers.training_steps import make_step

WIDTH = 64
fault, directory = sys.argv[1:]


class Net(gluon.Block):
    """A table that grows, and one whose rows expire."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.users = mxhybrid.nn.HashEmbedding(WIDTH, prefix='users_')
            self.words = mxhybrid.nn.HashEmbedding(WIDTH, capacity=4000, expire_after=3, prefix='words_')

    def forward(self, keys):
        return self.users(keys) * self.words(keys % 1000)


store = mx.kv.create('hybrid')
net = Net()
net.initialize()
trainer = gluon.Trainer(net.collect_params(), 'adagrad', {'learning_rate': 0.1}, kvstore=store)


def train(step, rows):
    """Make a step with new keys."""
    keys = np.arange(rows, dtype=np.int64) + (step * store.num_workers + store.rank) * rows
    make_step(trainer, 1, net, keys)
    if store.rank == 0:
        print('step', step, flush=True)


rows = {'delta': 50000, 'churn': 900, 'full': 900, 'refused': 900}[fault]
for step in range(2):
    train(step, rows)
if fault != 'full':
    mxhybrid.checkpoint.save(directory, net, trainer, 2)
for step in range(2, 10 ** 6):
    train(step, rows)
    if fault == 'refused':
        try:
            mxhybrid.checkpoint.save(directory, net, trainer, step + 1, keep=10 ** 6)
        except mxhybrid.CheckpointError as error:
            print('worker %d: %s' % (store.rank, error), flush=True)
            train(step + 1, rows)
            break
    if fault == 'delta':
        mxhybrid.checkpoint.save(directory, net, trainer, step + 1, delta=True)
