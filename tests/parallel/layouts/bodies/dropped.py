"""Makes split networks, trains them, and drops them without forget(); args: none."""
import gc
import threading
import time

import mxnet as mx
from lab.reports import report
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from mxhybrid.job.join import member
from mxhybrid.parallel.redistribution import redistribution_operator
from mxhybrid.parallel.redistribution.worker_group import worker_group_of
from mxhybrid.parallel.runtime import recomputed_operator
from mxhybrid.parallel.runtime.dropped_networks import release_dropped

#: Plans, with whether a layer is computed again in the backward pass.
PLANS = [(parallel.grid(model=2), False), (parallel.grid(model=2), True),
         (parallel.pipeline(2, 2, 'gpipe'), True), (parallel.pipeline(2, 2, '1f1b'), False)]


def train(number):
    """Make a network and train it for a step; return the gradients of its backward pass, which begins after the
    network is dropped in one of two cases.
    """
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        for layer in range(3):
            net.add(nn.Dense(8, in_units=8, activation='tanh', prefix='dense%d_' % layer))
    net.initialize(mx.init.Constant(0.125))
    plan, recompute = PLANS[number % len(PLANS)]
    split = mxhybrid.parallelize(net, plan, (4, 8), **({'recompute': ['dense1']} if recompute else {}))
    params = list(split.collect_params().values())
    data = mx.nd.arange(16).reshape((2, 8)) / 16
    with autograd.record():
        loss = split(data)
    if number // len(PLANS) % 2:
        del split, net
    loss.backward()
    return [param.grad() for param in params if param.shape != (1,)]


def counts():
    """Return the numbers of what networks have: redistributions, their transfers, segments, and threads."""
    transport = worker_group_of(member({})).transport
    redistributions = list(redistribution_operator._redistributions.values())
    tags = {transfer.tag for node in redistributions
            for transfer in (node.redistribution.forward, node.redistribution.backward)}
    threads = [thread for thread in threading.enumerate()
               if thread.name in ('mxhybrid-segment', 'mxhybrid-again', 'mxhybrid-backward')]
    return [len(redistributions), len(tags & set(transport._persistent)), len(recomputed_operator._segments),
            len(threads)]


def left(before):
    """Return by how much these numbers are above `before`, once none is, or after a minute: threads end a little later
    than their last call, and cycles of objects are collected.
    """
    deadline = time.monotonic() + 60
    while any(count > former for count, former in zip(counts(), before)) and time.monotonic() < deadline:
        gc.collect()
        release_dropped()
    return [max(0, count - former) for count, former in zip(counts(), before)]


store = mxhybrid.create()
before, most = counts(), 0
same, expected = [], {}
for number in range(16):
    gradients = [gradient.asnumpy().tolist() for gradient in train(number)]
    same.append(gradients == expected.setdefault(number % len(PLANS), gradients))
    most = max(most, counts()[0] - before[0])
report(store.rank, same=same, made=most > 0, left=left(before))
