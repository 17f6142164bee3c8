"""Train on the CPU, by explicit contexts, while the script works in ``with mx.gpu():``, where an array without an
explicit context would be. Without GPUs it would be an error, which names the operator that makes it.

The argument is a directory for files.
"""
import os
import sys
import tempfile

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from train import LOSS, Worker

import mxhybrid
from tests.helpers.training_steps import TwoTables, weights_of

ROWS, BATCH, STEPS = 30, 8, 8


def fit(worker, net, trainer):
    draw = np.random.RandomState(2)
    for _ in range(STEPS):
        ids, targets = (array[worker.rank::worker.size]
                        for array in (draw.randint(0, ROWS, BATCH), draw.rand(BATCH, 1)))
        with autograd.record():
            loss = LOSS(net(mx.nd.array(ids, ctx=mx.cpu())), mx.nd.array(targets, ctx=mx.cpu()))
        loss.backward()
        mxhybrid.prefetch(net.gradient.weight, ids)
        trainer.step(BATCH)


def train(worker, **options):
    """Train, save and load in each way, train on; return all weights."""
    net = TwoTables(ROWS, (3, 2), prefix='net_')
    net.initialize(mx.init.Constant(0.1), ctx=mx.cpu())
    trainer = gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1}, kvstore=worker.store(), **options)
    fit(worker, net, trainer)
    states, checkpoints = (os.path.join(worker.directory, name) for name in ('states', 'checkpoints'))
    trainer.save_states(states)
    trainer.load_states(states)
    if worker.hybrid:
        mxhybrid.checkpoint.save(checkpoints, net, trainer, STEPS)
        mxhybrid.checkpoint.load(checkpoints, net, trainer)
    fit(worker, net, trainer)
    return weights_of(net)


errors = {}
with tempfile.TemporaryDirectory() as directory:
    expected = train(Worker('device', directory=directory), update_on_kvstore=True)
with mx.gpu(0):
    for name, options in (('worker', {}), ('store', {'update_on_kvstore': True})):
        worker = Worker('hybrid', directory=os.path.join(sys.argv[1], name))
        os.makedirs(worker.directory, exist_ok=True)
        weights = train(worker, **options)
        errors[name] = max(float(abs(weights[param] - expected[param]).max()) for param in expected)
mx.nd.waitall()
report(worker.rank, errors=errors)
