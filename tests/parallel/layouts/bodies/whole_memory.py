"""Memory of a worker that has a quarter of a dense layer: while it is split, trained, saved and loaded.

``VmHWM`` of /proc/self/status is the most that was resident since it was last set back by /proc/self/clear_refs.
"""
import os
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid import checkpoint, parallel

WIDTH, BATCH = 10000, 8


def status_mb(name):
    """A line of /proc/self/status."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith(name + ':'))


class Grown:
    """Measure the growth of resident memory in a block: its peak, and the rest at the end."""

    def __init__(self):
        self._before, self.peak, self.stays = status_mb('VmRSS'), {}, {}

    def during(self, phase, work):
        """Do something and wait for it."""
        with open('/proc/self/clear_refs', 'w') as handle:
            handle.write('5')
        found = work()
        mx.nd.waitall()
        self.peak[phase], self.stays[phase] = (status_mb(name) - self._before for name in ('VmHWM', 'VmRSS'))
        return found


store = mxhybrid.create()
net = gluon.nn.Dense(WIDTH, use_bias=False, prefix='wide_')  # as wide as its input, which is found by parallelize
net.initialize(mx.init.Uniform(0.01))
data = mx.nd.array(np.random.RandomState(1).uniform(-1, 1, (BATCH, WIDTH)))
mx.nd.dot(data, data.T).wait_to_read()
grown = Grown()
net = grown.during('parallelize', lambda: mxhybrid.parallelize(net, parallel.grid(model=4), (BATCH, WIDTH)))
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1e-5, 'momentum': 0.9}, kvstore=store)


def step():
    with autograd.record():
        loss = (net(data[net.samples]) ** 2).sum()
    loss.backward()
    trainer.step(BATCH)
    return float(loss.asscalar())


losses = [grown.during('step', step)]
path = sys.argv[1]
grown.during('save_parameters', lambda: net.save_parameters(os.path.join(path, 'wide.params')))
grown.during('save', lambda: checkpoint.save(path, net, trainer, 1))
losses.append(grown.during('next step', step))
grown.during('load', lambda: checkpoint.load(path, net, trainer))
losses.append(step())
grown.during('load_parameters', lambda: net.load_parameters(os.path.join(path, 'wide.params')))
losses.append(float((net(data[net.samples]) ** 2).sum().asscalar()))

# A network whose shapes are known, and which is initialised by parallelize.
known = gluon.nn.HybridSequential(prefix='known_')
with known.name_scope():
    for _ in range(4):
        known.add(gluon.nn.Dense(WIDTH // 4, use_bias=False, in_units=WIDTH // 4))
created = Grown()
created.during('init', lambda: mxhybrid.parallelize(known, parallel.grid(model=4), (BATCH, WIDTH // 4),
                                                  init=mx.init.Uniform(0.01)))

# Activations: of one picture, which every worker would compute alone without a plan, as worker 0 does here.
SIZE = 1024
picture = mx.nd.array(np.random.RandomState(2).uniform(-1, 1, (1, 3, SIZE, SIZE)))


def pictures():
    net = gluon.nn.HybridSequential(prefix='pictures_')
    with net.name_scope():
        for _ in range(4):
            net.add(gluon.nn.Conv2D(16, 3, padding=1, activation='relu'))
        net.add(gluon.nn.Conv2D(1, 16, strides=16))
    net.initialize()
    net.hybridize(static_alloc=True)
    return net


def look(net):
    with autograd.record():
        loss = net(picture).sum()
    loss.backward()


alone = Grown()
if store.rank == 0:
    alone.during('step', lambda: look(pictures()))
net = mxhybrid.parallelize(pictures(), parallel.grid(domain=(4,)), (1, 3, SIZE, SIZE))
activations = Grown()
activations.during('step', lambda: look(net))
report(store.rank, peak=grown.peak, stays=grown.stays, losses=losses, layer=WIDTH * WIDTH * 4 / 1e6,
       whole=alone.peak.get('step'), activations=activations.peak['step'],
       created=created.peak['init'], known=4 * (WIDTH // 4) ** 2 * 4 / 1e6)
