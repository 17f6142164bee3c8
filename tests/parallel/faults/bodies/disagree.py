"""Workers that differ in what they should have in common; the first argument says in what."""
import os
import sys

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid  # noqa: F401


def main():
    what, odd = sys.argv[1], os.environ.get('HOROVOD_RANK') == '1'
    if what == 'settings' and odd:
        os.environ['MXHYBRID_PARTITIONS'] = '3'
    if what in ('partitions', 'routes', 'own_rows', 'wrong'):
        mxhybrid.create()
        mxhybrid.create(partitions=2)
        value = {'partitions': {'layer*': 3 if odd else 2}, 'routes': 'servers' if odd else 'auto',
                 'own_rows': not odd, 'wrong': 2}
        mxhybrid.create(**{what if what != 'wrong' else 'partitions': 0 if what == 'wrong' and odd else value[what]})
    if what == 'calls':
        kv = mx.kv.create('hybrid')
        kv._barrier() if odd else kv.init(1, mx.nd.ones(3))
    net = nn.Sequential()
    with net.name_scope():
        net.add(nn.Dense(3 if what == 'shape' and odd else 2, in_units=4, prefix='other_' if what == 'name' and odd
                         else 'layer_'))
        if what == 'number' and odd:
            net.add(nn.Dense(2, in_units=2))
        if what == 'deferred':
            net.add(nn.Dense(5 if odd else 2))
            net.add(nn.Dense(2))
    net.initialize(ctx=mx.cpu_pinned() if what == 'device' and odd else mx.cpu())
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    for step in range(3 if what == 'steps' and odd else 2):
        with autograd.record():
            loss = net(mx.nd.ones((1, 4))).sum()
        loss.backward()
        trainer.step(1)
        loss.asscalar()
        print('step', step, flush=True)


if __name__ == '__main__':
    main()
