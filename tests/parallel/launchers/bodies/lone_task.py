"""Make one step of a Trainer; with the argument ``init``, initialise Horovod first."""
import sys

import mxnet as mx
from mxnet import autograd, gluon

import mxhybrid

if 'init' in sys.argv:
    import horovod.mxnet as hvd

    hvd.init()
net = gluon.nn.Dense(1, in_units=1, use_bias=False)
net.initialize(mx.init.Zero())
store = mxhybrid.create()
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1.0}, kvstore=store)
with autograd.record():
    loss = net(mx.nd.ones((1, 1))).sum()
loss.backward()
trainer.step(store.num_workers)
print('rank %d of %d trained' % (store.rank, store.num_workers), flush=True)
