"""Resident memory of a worker with a large table, before and after it trains, and while it saves and loads."""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

from mxhybrid.checkpoint import collect, files, save_load as checkpoint
from mxhybrid.servers import table as table_module

ROWS, WIDTH = 400000, 128


def resident_mb(what='VmRSS'):
    """Memory of this process that is resident now, or has been at most (VmHWM) since `forget_peak`."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith(what))


def forget_peak():
    """Have VmHWM start from what is resident now."""
    with open('/proc/self/clear_refs', 'w') as handle:
        handle.write('5')


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
# Pieces whose size does not show beside the table's.
files.SHARD_BYTES = collect.PIECE_BYTES = table_module.ASSIGN_CHUNK_BYTES = 4 << 20
peaks = []
for call, arguments in ((checkpoint.save, [4]), (checkpoint.load, [])):
    forget_peak()
    call(sys.argv[1], net, trainer, *arguments)
    peaks.append(resident_mb('VmHWM') - seen[-1])
rows = net.weight.row_sparse_data(mx.nd.array([3, 100004, 5])).asnumpy()[[3, 5, 100004], 0]
report(trainer._kvstore.rank, empty=empty, full=full, seen=seen, peaks=peaks, rows=rows, table=ROWS * WIDTH * 4 / 1e6)
