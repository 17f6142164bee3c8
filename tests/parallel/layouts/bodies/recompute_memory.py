"""Memory in bytes that two steps need in one process, and the gradient; arguments: patterns of recomputed blocks."""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from lab.split_memory import Peak
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from tests.helpers.gluon_nets import Net, backward, in_turn, initialised

PARTS, STEPS, WIDTH = 16, 6, 1 << 19


def repeated(F, x):
    for _ in range(STEPS):
        x = F.relu(x)  # its gradient needs its output, as that of all activations, and it costs little
    return x


#: Parts of elementwise operators on arrays of 2 MB, after a weight.
net = Net(lambda: [nn.HybridLambda(repeated, prefix='part%d_' % number) for number in range(PARTS)],
          lambda F, data, *parts, scale: F.mean(in_turn(F, F.broadcast_mul(data, scale), *parts), axis=1),
          scale={'shape': (1,), 'init': 'ones'})
net = mxhybrid.parallelize(initialised(net), parallel.data_parallel(), (1, WIDTH), recompute=sys.argv[1:] or None)
data = mx.nd.array(np.linspace(-1, 1, WIDTH)[None])
mx.nd.waitall()
peak = Peak()
for _ in range(2):
    backward(lambda: net(data))
mx.nd.waitall()
report(0, grown=peak.size_bytes, array=WIDTH * 4,
       gradient=float(next(iter(net.collect_params().values())).grad().asscalar()))
