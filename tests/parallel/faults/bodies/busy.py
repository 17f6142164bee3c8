"""Train while workers keep the interpreter lock in turn: ``busy.py computes|sleeps SECONDS RANK...``."""
import ctypes
import sys
import time

import mxnet as mx
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid  # noqa: F401
from tests.helpers.training_steps import make_step


def compute(seconds):
    """Compute for that long without ever giving the interpreter lock to another thread.

    A thread that waits for the lock gets it between two instructions of Python: here is one, all in C.
    """
    start = time.monotonic()
    any(map((start + seconds).__lt__, iter(time.monotonic, None)))
    return time.monotonic() - start


def sleep(seconds):
    """Do nothing for that long, and keep the interpreter lock."""
    ctypes.PyDLL(None).sleep(int(seconds))


how, seconds, ranks = sys.argv[1], float(sys.argv[2]), [int(rank) for rank in sys.argv[3:]]
store = mx.kv.create('hybrid')
net = nn.Sequential()
net.add(SparseEmbedding(100, 4), nn.Dense(2, in_units=12))
net.initialize(mx.init.One())
trainer = gluon.Trainer(net.collect_params(), 'adagrad', kvstore=store)
held = None
for step in range(len(ranks) + 1):
    if step and ranks[step - 1] == store.rank:
        print('worker', store.rank, how, flush=True)
        held = (compute if how == 'computes' else sleep)(seconds)
    make_step(trainer, 4 * store.num_workers, net, mx.nd.arange(12).reshape((4, 3)) + step)
    mx.nd.waitall()  # the next one begins when all have done this one
report(store.rank, held=held, weight=net[1].weight.data().asnumpy())
