"""Save a training at once and in the background, with steps while it is written; report paths and what came between.

The cases: tables of all kinds; a table whose servers do not see the directory; a split network; sharded updates.
"""
import os
import shutil
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from mxhybrid.checkpoint import folder
from mxhybrid.servers import dynamic_table
from tests.helpers.outcomes import error_of
from tests.helpers.training_steps import make_step

DIRECTORY, ROWS, WIDTH, BATCH = sys.argv[1], 200000, 8, 16


class Tables(gluon.Block):
    """A dynamic table with many rows, a table of MXNet, an embedding with sparse gradients, and a dense layer."""

    def __init__(self):
        super().__init__(prefix='tables_')
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(ROWS, WIDTH, prefix='items_')
            self.users = mxhybrid.nn.HashEmbedding(WIDTH, prefix='users_')
            self.words = gluon.contrib.nn.SparseEmbedding(500, WIDTH, prefix='words_')
            self.output = nn.Dense(1, in_units=WIDTH)

    def forward(self, ids):
        return self.output(self.items(ids) + self.users(ids * 3) + self.words(mx.nd.array(ids % 500)))


def tables():
    return trained(Tables())


def trained(net, **settings):
    """Give a net initial values; return it and a Trainer of a store with settings."""
    net.initialize(mx.init.Uniform(0.3))
    return net, trainer_of(net, **settings)


def trainer_of(net, **settings):
    return gluon.Trainer(net.collect_params(), 'adam', {'learning_rate': 0.1}, kvstore=mxhybrid.create(**settings))


def split():
    net = nn.HybridSequential(prefix='split_')
    net.add(nn.Dense(6, in_units=4, activation='tanh'), nn.Dense(1, in_units=6))
    net.initialize(mx.init.Uniform(0.3))
    net = mxhybrid.parallelize(net, parallel.grid(model=2, batch=store.num_workers // 2), (BATCH, 4))
    return net, trainer_of(net)


def sharded():
    net = nn.Sequential(prefix='sharded_')
    net.add(nn.Dense(40, in_units=4), nn.Dense(1, in_units=40))
    return trained(net, shard_updates=True)


def step_of(net, trainer, number):
    draw = np.random.RandomState(number * 10 + (0 if isinstance(net, parallel.ParallelBlock) else store.rank))
    if isinstance(net, Tables):
        data = draw.randint(0, ROWS, BATCH)
    else:
        data = mx.nd.array(draw.uniform(-1, 1, (BATCH, 4)))[getattr(net, 'samples', slice(None))]
    make_step(trainer, BATCH, net, data, loss_of=lambda output: (output - 1) ** 2)


def save_twice(case, make):
    """Return the paths of both saves, the steps before the second one was complete, and those paths of a delta."""
    net, trainer = make()
    for number in range(3):
        step_of(net, trainer, number)
    if isinstance(net, Tables):
        mxhybrid.checkpoint.import_rows(net.items, None, np.ones((ROWS, WIDTH), np.float32))
    waited = mxhybrid.checkpoint.save(os.path.join(DIRECTORY, case + '-waited'), net, trainer, 3)
    later = os.path.join(DIRECTORY, case + '-later')
    assert mxhybrid.checkpoint.save(later, net, trainer, 3, wait=False) is None
    steps = 0
    for number in range(3, 8):
        step_of(net, trainer, number)
        mx.nd.waitall()
        steps += not folder.names(later)
    path = mxhybrid.checkpoint.wait()
    results[case] = [waited, path, steps]
    if not isinstance(net, Tables):
        return
    keys = np.unique(np.random.RandomState(30).randint(0, ROWS, BATCH))
    rows = net.items(keys).asnumpy()
    mxhybrid.checkpoint.save(later, net, trainer, 8, delta=True, wait=False)
    for number in range(3, 6):  # the same keys
        step_of(net, trainer, number)
    mxhybrid.checkpoint.wait()
    results['delta of ' + case] = [keys, rows, net.items(keys).asnumpy()]


def many_rows():
    """Tables, after a step, whose rows take some time to write."""
    net, trainer = tables()
    step_of(net, trainer, 0)
    mxhybrid.checkpoint.import_rows(net.items, None, np.ones((ROWS, WIDTH), np.float32))
    return net, trainer


def faults():
    """Return the error of a checkpoint that vanishes while it is written, and the name of the next checkpoint."""
    net, trainer = many_rows()
    directory = os.path.join(DIRECTORY, 'faults')
    mxhybrid.checkpoint.save(directory, net, trainer, 1, wait=False)
    if store.rank == 0:
        shutil.rmtree(os.path.join(directory, '.writing', 'results'))
    step_of(net, trainer, 1)
    error = error_of(mxhybrid.checkpoint.wait, kind=mxhybrid.CheckpointError)
    return error, os.path.basename(mxhybrid.checkpoint.save(directory, net, trainer, 2))


store = mxhybrid.create()
results = {}
for case, make in (('tables', tables), ('split', split), ('sharded', sharded)):
    save_twice(case, make)
results['faults'] = faults()
seen, dynamic_table.digest_of = dynamic_table.digest_of, lambda path: 'that of another file'
save_twice('unseen', tables)
dynamic_table.digest_of = seen
if store.num_workers > 1:  # the script ends while a save is under way
    mxhybrid.checkpoint.save(os.path.join(DIRECTORY, 'last'), *many_rows(), 1, wait=False)
report(store.rank, **results)
