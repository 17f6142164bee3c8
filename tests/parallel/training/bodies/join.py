"""Train with other numbers of batches on each worker: the last workers go on while the others have joined.

Without a launcher, one process trains on the joint batches.  Reports weights, rows and steps by case.
"""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from tests.helpers.outcomes import error_of
from tests.helpers.training_steps import backward

WORKERS, BATCH, ROWS, WIDTH = int(sys.argv[1]), 8, 40, 4
#: The batches of each worker, by epoch: worker 0 has the fewest, the most, or none.
EPOCHS = [[2, 3, 5], [4, 1, 1], [0, 2, 2]]
TABLES = {'SparseEmbedding': lambda: gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH),
          'sparse_grad': lambda: nn.Embedding(ROWS, WIDTH, sparse_grad=True),
          'dense': lambda: nn.Embedding(ROWS, WIDTH),
          'dynamic': lambda: mxhybrid.nn.Embedding(ROWS, WIDTH),
          'collection': lambda: mxhybrid.nn.EmbeddingCollection({
              'first': mxhybrid.nn.Embedding(ROWS, WIDTH), 'second': mxhybrid.nn.Embedding(ROWS, WIDTH)})}
# Table, optimizer, options of the optimizer, settings of the store, and whether the store updates.
CASES = {
    'dense': ('dense', 'adam', {}, {}, False),
    'on store': ('sparse_grad', 'sgd', {'momentum': 0.9}, {}, True),
    'schedule': ('dense', 'sgd', {'momentum': 0.9, 'lr_scheduler': True}, {}, False),
    'server weights': ('SparseEmbedding', 'adagrad', {}, {'routes': 'servers'}, None),
    'replicated': ('SparseEmbedding', 'adam', {}, {'routes': 'allreduce'}, None),
    'server gradients': ('sparse_grad', 'adam', {}, {'routes': 'servers'}, False),
    'row allreduce': ('sparse_grad', 'sgd', {'momentum': 0.9}, {'routes': 'allreduce'}, False),
    'auto': ('sparse_grad', 'adam', {}, {}, False),
    'dynamic': ('dynamic', 'adam', {}, {}, None),
    'collection': ('collection', 'adagrad', {}, {}, None),
    'sharded': ('dense', 'adam', {}, {'shard_updates': True}, False),
    'stale': ('dynamic', 'adagrad', {}, {'staleness': 1}, None),
}


class Net(gluon.Block):
    """A table and two layers."""

    def __init__(self, table):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.table = TABLES[table]()
            self.layers = nn.Sequential()
            self.layers.add(nn.Dense(5, in_units=WIDTH, activation='tanh'), nn.Dense(1, in_units=5))

    def forward(self, ids):
        if isinstance(self.table, mxhybrid.nn.EmbeddingCollection):
            rows = self.table({'first': ids, 'second': (ids * 7 + 3) % ROWS})
            return self.layers(rows['first'] + rows['second'])
        return self.layers(self.table(ids))


def batch_of(epoch, number, workers):
    """Return the ids and targets of the batches of some workers."""
    draws = [np.random.RandomState([epoch, number, worker]) for worker in workers]
    return (np.concatenate([draw.randint(0, ROWS, BATCH) for draw in draws]),
            np.concatenate([draw.standard_normal(BATCH) for draw in draws]))


def train(case):
    table, optimizer, options, settings, on_store = CASES[case]
    mx.random.seed(3)
    net = Net(table)
    net.initialize(mx.init.Uniform(0.3))
    options = dict(options, learning_rate=0.05)
    if 'lr_scheduler' in options:
        options['lr_scheduler'] = mx.lr_scheduler.FactorScheduler(step=3, factor=0.8, base_lr=0.05)
    trainer = gluon.Trainer(net.collect_params(), optimizer, options,
                            kvstore=mxhybrid.create(**({} if alone else settings)),
                            **({} if on_store is None else {'update_on_kvstore': on_store}))
    inputs_of = np.asarray if table in ('dynamic', 'collection') else mx.nd.array
    joined_steps = []
    for epoch, counts in enumerate(EPOCHS):
        for number in range(max(counts[:WORKERS]) if alone else counts[rank]):
            workers = [worker for worker in range(WORKERS) if number < counts[worker]] if alone else [rank]
            ids, target = batch_of(epoch, number, workers)
            with autograd.record():
                loss = ((net(inputs_of(ids)).reshape(-1) - mx.nd.array(target)) ** 2).sum()
            loss.backward()
            trainer.step(BATCH * WORKERS if epoch != 1 else BATCH)
        if not alone:  # gradients that no step has taken must not count
            backward(net, inputs_of(np.arange(BATCH)))
        joined_steps.append(mxhybrid.join(trainer))
    values = [param.data().asnumpy() for param in net.layers.collect_params().values()]
    values.append(net(inputs_of(np.arange(ROWS))).asnumpy())
    return values, joined_steps


def trainer_of(net, kvstore, **options):
    """Return a Trainer of a net with initial values."""
    net.initialize()
    return gluon.Trainer(net.collect_params(), 'sgd', kvstore=kvstore, **options)


def refusals():
    """Return the errors of a split network, another store's Trainer, deferred shapes, and updates by hand."""
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Dense(2, in_units=4))
    net.initialize()
    split = mxhybrid.parallelize(net, parallel.grid(model=WORKERS), (WORKERS, 4))
    other = nn.Dense(1, in_units=4)
    trainer = trainer_of(other, mxhybrid.create(), update_on_kvstore=False)

    def by_hand():
        if rank == 0:
            mxhybrid.join(trainer)
        for _ in range(3):
            backward(other, mx.nd.ones((2, 4)))
            trainer.allreduce_grads()
            trainer.update(2)
    return [error_of(mxhybrid.join, gluon.Trainer(split.collect_params(), 'sgd', kvstore=mxhybrid.create())),
            error_of(mxhybrid.join, trainer_of(nn.Dense(1, in_units=4), None)),
            error_of(mxhybrid.join, trainer_of(nn.Dense(1), mxhybrid.create())), error_of(by_hand)]


store = mxhybrid.create()
alone = store.num_workers == 1
rank = store.rank
selected = sys.argv[2].split(',') if len(sys.argv) > 2 else list(CASES)
results = {case: train(case) for case in selected}
if not alone and len(selected) == len(CASES):
    results['refusals'] = refusals()
report(rank, **results)
