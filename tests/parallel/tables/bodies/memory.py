"""Report the memory of a worker beside a large table: before and after training, while it saves and loads.

Memory that it shares is not its own: rows that it reads where the servers hold them, on its host, are there once.
"""
import sys
import threading

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

from mxhybrid.checkpoint import collect, files, save_load as checkpoint
from mxhybrid.servers import table as table_module

ROWS, WIDTH = 400000, 128


def resident_mb():
    """Memory of this process alone that is resident now."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) / 1000 for line in status if line.startswith('RssAnon'))


class Peak(threading.Thread):
    """Looks every few milliseconds how much there is, as long as the block lasts."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self._over = resident_mb(), threading.Event()

    def run(self):
        while not self._over.wait(0.003):
            self.most = max(self.most, resident_mb())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()


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
# Pieces that are small compared with the table.
files.SHARD_BYTES = collect.PIECE_BYTES = table_module.ASSIGN_CHUNK_BYTES = 4 << 20
peaks = []
for call, arguments in ((checkpoint.save, [4]), (checkpoint.load, [])):
    with Peak() as peak:
        call(sys.argv[1], net, trainer, *arguments)
    peaks.append(peak.most - seen[-1])
rows = net.weight.row_sparse_data(mx.nd.array([3, 100004, 5])).asnumpy()[[3, 5, 100004], 0]
report(trainer._kvstore.rank, empty=empty, full=full, seen=seen, peaks=peaks, rows=rows, table=ROWS * WIDTH * 4 / 1e6)
