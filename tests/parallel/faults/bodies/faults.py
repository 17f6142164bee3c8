"""Train for long, printing each step, and fail as the arguments say: ``faults.py [rank fault step]``.

The rank -1 stands for all workers.
"""
import os
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid  # noqa: F401
from tests.helpers.training_steps import make_step


def fail(fault):
    """Fail in one of several ways."""
    if fault == 'raise':
        raise ValueError('deliberately wrong, ' + 'with many words, ' * 20 + 'at last')
    if fault == 'exit':
        sys.exit(3)
    if fault in ('leave', 'vanish'):
        os._exit(4 if fault == 'leave' else 0)
    if fault == 'server':
        # A command that the servers' code cannot carry out: it must not be swallowed.
        store.backend._servers.command('mode', keys=[12345], mode='optimize')


rank, kind, step_of_fault = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if kind == 'early' and os.environ.get('HOROVOD_RANK', os.environ.get('DMLC_TASK_ID')) == str(rank):
    raise ValueError('deliberately early')
store = mx.kv.create('hybrid')
net = nn.Sequential()
net.add(SparseEmbedding(100, 4), nn.Dense(2))
net.initialize()
trainer = gluon.Trainer(net.collect_params(), 'adagrad', kvstore=store)
for step in range(600):
    if step == step_of_fault and rank in (store.rank, -1):
        fail(kind)
    make_step(trainer, 4 * store.num_workers, net, mx.nd.array(np.random.randint(0, 100, (4, 3)))).asscalar()
    if store.rank == 0:
        print('step', step, flush=True)
    time.sleep(0.05)
