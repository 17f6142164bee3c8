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


class Training:
    """A net, its Trainer, and this worker's part of joint batches."""

    def __init__(self, worker, case, seed, width=4):
        optimizer, settings, self.dtype, options = CASES[case]
        self.worker = worker
        mx.random.seed(seed + worker['rank'])
        self.net = Net(self.dtype, width, **options)
        self.net.initialize()
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, dict(settings), kvstore='hybrid',
                                     update_on_kvstore=case == 'expiry')

    def fit(self, begin, end):
        for step in range(begin, end):
            random = np.random.RandomState(step)
            items = random.randint(0, 60, BATCH) * (ROWS // 64)
            target = random.standard_normal(BATCH)
            mine = range(self.worker['rank'], BATCH, self.worker['size'])
            with autograd.record():
                error = self.net(items[mine]) - mx.nd.array(target[mine], dtype=self.dtype)
                loss = (error ** 2).sum()
            loss.backward()
            self.trainer.step(BATCH)
            if step == 3:
                self.net.bias.set_data(self.net.bias.data())  # renews a store that updates; tables keep their state

    def values(self):
        ids = np.arange(64) * (ROWS // 64)
        return np.concatenate([self.net.items(ids).asnumpy(), self.net.users(ids * 5 - 7).asnumpy()])


def save(worker, directory, case):
    training = Training(worker, case, 17)
    training.fit(0, 2)
    training_path = os.path.join(directory, case)
    for step in (2, 4, SAVED_AT):
        training.fit(max(0, {4: 2, SAVED_AT: 4}.get(step, 2)), step)
        mxhybrid.checkpoint.save(training_path, training.net, training.trainer, step, extra=case, delta=True)
    training.fit(SAVED_AT, STEPS)
    return training.values()


def resume(worker, directory, case):
    training = Training(worker, case, 99)
    checkpoint = mxhybrid.checkpoint.load(os.path.join(directory, case), training.net, training.trainer)
    assert (checkpoint.step, checkpoint.extra) == (SAVED_AT, case)
    training.fit(SAVED_AT, STEPS)
    return training.values()


def refused(worker, directory):
    """Return the errors of a load into tables of another width, and of a save that servers cannot make."""
    training = Training(worker, 'adam', 99, width=5)
    model = training.net, training.trainer
    errors = [error_of(mxhybrid.checkpoint.load, os.path.join(directory, 'adam'), *model)]
    training.fit(0, 1)
    errors.append(error_of(mxhybrid.checkpoint.save, os.path.join(directory, 'unseen'), *model, 1))
    training.fit(0, 1)
    return errors


def imported(worker):
    """Return imported rows, as all workers read them; the table is initialised again between two imports."""
    training = Training(worker, 'adam', 99)
    rows = np.random.RandomState(0).standard_normal((50, 4)) if worker['rank'] == 0 else np.zeros((0, 4))
    mxhybrid.checkpoint.import_rows(training.net.items, None, -rows)
    training.net.items.initialize(force_reinit=True)
    mxhybrid.checkpoint.import_rows(training.net.items, None, rows)
    return training.net.items(np.arange(50)).asnumpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--part', choices=['save', 'resume', 'refused'])
    parser.add_argument('--directory')
    parser.add_argument('--unseen', action='store_true')
    args = parser.parse_args()
    store = mx.kv.create('hybrid')
    worker = {'rank': store.rank, 'size': store.num_workers}
    if args.unseen:
        from mxhybrid.servers import dynamic_table
        dynamic_table.digest_of = lambda path: 'that of another file'
        dynamic_tables._PIECE_BYTES = 200
        if args.part == 'refused':
            def full(*_):
                raise mxhybrid.CheckpointError('cannot write rows of a dynamic table')
            dynamic_table.fetch = full
    if args.part == 'refused':
        report(worker['rank'], errors=refused(worker, args.directory), imported=imported(worker))
    else:
        part = {'save': save, 'resume': resume}[args.part]
        report(worker['rank'], **{case: part(worker, args.directory, case) for case in CASES})


if __name__ == '__main__':
    main()
