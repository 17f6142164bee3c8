"""Random steps on dynamic tables whose keys appear and expire, each compared with a table in the process;
:mod:`.steps` reads the arguments.

Every worker draws the gradients of all workers from one seed, so that each can update the tables in its process as the
servers do.  Gradients are small whole numbers, whose sums are exact, so rows must have the same bits.  The keys of a
step are in a window that moves; some are drawn from all former keys.  Checkpoints and deltas are saved to the
directory, and some rows are prefetched.
"""
import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from lab.soak.steps import DIRECTORY, finish, steps
from mxhybrid.kvstore.local_table import LocalTable

WIDTH, MOST_KEYS = 16, 300
#: The keys of a step are drawn from a window of this size, which moves by `SHIFT` keys in each step.
WINDOW, SHIFT = 1000, 40

#: Options of the tables.  A capacity is divided among partitions, so that table has one, as in a process.
TABLES = {'recent': {'expire_after': 30},
          'files': {'expire_after': 30},
          'bounded': {'capacity': 3000, 'evict': 'rarest', 'admit': 2}}

#: Steps between saved checkpoints; checkpoints between whole checkpoints: worker 0 reads the manifests of all deltas
#: since then; steps between changes of the learning rate.
SAVE, DELTAS, RATE = 300, 5, 70


class Net(gluon.Block):
    """The tables."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.blocks = {name: mxhybrid.nn.HashEmbedding(WIDTH, prefix=name + '_', **options)
                           for name, options in TABLES.items()}
            for name, block in self.blocks.items():
                self.register_child(block, name)


def drawn(random, step):
    """Return the sorted keys of a worker, and for each a row of its gradient."""
    first = SHIFT * step
    count = 0 if random.rand() < 0.05 else random.randint(1, MOST_KEYS)
    keys = first + (WINDOW * random.rand(count) ** 2).astype(np.int64)
    old = random.rand(count) < 0.05
    keys[old] = random.randint(first + 1, size=np.count_nonzero(old))
    keys = np.unique(keys * 1000003)
    return keys, random.randint(-4, 5, (len(keys), WIDTH)).astype(np.float32)


def summed(parts):
    """Return the keys of all workers, and the sum of the rows for each."""
    keys, positions = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    sums = np.zeros((len(keys), WIDTH), np.float32)
    np.add.at(sums, positions, np.concatenate([rows for _, rows in parts]))
    return keys, sums


def check(name, table, keys, rows):
    """Raise AssertionError if rows differ from those of the table in the process."""
    expected = np.empty((len(keys), WIDTH), np.float32)
    table.pull(keys, expected)
    np.testing.assert_array_equal(rows, expected, name)


def main():
    """Run the steps."""
    files = os.path.join(DIRECTORY, 'files')
    os.makedirs(files, exist_ok=True)
    store = mxhybrid.create(partitions={'*bounded*': 1, '*': 3}, storage={'*files*': files, '*': 'memory'},
                            storage_memory={'*files*': '1M'})
    rank, workers = store.rank, store.num_workers
    mx.random.seed(5)
    net = Net()
    net.initialize(mx.init.Uniform(0.5))
    optimizer = mx.optimizer.AdaGrad(learning_rate=2.0 ** -5)
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=store)
    optimizers = {name: mx.optimizer.AdaGrad(learning_rate=2.0 ** -5) for name in TABLES}
    tables = {name: LocalTable(name, WIDTH, 'float32', block.weight.first_values, TABLES[name])
              for name, block in net.blocks.items()}
    rate = 2.0 ** -5
    for step in steps():
        random = np.random.RandomState(step)
        loss, sums = 0, {}
        for name, block in net.blocks.items():
            parts = [drawn(random, step) for _ in range(workers)]
            keys, rows = parts[rank]
            sums[name] = summed(parts)
            if not len(keys):
                continue
            if step % 3 == 0:
                mxhybrid.prefetch(block.weight, keys[::2])
            with autograd.record():
                pulled = block(keys)
                loss = loss + (pulled * mx.nd.array(rows)).sum()
            check(name, tables[name], keys, pulled.asnumpy())
        if not isinstance(loss, int):
            loss.backward()
        trainer.step(1)
        for name, table in tables.items():
            table.set_optimizer(optimizers[name], rate, 0.0, step)
            table.push(*sums[name])
        done = step + 1
        if done % RATE == 0:
            rate = 2.0 ** -random.randint(4, 8)
            trainer.set_learning_rate(rate)
        if done % SAVE == 0:
            mxhybrid.checkpoint.save(os.path.join(DIRECTORY, 'saved'), net, trainer, done,
                                     delta=done // SAVE % DELTAS != 0)
    statistics = {name: table.statistics() for name, table in tables.items()}
    finish(rank, done, rows={name: each['rows'] for name, each in statistics.items()},
           expired={name: each['expired'] for name, each in statistics.items()})


main()
