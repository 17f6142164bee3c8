"""Memory that two steps need in one process, and the gradient; arguments: patterns of recomputed blocks.

``VmHWM`` of /proc/self/status is the most that was resident since it was last set back by /proc/self/clear_refs.
"""
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel

PARTS, STEPS, WIDTH = 16, 6, 1 << 19


class Deep(gluon.HybridBlock):
    """Parts of elementwise operators on arrays of 2 MB, after a weight."""

    def __init__(self):
        super().__init__(prefix='deep_')
        with self.name_scope():
            self.scale = self.params.get('scale', shape=(1,), init='ones')
            self.parts = [nn.HybridLambda(repeated, prefix='part%d_' % number) for number in range(PARTS)]
            for part in self.parts:
                self.register_child(part)

    def hybrid_forward(self, F, data, scale):
        x = F.broadcast_mul(data, scale)
        for part in self.parts:
            x = part(x)
        return F.mean(x, axis=1)


def repeated(F, x):
    for _ in range(STEPS):
        x = F.relu(x)  # its gradient needs its output, as that of all activations, and it costs little
    return x


def status_kb(name):
    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith(name + ':'))


net = Deep()
net.initialize()
net = mxhybrid.parallelize(net, parallel.data_parallel(), (1, WIDTH), recompute=sys.argv[1:] or None)
data = mx.nd.array(np.linspace(-1, 1, WIDTH)[None])
mx.nd.waitall()
before = status_kb('VmRSS')
Path('/proc/self/clear_refs').write_text('5')
for _ in range(2):
    with autograd.record():
        loss = net(data)
    loss.backward()
mx.nd.waitall()
report(0, grown=(status_kb('VmHWM') - before) / 1000, array=WIDTH * 4 / 1e6,
       gradient=float(next(iter(net.collect_params().values())).grad().asscalar()))
