"""Saves and loads split weights that pass through worker 0 in pieces of very different sizes; args: a directory.

Worker 1 has the second half of the rows of each weight, whose last piece is much smaller than the one before.
"""
import os
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon

import mxhybrid
from mxhybrid import parallel
from tests.helpers.gluon_nets import initialised

#: Rows of 16 KB, of which 512 are a piece.
SHAPES = ((1030, 4096), (1026, 4096))

store = mxhybrid.create()
path = os.path.join(sys.argv[1], 'pieces.params')
same = []
for rows, columns in SHAPES:
    net = initialised(gluon.nn.Dense(rows, use_bias=False, in_units=columns, prefix='dense_'), mx.init.Uniform(1))
    net = mxhybrid.parallelize(net, parallel.grid(model=2), (2, columns))
    weight, = net.collect_params().values()
    before = weight.data().asnumpy()
    for _ in range(5):
        net.save_parameters(path)
        weight.set_data(mx.nd.zeros(before.shape))
        net.load_parameters(path)
        same.append(bool(np.array_equal(weight.data().asnumpy(), before) and before.any()))
report(store.rank, same=same, held=list(before.shape))
