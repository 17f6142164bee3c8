"""A recommender of a table on servers, a dense one, and a split network that reads both, and one process."""
import zlib

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.kvstore.weight_shards import shard_of
from tests.helpers.gluon_nets import Net, step, trainer_of

USERS, ITEMS, WIDTH, BATCH, STEPS = 50, 30, 8, 12, 5


class Recommender(gluon.Block):
    def __init__(self, deep):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.users = gluon.contrib.nn.SparseEmbedding(USERS, WIDTH, prefix='users_')
            self.items = nn.Embedding(ITEMS, WIDTH, sparse_grad=True, prefix='items_')
        self.deep = deep

    def forward(self, users, items):
        return self.deep(mx.nd.concat(self.users(users), self.items(items), dim=1))


def train(net, kvstore, share):
    trainer = trainer_of(net, kvstore=kvstore, learning_rate=0.5)
    draw = np.random.RandomState(3)
    for _ in range(STEPS):
        users, items = (mx.nd.array(draw.randint(0, count, BATCH)[share]) for count in (USERS, ITEMS))
        scores = mx.nd.array(draw.uniform(-1, 1, (BATCH, 1))[share], dtype='float64')
        step(trainer, lambda users=users, items=items, scores=scores: gluon.loss.L2Loss()(net(users, items), scores),
             BATCH)
    mx.nd.waitall()


def build(split):
    """Return tables and the network after them, split or not, with values that depend on names alone."""
    net = Recommender(Net(lambda: [nn.Dense(16, in_units=2 * WIDTH, activation='tanh'), nn.Dense(1, in_units=16)],
                          prefix='deep_'))
    net.cast('float64')
    for name, param in net.collect_params().items():
        mx.random.seed(zlib.crc32(name.encode()) % 2 ** 31)
        param.initialize(mx.init.Uniform(0.5))
    deep = split(net.deep)
    del net.deep  # as docs/parallel.md advises: Gluon refuses to replace a Block by one of another class
    net.deep = deep
    return net


def values(net):
    """Return all values of parameters by name."""
    return {name: (param.row_sparse_data(mx.nd.arange(param.shape[0])) if param._stype == 'row_sparse' else
                   param.data()).asnumpy() for name, param in net.collect_params().items()}


alone = build(lambda deep: deep)
train(alone, 'local', slice(None))
expected = values(alone)
store = mxhybrid.create()
net = build(lambda deep: mxhybrid.parallelize(
    deep, mxhybrid.parallel.grid(model=2, batch=store.num_workers // 2), (BATCH, 2 * WIDTH), dtype='float64',
    input_grad=True))
train(net, store, net.deep.samples)
worst, parts = 0.0, 0
for (name, param), value in zip(net.collect_params().items(), values(net).values()):
    part, whole = shard_of(param), expected[name]
    parts += part is not None
    if part is not None and part.box is None:
        continue
    mine = whole if part is None else whole[tuple(slice(*one) for one in part.box)]
    worst = max(worst, float(np.abs(mine - value).max()))
report(store.rank, worst=worst, parts=parts, report_line=store.report().split('\n')[-2])
