"""Workers that make other calls than each other, so that all of them wait; the first argument says which."""
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


def main():
    store, what = mxhybrid.create(), sys.argv[1]
    if what == 'pushes':
        pushes(store)
    else:
        training(what, store.rank == 1)


if __name__ == '__main__':
    main()
