"""Make other calls on each worker, so that all of them wait; the argument selects the calls."""
import contextlib
import sys

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel

STEPS = 3


def network():
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Dense(8, in_units=4), nn.Dense(2, in_units=8))
    net.initialize()
    return mxhybrid.parallelize(net, parallel.grid(model=2), (4, 4))


def pushes(store):
    """Sum another key on each worker."""
    for key in (1, 2):
        store.init(key, mx.nd.zeros(4))
    mine, out = 1 + store.rank, mx.nd.zeros(4)
    store.push(mine, mx.nd.ones(4))
    store.pull(mine, out)
    out.asnumpy()


def training(mistake, odd):
    net = network()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore='hybrid')
    data = mx.nd.ones((4, 4))[net.samples]
    for step in range(STEPS):
        last = step == STEPS - 1
        with autograd.record():
            output = net(data)
        if mistake == 'a call more' and odd and step == 1:
            net(data)
        if mistake != 'no backward' or not (odd and last):
            output.backward()
        if mistake != 'no step' or not (odd and last):
            trainer.step(4, ignore_stale_grad=mistake == 'no backward')
    mx.nd.waitall()


class Failing(gluon.HybridBlock):
    """A network with an operator that fails if its matrices are negative, before redistributions."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first = nn.Dense(4, in_units=4, flatten=False, prefix='first_')

    def hybrid_forward(self, F, x):
        return self.first(self.first(x + F.linalg.potrf(x)))


def caught_error(fails):
    """Catch the error of an operator, and split a network, while the other worker waits for data of the operator."""
    net = Failing()
    net.initialize()
    net = mxhybrid.parallelize(net, parallel.grid(model=2), (4, 4, 4))
    with contextlib.suppress(mx.base.MXNetError):
        net(mx.nd.eye(4).reshape((1, 4, 4)).tile((2, 1, 1)) * (-1 if fails else 1)).asnumpy()
    network()


store, what = mxhybrid.create(), sys.argv[1]
if what == 'pushes':
    pushes(store)
elif what == 'an error':
    caught_error(store.rank == 0)
else:
    training(what, store.rank == 1)
