"""Trains a network by the plan that a search finds, and compares it with one process; args: the cluster file.

Reports how far weights are from those of one process, the plan, errors of bad calls, and random draws after searches.
"""
import dataclasses
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.planner.cluster.cluster_spec import load
from tests.helpers.outcomes import error_of

BATCH, INPUTS, STEPS = 8, 256, 3


def build():
    mx.random.seed(3)
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Dense(1024, activation='relu', in_units=INPUTS), nn.Dense(1024, activation='relu', in_units=1024),
                nn.Dense(8, in_units=1024))
    net.cast('float64')
    net.initialize(mx.init.Xavier())
    return net


def train(net, store, samples):
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9}, kvstore=store)
    draw = np.random.RandomState(1)
    for _ in range(STEPS):
        data = mx.nd.array(draw.normal(size=(BATCH, INPUTS))[samples], dtype='float64')
        with autograd.record():
            loss = (net(data) ** 2).sum(axis=1)
        loss.backward()
        trainer.step(BATCH)


def message(plan='auto', **settings):
    return error_of(mxhybrid.parallelize, build(), plan, (BATCH, INPUTS), dtype='float64', **settings)


def main():
    path = sys.argv[1]
    alone = build()
    train(alone, None, slice(None))
    store = mxhybrid.create()
    there = load(path)
    errors = [message(), message(cluster='/nowhere/cluster.json'),
              message(cluster=dataclasses.replace(there, hosts=there.hosts * 2)),
              message(cluster=path, batch_norm='local'), message(cluster=5),
              message(cluster=path, search_seconds=3 if store.rank else -1),
              # One worker has a plan and another one has none.
              message(cluster=path) if store.rank == 0 else message(mxhybrid.parallel.data_parallel())]
    net = mxhybrid.parallelize(build(), 'auto', (BATCH, INPUTS), dtype='float64', cluster=path, search_seconds=3)
    draws = [mx.nd.random.uniform(shape=4).asnumpy().tolist()]
    train(net, store, net.samples)
    expected = {name: param.data().asnumpy() for name, param in alone.collect_params().items()}
    net.save_parameters('%s.params' % path)
    found = mx.nd.load('%s.params' % path)
    apart = max(float(np.abs(found[place].asnumpy() - expected[param.name]).max() / np.abs(expected[param.name]).max())
                for place, param in alone._collect_params_with_prefix().items())
    # The second time nothing is timed any more.
    mxhybrid.parallelize(build(), 'auto', (BATCH, INPUTS), dtype='float64', cluster=path, search_seconds=1)
    draws.append(mx.nd.random.uniform(shape=4).asnumpy().tolist())
    report(store.rank, draws=draws, errors=errors, apart=apart, plan=repr(net).split('\n')[0])


main()
