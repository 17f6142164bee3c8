"""Train tables with staleness 1 that count pushes: worker w adds 1 to column w of the rows of its batch.

The arguments are the type in which rows travel, and a directory for a checkpoint.
"""
import functools
import sys
import time

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from tests.helpers.counting_tables import check_rows, counts_by_step
from tests.helpers.outcomes import problem_of

ROWS, STEPS = 40, 16
#: Errors of pulled rows, by the type in which they travel: counts up to 16 are exact in float16, and multiples of at
#: most 16 / 127 in int8.
TOLERANCES = {'float32': 0.0, 'float16': 0.0, 'int8': 0.1}


def batch(worker, step):
    return np.sort(np.random.RandomState(1000 * worker + step).choice(ROWS, 12, replace=False))


class Tables(gluon.Block):
    """A table of each kind; `summed` travels by allreduce."""

    def __init__(self, width):
        super().__init__(prefix='test_')
        with self.name_scope():
            self.sparse = gluon.contrib.nn.SparseEmbedding(ROWS, width, prefix='sparse_')
            self.replicated = gluon.nn.Embedding(ROWS, width, sparse_grad=True, prefix='replicated_')
            self.summed = gluon.contrib.nn.SparseEmbedding(ROWS, width, prefix='summed_')
            self.numbered = mxhybrid.nn.Embedding(ROWS, width, prefix='numbered_')
            self.hashed = mxhybrid.nn.HashEmbedding(width, prefix='hashed_')

    @property
    def blocks(self):
        return {'sparse': self.sparse, 'replicated': self.replicated, 'summed': self.summed,
                'numbered': self.numbered, 'hashed': self.hashed}

    def forward(self, ids):
        return {name: block(ids) for name, block in self.blocks.items()}


wire_dtype, directory = sys.argv[1:]
store = mxhybrid.create(staleness=1, routes={'*summed*': 'allreduce', '*': 'servers'}, wire_dtype=wire_dtype)
rank, tolerance = store.rank, TOLERANCES[wire_dtype]
expected = counts_by_step(store.num_workers, STEPS, ROWS, batch)
net = Tables(store.num_workers)
net.initialize(mx.init.Zero())
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': -1.0}, kvstore=store)
column, every = mx.nd.array(np.eye(store.num_workers)[rank]), mx.nd.arange(ROWS, dtype='int64')
lagging = dict.fromkeys(net.blocks, 0)

def check_all(steps):
    """Require that evaluation gets the rows after all steps of all workers."""
    for name, rows in net(every).items():
        np.testing.assert_allclose(rows.asnumpy(), expected[steps], rtol=0, atol=tolerance, err_msg=name)

def data():
    for step in range(STEPS):
        yield mx.nd.array(batch(rank, step), dtype='int64')

def row_ids_of(ids):
    return dict.fromkeys([net.sparse.weight, net.replicated.weight, net.hashed.weight], ids)

for step, ids in enumerate(mxhybrid.prefetching(data(), row_ids_of)):
    time.sleep(0.02 * rank)
    with autograd.record():
        outputs = net(ids)
        loss = sum((rows * column).sum() for rows in outputs.values())
    for name, rows in outputs.items():
        lagging[name] += check_rows(rows.asnumpy(), batch(rank, step), rank, step, 1, expected, tolerance)
    loss.backward()
    trainer.step(1)
    if step % 5 == 4:
        check_all(step + 1)
    if step == 8:
        key = trainer._param2idx[net.sparse.weight.name]
        if wire_dtype == 'float32':
            store.repartition(key, 3)
        else:  # rounded rows do not allow it
            problem = problem_of(functools.partial(store.repartition, key, 3), [
                'sparse_weight travel as %s, so its partitions cannot change' % wire_dtype], mxhybrid.InputError)
            assert not problem, problem
    if step == 10:
        mxhybrid.checkpoint.save(directory, net, trainer, step)
check_all(STEPS)
kind = store.backend.routes[trainer._param2idx[net.replicated.weight.name]].kind
mxhybrid.checkpoint.load(directory, net, trainer)
check_all(11)
report(rank, lagging=lagging, kind=kind, text=store.report())
