"""Train a few steps with all three routes; report the pushed rows, so that a trace can be compared."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

STEPS = 6

store = mxhybrid.create(partitions=3)
net = nn.Sequential(prefix='net_')
with net.name_scope():
    net.add(SparseEmbedding(40, 4, prefix='words_'), nn.Dense(2, in_units=12, prefix='out_'))
bins = nn.Embedding(20, 2, sparse_grad=True, prefix='bins_')
net.initialize()
bins.initialize()
params = net.collect_params()
params.update(bins.collect_params())
trainer = gluon.Trainer(params, 'adagrad', kvstore=store)
random = np.random.RandomState(store.rank)
for _ in range(STEPS):
    ids = mx.nd.array(random.randint(0, 40, (4, 3)))
    with autograd.record():
        loss = net(ids).sum() + bins(ids % 20).sum()
    loss.backward()
    trainer.step(4 * store.num_workers)
mx.nd.waitall()
report(store.rank, traffic={route.name: [route.kind, route.traffic.rows, route.traffic.pushed, route.traffic.pulled]
                            for route in store.backend.routes.values()})
