"""Train nets with dynamic tables on this worker's share of joint batches; one process trains on whole ones."""
import argparse
import gc
import os

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.contrib import amp

import mxhybrid
from tests.helpers.outcomes import error_of

ROWS, BATCH = 1 << 40, 24
#: Keys of the batches, on both sides of 2^24, 2^31, 2^32 and 2^53 where the table has them.
ITEMS = np.unique(np.concatenate([(1 << bits) + np.arange(-2, 3) for bits in (3, 24, 31, 32, 39)]))
USERS = np.concatenate([ITEMS, -ITEMS, (1 << 53) + np.arange(-2, 3), [-(1 << 63), (1 << 63) - 1]])
#: Optimizer, its settings, dtype, and options of the table by keys.
CASES = {
    'sgd': ('sgd', {'learning_rate': 0.1, 'wd': 0.01}, 'float64', {}),
    'momentum': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'clip_gradient': 0.3}, 'float64', {}),
    'adam': ('adam', {'learning_rate': 0.05, 'wd': 0.01}, 'float64', {}),
    'adam on store': ('adam', {'learning_rate': 0.05}, 'float64', {}),
    'adagrad': ('adagrad', {'learning_rate': 0.1}, 'float32', {}),
    'groupadagrad': ('groupadagrad', {'learning_rate': 0.1}, 'float32', {}),
    'ftrl': ('ftrl', {'learning_rate': 0.1, 'lamda1': 0.001}, 'float32', {}),
    'halves': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}, 'float32', {'row_dtype': 'float16'}),
    'amp': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}, 'float64', {}),
}
#: Steps of the case amp in which the gradients of one worker overflow.
OVERFLOWS = (1, 5, 8)


class Net(gluon.Block):
    """A numbered table, a table by keys with bags, both in a collection, and a dense layer."""

    def __init__(self, dtype, width=4, rows=ROWS, prefix='net_', **options):
        super().__init__(prefix=prefix)
        with self.name_scope():
            self.tables = mxhybrid.nn.EmbeddingCollection({
                'items': mxhybrid.nn.Embedding(rows, width, dtype, mx.init.Normal(0.5), prefix='items_'),
                'users': mxhybrid.nn.HashEmbedding(width, dtype, mx.init.Uniform(0.5), prefix='users_', **options)})
            self.out = gluon.nn.Dense(1, use_bias=False, in_units=width, prefix='out_')
            self.out.cast(dtype)

    def forward(self, items, users, offsets):
        rows = self.tables({'items': items, 'users': (users, offsets, 'mean')})
        return self.out(rows['items'] * rows['users'])


store = mxhybrid.create()


def make(case, seed=17, **extra):
    optimizer, settings, dtype, options = CASES[case]
    mx.random.seed(seed + store.rank)  # worker 0's seed counts
    net = Net(dtype, **options, **extra)
    net.initialize(mx.init.Constant(0.5))
    on_store = True if case.endswith('on store') else None
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(settings), kvstore='hybrid',
                            update_on_kvstore=on_store)
    if case == 'amp':
        amp.amp._amp_initialized = True  # amp.init would switch to float16 layers, which the CPU lacks
        amp.init_trainer(trainer)
        trainer._amp_loss_scaler = amp.loss_scaler.LossScaler()
    return net, trainer


def share(step, dtype):
    """Return this worker's part of a joint batch: items, users of bags, offsets, targets."""
    random = np.random.RandomState(step)
    items, target = random.choice(ITEMS, BATCH), random.standard_normal(BATCH)
    bags = [random.choice(USERS, random.randint(0, 4)) for _ in range(BATCH)]
    mine = range(store.rank, BATCH, store.num_workers)
    if step in (3, 7):  # worker 0 has all samples, and the other workers look nothing up
        mine = [] if store.rank else range(BATCH)
    bags = [bags[sample] for sample in mine]
    offsets = np.cumsum([0] + [len(bag) for bag in bags])[:-1]
    return items[list(mine)], np.concatenate(bags + [np.empty(0, np.int64)]), offsets, mx.nd.array(
        target[list(mine)].reshape(-1, 1), dtype=dtype) if len(mine) else None


def prefetch(net, step, dtype):
    """Request the rows of a batch, in some steps with others and only some of them."""
    items, users, _, _ = share(step, dtype)
    wrong = step % 3 == 0
    mxhybrid.prefetch(net.tables['items'].weight, np.append(items[::2], ITEMS[:3]) if wrong else items, after_step=True)
    mxhybrid.prefetch(net.tables['users'].weight, mx.nd.array(users.reshape(1, -1), dtype='int64') if len(users)
                      else users, after_step=not wrong)


def fit(net, trainer, steps, dtype, prefetches=True):
    for step in steps:
        if prefetches and store.rank == 1:  # the other workers prefetch nothing
            prefetch(net, step + 1, dtype)
        items, users, offsets, target = share(step, dtype)
        with autograd.record():
            if target is None:
                loss = net.out(mx.nd.zeros((1, 4), dtype=dtype)).sum()
            else:
                loss = ((net(items, users.astype(np.int64), offsets) - target) ** 2).sum()
            if hasattr(trainer, '_amp_loss_scaler'):
                overflows = step in OVERFLOWS and store.rank == min(1, store.num_workers - 1)
                with amp.scale_loss(loss * np.inf if overflows else loss, trainer) as loss:
                    pass
        loss.backward()
        trainer.step(BATCH)


def statistics(net, name):
    """Return a number of each table, on worker 0, which alone can ask for it."""
    return {} if store.rank else {table: net.tables[table].weight.table.statistics()[name]
                                  for table in ('items', 'users')}


def values(net):
    return {'items': net.tables['items'](ITEMS), 'users': net.tables['users'](USERS), 'out': net.out.weight.data()}


def run(case):
    """Train, with other learning rates, and after a new start of one table."""
    net, trainer = make(case)
    dtype, arrays = CASES[case][2], {}
    fit(net, trainer, range(5), dtype)
    arrays.update(('first ' + name, array.asnumpy()) for name, array in values(net).items())
    trainer.set_learning_rate(trainer.learning_rate * 0.5)
    net.tables['items'].weight.lr_mult = 0.7
    net.tables['users'].weight.grad_req = 'null'
    fit(net, trainer, range(5, 7), dtype)
    net.tables['users'].weight.grad_req = 'write'
    mx.random.seed(5 + store.rank)  # until the next step each worker reads values of its own seed
    net.tables['items'].initialize(force_reinit=True)
    fit(net, trainer, range(7, 10), dtype)
    # A row that no batch has is that of worker 0's new seed.
    arrays['untouched'] = net.tables['items']([12345]).asnumpy()
    arrays.update((name, array.asnumpy()) for name, array in values(net).items())
    if case == 'amp':
        arrays['scale'] = np.array(trainer._amp_loss_scaler.loss_scale)
    return {case: arrays, 'rows of ' + case: statistics(net, 'rows'), 'report': trainer._kvstore.report()}


def disagreements():
    """Return the messages that this worker gets when worker 1 has another net."""
    return {name: error_of(make, 'sgd', **({name: value} if store.rank == 1 else {}))
            for name, value in (('width', 5), ('admit', 2))}


def drop(directory):
    """Train a net whose rows are in files, drop it, remove their directory, and train another one."""
    net, trainer = make('momentum')
    fit(net, trainer, range(2), 'float64')
    store._barrier()
    del net, trainer
    gc.collect()
    if store.rank == 0:
        os.rmdir(directory)  # the files have no names
    net, trainer = make('momentum', prefix='other_')
    fit(net, trainer, range(2), 'float64')
    return values(net)


def freeze():
    """Worker 1 alone freezes a table, which ends the job."""
    net, trainer = make('sgd')
    fit(net, trainer, range(3), 'float64')
    if store.rank == 1:
        net.tables['users'].weight.grad_req = 'null'
    fit(net, trainer, range(4, 6), 'float64')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--cases', default='')
    parser.add_argument('--dropped', help='the directory of rows in files')
    for flag in ('--freeze', '--files', '--refused'):
        parser.add_argument(flag, action='store_true')
    arguments = parser.parse_args()
    for case in filter(None, arguments.cases.split(',')):
        report(store.rank, **run(case))
    if arguments.refused:
        net, trainer = make('sgd')
        report(store.rank, refusal=error_of(fit, net, trainer, range(1), 'float64'))
    elif arguments.dropped:
        report(store.rank, **drop(arguments.dropped))
    elif arguments.files:
        net, trainer = make('sgd')
        fit(net, trainer, range(2), 'float64')
        report(store.rank, file_bytes=statistics(net, 'file_bytes'))
    elif arguments.freeze:
        freeze()
    elif store.num_workers > 1:
        report(store.rank, disagreements=disagreements())


if __name__ == '__main__':
    main()
