"""Train an embedding and two dense layers, each worker on its shard of a joint batch; report the final weights."""
import socket
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid  # noqa: F401  (registers 'hybrid')

# Large enough for the table to outweigh, on the wire, all that ssh and Horovod send to start a job.
ROWS, WIDTH, BATCH, LENGTH, STEPS = 20000, 8, 32, 5, 10


class Net(gluon.Block):
    """Mean of embedded ids, then two dense layers."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.embedding = gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH)
            self.hidden = gluon.nn.Dense(16, activation='tanh', in_units=WIDTH)
            self.output = gluon.nn.Dense(1, in_units=16)

    def forward(self, ids):
        return self.output(self.hidden(self.embedding(ids).mean(axis=1)))


def main():
    store = mx.kv.create(sys.argv[1] if len(sys.argv) > 1 else 'hybrid')
    rank, workers = store.rank, store.num_workers
    # Every worker starts with other weights: the weights of rank 0 count.
    mx.random.seed(7 + rank)
    net = Net()
    net.initialize(mx.init.Uniform(0.5))
    trainer = gluon.Trainer(net.collect_params(), 'adagrad', {'learning_rate': 0.1}, kvstore=store)

    # The joint batches are the same on every worker, which takes its shard of each.
    draw = np.random.RandomState(3)
    shard = slice(rank * BATCH // workers, (rank + 1) * BATCH // workers)
    for _ in range(STEPS):
        ids = np.minimum(draw.zipf(1.3, size=(BATCH, LENGTH)) - 1, ROWS - 1)
        target = draw.uniform(-1, 1, size=(BATCH, 1))
        with autograd.record():
            output = net(mx.nd.array(ids[shard]))
            loss = gluon.loss.L2Loss()(output, mx.nd.array(target[shard]))
        loss.backward()
        trainer.step(BATCH)

    weights = {name: parameter.row_sparse_data(mx.nd.arange(ROWS)) if parameter._stype == 'row_sparse'
               else parameter.data() for name, parameter in net.collect_params().items()}
    report(rank, workers=workers, host=socket.gethostname(), weights=weights)


if __name__ == '__main__':
    main()
