"""Makes split networks, trains them, and drops them without release(); args: none."""
import gc
import threading
import time
import weakref

import mxnet as mx
from lab.reports import report
from lab.split_memory import Peak
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from mxhybrid.job.join import member
from mxhybrid.native import custom_operators
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator
from mxhybrid.parallel.redistribution.worker_group import worker_group_of
from mxhybrid.parallel.runtime import engine_threads
from mxhybrid.parallel.runtime.dropped_networks import release_dropped
from tests.helpers.gluon_nets import Net, initialised

#: Plans, with whether a layer is computed again in the backward pass.
PLANS = [(parallel.grid(model=2), False), (parallel.grid(model=2), True), (parallel.data_parallel(), True),
         (parallel.pipeline(2, 2, 'gpipe'), True), (parallel.pipeline(2, 2, '1f1b'), False)]
#: Ways to use a network: its backward pass comes before the network is dropped, after that, or never, also if another
#: call follows.
WAYS = ['trained', 'dropped first', 'abandoned', 'abandoned and trained']


def dense_layers(units, *initializer):
    return initialised(Net(lambda: [nn.Dense(units, in_units=units, activation='tanh', prefix='dense%d_' % layer)
                                    for layer in range(3)]), *initializer)


def train(number):
    """Use a network; return the gradients of its backward pass, if it has any, and a weak reference to the network."""
    way = WAYS[number // len(PLANS) % len(WAYS)]
    net = dense_layers(8, mx.init.Constant(0.125))
    plan, recompute = PLANS[number % len(PLANS)]
    split = mxhybrid.parallelize(net, plan, (4, 8), **({'recompute': ['dense1']} if recompute else {}))
    params = list(split.collect_params().values())
    data = mx.nd.arange(16).reshape((2, 8)) / 16
    network = weakref.ref(split)
    for _ in range(1 + (way == 'abandoned and trained')):
        with autograd.record():
            loss = split(data)
    if way == 'abandoned':
        return None, network
    if way == 'dropped first':
        del split, net
        gc.collect()
        release_dropped()
    loss.backward(retain_graph=way == 'dropped first' and not isinstance(plan, type(PLANS[-1][0])))
    if way == 'dropped first' and not isinstance(plan, type(PLANS[-1][0])):
        release_dropped()
        loss.backward()
    return [param.grad().asnumpy().tolist() for param in params if param.shape != (1,)], network


def counts():
    """Return the numbers of what networks have: redistributions, their transfers, segments, and threads in use."""
    transport = worker_group_of(member()).transport
    operators = list(custom_operators._operators.values())
    redistributions = [operator for operator in operators if isinstance(operator, RedistributionOperator)]
    tags = {transfer.tag for node in redistributions
            for transfer in (node.redistribution.forward, node.redistribution.backward)}
    names = 'mxhybrid-segment', 'mxhybrid-again', 'mxhybrid-backward'
    threads = sum(thread.name in names for thread in threading.enumerate())
    return [len(redistributions), len(tags & set(transport._persistent)), len(operators) - len(redistributions),
            threads - sum(len(engine_threads._unused.get(name, ())) for name in names)]


def left(before):
    """Return by how much these numbers are above `before`, once none is, or after a minute: threads are released a
    little later than their last call, and cycles of objects are collected.
    """
    deadline = time.monotonic() + 60
    while any(count > former for count, former in zip(counts(), before)) and time.monotonic() < deadline:
        gc.collect()
        release_dropped()
    return [max(0, count - former) for count, former in zip(counts(), before)]


def growth_mb():
    """Return by how much seven networks with large activations, after seven others, increase the resident memory."""
    for number in range(14):
        split = mxhybrid.parallelize(dense_layers(1024), parallel.data_parallel(), (1024, 1024), recompute=['dense1'])
        with autograd.record():
            loss = split(mx.nd.ones((512, 1024)))
        if number % 3:
            loss.backward()
        mx.nd.waitall()
        if number == 6:
            growth = Peak()
    growth.restart()  # what was freed does not count
    return growth.size_bytes / 1e6


store = mxhybrid.create()
before, most = counts(), 0
same, expected, networks = [], {}, []
for number in range(len(PLANS) * len(WAYS)):
    gradients, network = train(number)
    networks.append(network)
    same.append(gradients in (None, expected.setdefault(number % len(PLANS), gradients)))
    most = max(most, counts()[0] - before[0])
report(store.rank, same=same, made=most > 0, left=left(before), growth_mb=growth_mb(),
       alive=[number for number, network in enumerate(networks) if network() is not None])
