"""Train a net with dynamic tables, save a checkpoint and deltas on the way, go on; load them and go on from there.

``--part save`` saves to the directory, ``--part resume`` goes on from it.  With ``--unseen``, servers find other
content in the files than worker 0, as if they were on other hosts; with ``--part refused``, their disks are full, too.
"""
import argparse
import os

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.checkpoint import dynamic_tables
from mxhybrid.servers import dynamic_table
from tests.helpers.outcomes import error_of

ROWS, BATCH, SAVED_AT, STEPS = 1 << 40, 24, 5, 9
CASES = {
    'momentum': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}, 'float64', {}),
    'adam': ('adam', {'learning_rate': 0.05}, 'float64', {}),
    'groupadagrad': ('groupadagrad', {'learning_rate': 0.1}, 'float32', {}),
    'expiry': ('adagrad', {'learning_rate': 0.1}, 'float32', {
        'expire_after': 3, 'capacity': 1000, 'evict': 'rarest'}),  # the capacity is not reached; updates are counted
    'admission': ('adagrad', {'learning_rate': 0.1}, 'float32', {'admit': 2}),
    'bfloat16': ('adagrad', {'learning_rate': 0.1}, 'float32', {'row_dtype': 'bfloat16'}),
}


class Net(gluon.Block):
    """A numbered table, and a table by keys."""

    def __init__(self, dtype, width=4, **options):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(ROWS, width, dtype, mx.init.Normal(0.5), prefix='items_')
            self.users = mxhybrid.nn.HashEmbedding(width, dtype, mx.init.Uniform(0.5), prefix='users_', **options)
            self.bias = self.params.get('bias', shape=(1,), dtype=dtype, init='zeros', grad_req='null')

    def forward(self, items):
        return (self.items(items) * self.users(items * 5 - 7)).sum(axis=1)


store = mx.kv.create('hybrid')


class Training:
    """A net, its Trainer, and this worker's part of joint batches."""

    def __init__(self, case, seed, width=4):
        optimizer, settings, self.dtype, options = CASES[case]
        mx.random.seed(seed + store.rank)
        self.net = Net(self.dtype, width, **options)
        self.net.initialize()
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, dict(settings), kvstore='hybrid',
                                     update_on_kvstore=case == 'expiry')

    def fit(self, begin, end):
        for step in range(begin, end):
            random = np.random.RandomState(step)
            items = random.randint(0, 60, BATCH) * (ROWS // 64)
            target = random.standard_normal(BATCH)
            mine = range(store.rank, BATCH, store.num_workers)
            with autograd.record():
                loss = ((self.net(items[mine]) - mx.nd.array(target[mine], dtype=self.dtype)) ** 2).sum()
            loss.backward()
            self.trainer.step(BATCH)
            if step == 3:
                self.net.bias.set_data(self.net.bias.data())  # renews a store that updates; tables keep their state
        return self

    def values(self):
        ids = np.arange(64) * (ROWS // 64)
        return np.concatenate([self.net.items(ids).asnumpy(), self.net.users(ids * 5 - 7).asnumpy()])


def save(directory, case):
    training = Training(case, 17)
    for begin, end in ((0, 2), (2, 4), (4, SAVED_AT)):
        training.fit(begin, end)
        mxhybrid.checkpoint.save(os.path.join(directory, case), training.net, training.trainer, end, extra=case,
                                 delta=True)
    return training.fit(SAVED_AT, STEPS).values()


def resume(directory, case):
    training = Training(case, 99)
    checkpoint = mxhybrid.checkpoint.load(os.path.join(directory, case), training.net, training.trainer)
    assert (checkpoint.step, checkpoint.extra) == (SAVED_AT, case)
    return training.fit(SAVED_AT, STEPS).values()


def refused(directory):
    """Return the errors of a load into tables of another width, and of a save that servers cannot make."""
    training = Training('adam', 99, width=5)
    model = training.net, training.trainer
    errors = [error_of(mxhybrid.checkpoint.load, os.path.join(directory, 'adam'), *model)]
    training.fit(0, 1)
    errors.append(error_of(mxhybrid.checkpoint.save, os.path.join(directory, 'unseen'), *model, 1))
    training.fit(0, 1)
    return errors


def imported():
    """Return imported rows, as all workers read them; the table is initialised again between two imports."""
    training = Training('adam', 99)
    items = training.net.items
    rows = np.random.RandomState(0).standard_normal((50, 4)) if store.rank == 0 else np.zeros((0, 4))
    mxhybrid.checkpoint.import_rows(items, None, -rows)
    items.initialize(force_reinit=True)
    mxhybrid.checkpoint.import_rows(items, None, rows)
    return items(np.arange(50)).asnumpy()


def full(*_):
    raise mxhybrid.CheckpointError('cannot write rows of a dynamic table')


parser = argparse.ArgumentParser()
parser.add_argument('--part', choices=['save', 'resume', 'refused'])
parser.add_argument('--directory')
parser.add_argument('--unseen', action='store_true')
args = parser.parse_args()
if args.unseen:
    dynamic_table.digest_of = lambda path: 'that of another file'
    dynamic_tables._PIECE_BYTES = 200
if args.part == 'refused':
    dynamic_table.fetch = full
    report(store.rank, errors=refused(args.directory), imported=imported())
else:
    part = {'save': save, 'resume': resume}[args.part]
    report(store.rank, **{case: part(args.directory, case) for case in CASES})
