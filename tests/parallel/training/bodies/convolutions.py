"""Train convolutions, whose weights and gradients oneDNN may keep in layouts of its own.

args: the number of workers that one process stands for, else 0; ``store`` or ``worker``, which updates the weights.

Between steps the net is evaluated, after which MXNet keeps weights as oneDNN likes them. One process adds up the
gradients of the same parts of the batch that workers have: oneDNN takes another algorithm for a larger batch, on some
CPUs, and a maximum of four that nearly equal each other is another one then.
"""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid

STEPS, BATCH = 6, 8


def batch_of(step, rank):
    random = np.random.RandomState([step, rank])
    return random.normal(size=(BATCH, 3, 32, 32)).astype('f4'), random.randint(0, 10, BATCH)


joined, on_store = int(sys.argv[1]), sys.argv[2] == 'store'
mx.random.seed(5)
net = nn.HybridSequential()
net.add(nn.Conv2D(16, 3, activation='relu'), nn.Conv2D(64, 3, groups=2), nn.MaxPool2D(),
        nn.Conv2D(64, 3, padding=1), nn.Conv2D(128, 3, padding=1), nn.Dense(64, activation='relu'), nn.Dense(10))
net.initialize(mx.init.Xavier())
store = mxhybrid.create()
net(mx.nd.zeros((BATCH, 3, 32, 32)))  # shapes follow from it; it is under way when weights are broadcast
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.05, 'momentum': 0.9}, kvstore=store,
                        update_on_kvstore=on_store)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
ranks = range(joined) if joined else [store.rank]
workers = joined or store.num_workers
if joined:
    net.collect_params().setattr('grad_req', 'add')
for step in range(STEPS):
    if step == 1:
        net.hybridize(static_alloc=True, static_shape=True)
    for rank in ranks:
        data, label = map(mx.nd.array, batch_of(step, rank))
        if step:
            net(data)  # an evaluation, for which nobody waits
        with autograd.record():
            loss = loss_of(net(data), label)
        loss.backward()
    trainer.step(BATCH * workers)
    if joined:
        net.collect_params().zero_grad()
report(store.rank, weights={name: param.data().asnumpy() for name, param in sorted(
    net._collect_params_with_prefix().items())})
