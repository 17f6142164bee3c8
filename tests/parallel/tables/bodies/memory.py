"""Report the memory of a worker beside a large table: before and after training, while it saves and loads.

Memory that it shares is not its own: rows that it reads where the servers hold them, on its host, are there once.
"""
import contextlib
import sys
import threading

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

from mxhybrid.checkpoint import collect, files, save_load as checkpoint
from mxhybrid.servers import table as table_module
from tests.helpers.training_steps import make_step

ROWS, WIDTH = 400000, 128


def resident_mb():
    """Memory of this process alone that is resident now."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith('RssAnon'))


@contextlib.contextmanager
def watched(peaks):
    """Look every few milliseconds how much there is while a block runs; append the most of it."""
    over, readings = threading.Event(), [resident_mb()]

    def watch():
        while not over.wait(0.003):
            readings.append(resident_mb())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()
    peaks.append(max(readings))


net = SparseEmbedding(ROWS, WIDTH)
empty = resident_mb()
net.initialize(mx.init.Constant(0.5))
trainer = gluon.Trainer(net.collect_params(), 'adagrad', kvstore='hybrid')
mx.nd.waitall()
full = resident_mb()
seen = []
for step in range(4):
    make_step(trainer, 1, net, mx.nd.array(np.arange(5) + 100000 * step))
    mx.nd.waitall()
    seen.append(resident_mb())
# Pieces that are small compared with the table.
files.SHARD_BYTES = collect.PIECE_BYTES = table_module.ASSIGN_CHUNK_BYTES = 4 << 20
peaks = []
for call, arguments in ((checkpoint.save, [4]), (checkpoint.load, [])):
    with watched(peaks):
        call(sys.argv[1], net, trainer, *arguments)
rows = net.weight.row_sparse_data(mx.nd.array([3, 100004, 5])).asnumpy()[[3, 5, 100004], 0]
report(trainer._kvstore.rank, empty=empty, full=full, seen=seen, peaks=np.array(peaks) - seen[-1], rows=rows,
       table=ROWS * WIDTH * 4 / 1e6)
