"""Memory in bytes that two steps need in one process, and the gradient; arguments: patterns of recomputed blocks."""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from lab.split_memory import Peak
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from tests.helpers.gluon_nets import backward, in_turn, initialised

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
        return F.mean(in_turn(F, F.broadcast_mul(data, scale), *self.parts), axis=1)


def repeated(F, x):
    for _ in range(STEPS):
        x = F.relu(x)  # its gradient needs its output, as that of all activations, and it costs little
    return x


net = mxhybrid.parallelize(initialised(Deep()), parallel.data_parallel(), (1, WIDTH), recompute=sys.argv[1:] or None)
data = mx.nd.array(np.linspace(-1, 1, WIDTH)[None])
mx.nd.waitall()
peak = Peak()
for _ in range(2):
    backward(lambda: net(data))
mx.nd.waitall()
report(0, grown=peak.size_bytes, array=WIDTH * 4,
       gradient=float(next(iter(net.collect_params().values())).grad().asscalar()))
