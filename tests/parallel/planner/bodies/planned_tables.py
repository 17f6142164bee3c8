"""A network with a table, trained by plans that choose the route of its rows, compared with one process; args: a
folder, and 'auto' for a plan that is searched for on the folder's cluster.

Reports for each plan the worst error, the route and the partitions; and errors of bad plans.
"""
import json
import os
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.job.join import current
from tests.helpers.outcomes import error_of

ROWS, WIDTH, BATCH, LENGTH, STEPS = 40, 8, 8, 3, 6
TABLE = 'embedding0_weight'
PLANS = {
    'servers': ({TABLE: {'route': 'servers', 'partitions': 3}}, {}),
    'allreduce': ({TABLE: {'route': 'allreduce'}}, {}),
    'left out': (None, {}),
    'overruled': ({TABLE: {'route': 'allreduce'}}, {'routes': 'servers', 'partitions': '*other*=5,*embed*=1'}),
    'overruled in part': ({TABLE: {'route': 'servers', 'partitions': 3}}, {'partitions': '*embed*=4'}),
}
#: MXNet cannot run an Embedding of float64 by itself, as the planner does to time it.
DTYPE = 'float32' if sys.argv[2:] == ['auto'] else 'float64'


def build():
    mx.random.seed(3)
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Embedding(ROWS, WIDTH, sparse_grad=True), nn.Flatten(),
                nn.Dense(16, activation='tanh', in_units=LENGTH * WIDTH), nn.Dense(2, in_units=16))
    net.cast(DTYPE)
    net.initialize(mx.init.Uniform(0.5))
    return net


def train(net, store, samples):
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.3}, kvstore=store)
    draw = np.random.RandomState(1)
    for _ in range(STEPS):
        ids = mx.nd.array(draw.randint(0, ROWS, (BATCH, LENGTH))[samples], dtype=DTYPE)
        with autograd.record():
            loss = (net(ids) ** 2).sum(axis=1)
        loss.backward()
        trainer.step(BATCH)
    mx.nd.waitall()
    return trainer


def values(net):
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


def split(path, tables):
    """Split the network by data parallelism, with the routes of a plan file."""
    with open(path, 'w') as file:
        json.dump({'format': 'mxhybrid.parallel 2', 'plan': 'data_parallel', **({'tables': tables} if tables else {})},
                  file)
    return mxhybrid.parallelize(build(), path, (BATCH, LENGTH), dtype=DTYPE)


def trained(plan, settings, expected, **options):
    net = mxhybrid.parallelize(build(), plan, (BATCH, LENGTH), dtype=DTYPE, **options)
    trainer = train(net, mxhybrid.create(**settings) if settings else 'hybrid', net.samples)
    route = next(one for one in trainer._kvstore.backend.routes.values() if one.name.endswith(TABLE))
    worst = max(float(np.abs(value - expected[name]).max()) for name, value in values(net).items())
    return {'worst': worst, 'route': route.kind, 'partitions': route.partitioning and route.partitioning.count,
            'layout_table': repr(net)}


def main():
    path = os.path.join(sys.argv[1], '%d.json' % os.getpid())
    alone = build()
    train(alone, None, slice(None))
    if sys.argv[2:] == ['auto']:
        outcome = trained('auto', {}, values(alone), cluster=os.path.join(sys.argv[1], 'cluster.json'),
                          search_seconds=1)
        report(current().rank, outcomes={'auto': outcome})
        return
    outcomes = {}
    for name, (tables, settings) in PLANS.items():
        split(path, tables).save_plan(path)
        outcomes[name] = trained(path, settings, values(alone))
    errors = [error_of(split, path, tables) for tables in ({'dense0_weight': {'route': 'servers'}},
                                                           {TABLE: {'route': 'servers', 'partitions': 0}})]
    report(current().rank, outcomes=outcomes, errors=errors)


main()
