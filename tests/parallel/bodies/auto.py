"""Train a small model whose tables' partition counts are found on the way; report weights, counts and the plan."""
import argparse

import mxnet as mx
import numpy as np
from jobs import report
from mxnet import autograd, gluon

import mxhybrid

BATCH = 192


class Net(gluon.Block):
    """Tables of all three uses, one of which moves next to nothing, below enough work for steps to take a while."""

    def __init__(self, rows):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(rows, 16, prefix='words_')
            self.bins = gluon.nn.Embedding(rows // 2, 8, sparse_grad=True, prefix='bins_')
            self.days = gluon.nn.Embedding(7, 2, sparse_grad=True, prefix='days_')
            self.hidden = gluon.nn.Dense(600, in_units=26, prefix='hidden_', activation='tanh')
            self.more = gluon.nn.Dense(600, in_units=600, prefix='more_', activation='tanh')
            self.score = gluon.nn.Dense(1, in_units=600, prefix='score_')

    def forward(self, ids):
        """One number a sample."""
        tables = ((self.words, 3000), (self.bins, 1000), (self.days, 7))
        parts = [table(ids % rows).mean(axis=1) for table, rows in tables]
        return self.score(self.more(self.hidden(mx.nd.concat(*parts, dim=1))))


parser = argparse.ArgumentParser()
parser.add_argument('--steps', type=int)
parser.add_argument('--partitions')
parser.add_argument('--plan')
arguments = parser.parse_args()
store = mxhybrid.create(partitions=arguments.partitions, plan_file=arguments.plan)
net = Net(4000)
mx.random.seed(3)
net.initialize(mx.init.Uniform(0.1))
trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.01}, kvstore=store)
loss_of = gluon.loss.L2Loss()
random = np.random.RandomState(1)
first = None
for _ in range(arguments.steps):
    ids = random.randint(0, 4000, (BATCH, 6))
    share = ids[store.rank::store.num_workers]
    with autograd.record():
        loss = loss_of(net(mx.nd.array(share)), mx.nd.array(share.mean(axis=1) / 4000))
    loss.backward()
    trainer.step(BATCH)
    if first is None:
        first = {route.name: route.table.partitioning.count for route in store.backend.routes.values() if route.table}
counts = {route.name: route.table.partitioning.count for route in store.backend.routes.values() if route.table}
report(store.rank, first=first, counts=counts,
       weights={name: param._reduce().tostype('default').asnumpy() for name, param in net.collect_params().items()})
