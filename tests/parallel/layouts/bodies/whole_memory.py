"""Memory of a worker that has a quarter of a dense layer: while it is split, trained, saved and loaded, in bytes."""
import os
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from lab.split_memory import Peak
from mxnet import gluon

import mxhybrid
from mxhybrid import checkpoint, parallel
from tests.helpers.gluon_nets import Net, backward, initialised, trainer_of

WIDTH, BATCH = 10000, 8


class Grown:
    """The growth of resident memory in phases: its peak, and the rest at the end."""

    def __init__(self):
        self._peak, self.peak, self.stays = Peak(), {}, {}

    def during(self, phase, work):
        """Do something and wait for it."""
        self._peak.restart()
        found = work()
        mx.nd.waitall()
        self.peak[phase] = self._peak.size_bytes
        self._peak.restart()
        self.stays[phase] = self._peak.size_bytes
        return found


store = mxhybrid.create()
net = gluon.nn.Dense(WIDTH, use_bias=False, prefix='wide_')  # as wide as its input, which is found by parallelize
net.initialize(mx.init.Uniform(0.01))
data = mx.nd.array(np.random.RandomState(1).uniform(-1, 1, (BATCH, WIDTH)))
mx.nd.dot(data, data.T).wait_to_read()
grown = Grown()
net = grown.during('parallelize', lambda: mxhybrid.parallelize(net, parallel.grid(model=4), (BATCH, WIDTH)))
trainer = trainer_of(net, kvstore=store, learning_rate=1e-5, momentum=0.9)


def loss():
    return (net(data[net.samples]) ** 2).sum()


def train():
    value = backward(loss)
    trainer.step(BATCH)
    return float(value.asscalar())


losses = [grown.during('step', train)]
path = sys.argv[1]
grown.during('save_parameters', lambda: net.save_parameters(os.path.join(path, 'wide.params')))
grown.during('save', lambda: checkpoint.save(path, net, trainer, 1))
losses.append(grown.during('next step', train))
grown.during('load', lambda: checkpoint.load(path, net, trainer))
losses.append(train())
grown.during('load_parameters', lambda: net.load_parameters(os.path.join(path, 'wide.params')))
losses.append(float(loss().asscalar()))

# A network whose shapes are known, and which is initialised by parallelize.
known = Net(lambda: [gluon.nn.Dense(WIDTH // 4, use_bias=False, in_units=WIDTH // 4) for _ in range(4)])
created = Grown()
created.during('init', lambda: mxhybrid.parallelize(known, parallel.grid(model=4), (BATCH, WIDTH // 4),
                                                  init=mx.init.Uniform(0.01)))

# Activations: of one picture, which every worker would compute alone without a plan, as worker 0 does here.
SIZE = 1024
picture = mx.nd.array(np.random.RandomState(2).uniform(-1, 1, (1, 3, SIZE, SIZE)))


def pictures():
    net = initialised(Net(lambda: [gluon.nn.Conv2D(16, 3, padding=1, activation='relu') for _ in range(4)] + [
        gluon.nn.Conv2D(1, 16, strides=16)]))
    net.hybridize(static_alloc=True)
    return net


def look(net):
    backward(lambda: net(picture))


alone = Grown()
if store.rank == 0:
    alone.during('step', lambda: look(pictures()))
net = mxhybrid.parallelize(pictures(), parallel.grid(domain=(4,)), (1, 3, SIZE, SIZE))
activations = Grown()
activations.during('step', lambda: look(net))
report(store.rank, peak=grown.peak, stays=grown.stays, losses=losses, layer=WIDTH * WIDTH * 4,
       whole=alone.peak.get('step'), activations=activations.peak['step'],
       created=created.peak['init'], known=4 * (WIDTH // 4) ** 2 * 4)
