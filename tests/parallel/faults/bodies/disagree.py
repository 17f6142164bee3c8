"""Let worker 1 differ from worker 0 in one thing that must be equal; each argument names a difference.

An error of mxhybrid is caught and reported, by the name of the case, with the seconds that the case took, but in the
last case.
"""
import os
import sys
import time

import mxnet as mx
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from tests.helpers.outcomes import error_of
from tests.helpers.training_steps import make_step


def make_stores(case, odd):
    """Make stores, the last one with other settings on worker 1."""
    mxhybrid.create()
    mxhybrid.create(partitions=2)
    settings = {'partitions': {'partitions': {'layer*': 3 if odd else 2}},
                'on_demand_rows': {'on_demand_rows': not odd}, 'wrong': {'partitions': 0 if odd else 2}}
    mxhybrid.create(**settings[case])


def network(case, odd):
    """A network, which is another one on worker 1."""
    net = nn.Sequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Dense(3 if case == 'shape' and odd else 2, in_units=4,
                         prefix='other_' if case == 'name' and odd else 'layer_'))
        if case == 'number' and odd:
            net.add(nn.Dense(2, in_units=2))
        if case == 'deferred':
            net.add(nn.Dense(5 if odd else 2))
            net.add(nn.Dense(2))
    net.initialize(ctx=mx.cpu_pinned() if case == 'device' and odd else mx.cpu())
    return net


def run(case, odd):
    """Make the call about which the workers disagree; train if nothing was refused before."""
    if case == 'settings' and odd:
        os.environ['MXHYBRID_PARTITIONS'] = '3'
    if case in ('partitions', 'on_demand_rows', 'wrong'):
        make_stores(case, odd)
    if case == 'calls':
        store = mx.kv.create('hybrid')
        store._barrier() if odd else store.init(1, mx.nd.ones(3))
    net = network(case, odd)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    for step in range(3 if case == 'steps' and odd else 2):
        make_step(trainer, 1, net, mx.nd.ones((1, 4))).asscalar()
        print('%s: step %d' % (case, step), flush=True)


rank = int(os.environ['HOROVOD_RANK'])
*caught, last = sys.argv[1:]
for case in caught:
    began = time.monotonic()
    said = error_of(run, case, rank == 1)
    report(rank, **{case: said, case + ' seconds': time.monotonic() - began})
run(last, rank == 1)
