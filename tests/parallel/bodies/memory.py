"""Resident memory of a worker with a large table, before and after it trains."""
import mxnet as mx
import numpy as np
from jobs import report
from mxnet import autograd, gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid  # noqa: F401

ROWS, WIDTH = 400000, 128


def resident_mb():
    """VmRSS of this process."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith('VmRSS'))


net = SparseEmbedding(ROWS, WIDTH)
empty = resident_mb()
net.initialize(mx.init.Constant(0.5))
trainer = gluon.Trainer(net.collect_params(), 'adagrad', kvstore='hybrid')
mx.nd.waitall()
full = resident_mb()
seen = []
for step in range(4):
    ids = mx.nd.array(np.arange(5) + 100000 * step)
    with autograd.record():
        loss = net(ids).sum()
    loss.backward()
    trainer.step(1)
    mx.nd.waitall()
    seen.append(resident_mb())
rows = net.weight.row_sparse_data(mx.nd.array([3, 100004, 5])).asnumpy()[[3, 5, 100004], 0]
report(trainer._kvstore.rank, empty=empty, full=full, seen=seen, rows=rows, table=ROWS * WIDTH * 4 / 1e6)
