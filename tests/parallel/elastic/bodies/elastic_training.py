"""Train a dense layer, a row_sparse table and a dynamic table, with commits; worker 0 writes each step to a file.

The joint batch of a step follows from its number.  The workers take equal shares, so all numbers of workers compute the
same sums, up to rounding.
"""
import argparse
import os
import signal
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.files import replace_file
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.checkpoint import files, restore, save_load
from mxhybrid.servers.dynamic_table import DynamicTable

BATCH, ROWS, WIDTH, STEPS = 24, 50, 4, 30


class Net(gluon.Block):
    """Two tables and a dense layer."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH, prefix='words_')
            self.users = mxhybrid.nn.HashEmbedding(WIDTH, 'float32', mx.init.Uniform(0.5), prefix='users_')
            self.score = gluon.nn.Dense(1, in_units=WIDTH, prefix='score_')

    def forward(self, words, users):
        return self.score(self.words(words) * self.users(users))


def train(net, trainer, step, rank, workers):
    """Make a step."""
    random = np.random.RandomState(step)
    words, users = random.randint(ROWS, size=BATCH), random.randint(1000 * (1 + step), size=BATCH)
    targets = random.standard_normal(BATCH)
    share = slice(rank * BATCH // workers, (rank + 1) * BATCH // workers)
    with autograd.record():
        score = net(mx.nd.array(words[share], dtype='int64'), users[share])
        loss = ((score.reshape(-1) - mx.nd.array(targets[share])) ** 2).sum()
    loss.backward()
    trainer.step(BATCH)


def wait_for(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + 300
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError('the test does not go on')
        time.sleep(0.05)


def hold_in_restore(path, part, rank):
    """Let worker 0 write the name of the commit, and wait for a file "go", before a part of the commit is restored."""
    owner, name = {'arrays': (restore, 'put'), 'tables': (save_load, 'put_tables'),
                   'rows': (DynamicTable, 'load')}[part]
    newest, restore_part, readers = save_load.newest, getattr(owner, name), []

    def newest_and_note(*arguments):
        readers.append(newest(*arguments))
        return readers[-1]

    def held(*arguments):
        if rank == 0 and (part != 'rows' or arguments[1]):  # `load` also drops rows
            replace_file(path, os.path.basename(readers[-1].path))
            wait_for(path.with_name('go').exists)
        return restore_part(*arguments)
    save_load.newest = newest_and_note
    setattr(owner, name, held)


def call_in_commit(function, every):
    """Let worker 0 call a function when all files of the second commit but the last one are written."""
    write_manifest = files.Writer._write_manifest

    def after_call(writer, number, content):
        if number > every:
            function()
        return write_manifest(writer, number, content)
    files.Writer._write_manifest = after_call


def main():
    """Train, and report the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument('directory', type=Path)
    parser.add_argument('--every', type=int, default=5)
    parser.add_argument('--pause', type=float, default=0.0)
    parser.add_argument('--fail-at', type=int, default=-1)
    parser.add_argument('--save-at', type=int, default=-1)
    parser.add_argument('--wait-after', type=int, nargs='*', default=[], help='steps; wait for DIRECTORY/go-STEP')
    parser.add_argument('--die-in-commit', action='store_true')
    parser.add_argument('--hold', action='store_true',
                        help='worker 1 before it makes its State; in generation 1, worker 0 in its second commit')
    parser.add_argument('--hold-restores', type=int, default=0, metavar='N', help='in the generations 1 to N')
    parser.add_argument('--hold-before', choices=['arrays', 'tables', 'rows'], default='tables')
    parser.add_argument('--hold-at', type=int, default=-1, metavar='STEP', help='until there is a file "go"')
    parser.add_argument('--plan-for', type=int, nargs='*', default=[], metavar='WORKERS',
                        help='split another layer over one of these numbers of workers')
    parser.add_argument('--checkpoints', action='store_true', help='no State: checkpoints on disk')
    arguments = parser.parse_args()
    store = mx.kv.create('hybrid')
    generation, directory = int(os.environ.get('MXHYBRID_RESTART', 0)), arguments.directory

    def hold():
        replace_file(directory / ('held.%d' % generation), str(os.getpid()))
        wait_for(lambda: False)

    if arguments.plan_for:
        layer = gluon.nn.Dense(4, in_units=WIDTH)
        layer.initialize()
        workers = store.num_workers if store.num_workers in arguments.plan_for else arguments.plan_for[0]
        mxhybrid.parallelize(layer, mxhybrid.parallel.grid(model=workers), (BATCH, WIDTH))
    if 1 <= generation <= arguments.hold_restores:
        hold_in_restore(directory / ('restoring.%d' % generation), arguments.hold_before, store.rank)
    mx.random.seed(3)
    net = Net()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.5}, kvstore=store)
    disk = str(directory / 'checkpoints')
    state, resets = None, []
    if arguments.hold and (generation, store.rank) == (0, 1):
        hold()
    if arguments.checkpoints:
        restored = mxhybrid.checkpoint.load(disk, net, trainer)
        step = restored.step if restored else 0
    else:
        state = mxhybrid.elastic.State(net, trainer, directory=disk, seen=0)
        state.on_reset(lambda: resets.append(state.generation))
        step, restored = state.step, state.restored
        assert state.seen == BATCH * step
    print('worker %d of %d begins at step %d, restored from %s' % (
        store.rank, store.num_workers, step, restored and restored.path), flush=True)
    if arguments.die_in_commit and generation == 0:
        call_in_commit(lambda: os.kill(os.getpid(), signal.SIGKILL), arguments.every)
    if arguments.hold and (generation, store.rank) == (1, 0):
        call_in_commit(hold, arguments.every)
    while step < STEPS:
        if step == arguments.fail_at:
            raise ValueError('step %d always fails' % step)
        if step == arguments.hold_at:
            wait_for((directory / 'go').exists)
        train(net, trainer, step, store.rank, store.num_workers)
        step += 1
        mx.nd.waitall()
        if store.rank == 0:
            with (directory / 'steps').open('a') as file:
                file.write('%d %d %d\n' % (generation, step, store.num_workers))
        time.sleep(arguments.pause)
        if step in arguments.wait_after:
            wait_for((directory / ('go-%d' % step)).exists)
        if state is None:
            if step % arguments.every == 0:
                mxhybrid.checkpoint.save(disk, net, trainer, step)
        else:
            state.step, state.seen = step, BATCH * step
            if step == arguments.save_at:
                state.save()
            state.commit(every=arguments.every)
    keys = np.arange(0, 30000, 7)
    report(store.rank, users=net.users(keys).asnumpy(), words=net.words(mx.nd.arange(ROWS)).asnumpy(),
           score=net.score.weight.data().asnumpy(), workers=store.num_workers, resets=resets)


if __name__ == '__main__':
    main()
