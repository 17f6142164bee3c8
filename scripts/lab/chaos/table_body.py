"""The script of every worker of a case with dynamic tables: trains, saves after each step, resumes from a checkpoint.

An elastic job has commits in place of checkpoints.  A table grows, and rows of another one expire.  Most keys of the
steps in `LARGE_STEPS` are new.  The case is given as in `body`, which also announces the moments.
"""
import os
import signal
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from lab.chaos.body import GENERATION, RANK, SPEC, announce, happens
from mxhybrid.checkpoint import files, save_load
from mxhybrid.servers.dynamic_table import DynamicTable

STEPS, WIDTH = 10, 32
#: Rows are removed after this number of steps without an update.
EXPIRE_AFTER = 3
#: The step in which rows expire, the one in which a table grows, and the first after which a delta is large.
EXPIRING, INSERTING = 5, 6
#: Steps with `NEW_KEYS` new keys.  Those of the first expire in the step `EXPIRING`.
LARGE_STEPS = (EXPIRING - EXPIRE_AFTER, INSERTING, INSERTING + 1, INSERTING + 2)
FREQUENT_KEYS, NEW_KEYS, BATCH = 200, 40000, 64
#: The steps of the moments.
MOMENTS = {'expiring': EXPIRING, 'inserting': INSERTING, 'lookup': INSERTING, 'delta': INSERTING,
           'elastic-step': INSERTING}


class Net(gluon.Block):
    """A table that grows, and one whose rows expire."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.users = mxhybrid.nn.HashEmbedding(WIDTH, 'float64', mx.init.Uniform(0.5), prefix='users_')
            self.words = mxhybrid.nn.HashEmbedding(
                WIDTH, 'float64', mx.init.Uniform(0.5), expire_after=0 if SPEC.get('keeps_rows') else EXPIRE_AFTER,
                prefix='words_')

    def forward(self, keys):
        return (self.users(keys) * self.words(keys)).sum(axis=1)


def new_keys(step):
    """Return the new keys of a step."""
    return np.arange(NEW_KEYS, dtype=np.int64) + step * 10 ** 12 if step in LARGE_STEPS else np.zeros(0, np.int64)


def batch(step):
    """Return the keys and targets of all workers."""
    random = np.random.RandomState(step)
    keys = np.concatenate([random.randint(FREQUENT_KEYS, size=BATCH), new_keys(step)])
    return keys, random.standard_normal(len(keys))


def hold_lookups():
    """Announce 'lookup' when rows were requested, before they are waited for."""
    deliver = DynamicTable.deliver

    def held(*arguments):
        deliver(*arguments)
        announce('lookup')
    DynamicTable.deliver = staticmethod(held)


def hold_state():
    """Announce 'elastic-restore' before dynamic tables are restored, and 'elastic-commit' before a manifest is written.
    """
    put_tables, write_manifest = save_load.put_tables, files.Writer._write_manifest

    def held_restore(*arguments):
        announce('elastic-restore')
        put_tables(*arguments)

    def held_commit(writer, step, content):
        if step > INSERTING:
            announce('elastic-commit')
        return write_manifest(writer, step, content)
    save_load.put_tables, files.Writer._write_manifest = held_restore, held_commit


def train(net, trainer, step, workers):
    """Make a step."""
    keys, targets = batch(step)
    share = slice(RANK, None, workers)
    with autograd.record():
        loss = ((net(keys[share]) - mx.nd.array(targets[share], dtype='float64')) ** 2).sum()
    loss.backward()
    if MOMENTS.get(SPEC.get('moment')) == step:
        if RANK == 0:
            happens()
        for moment in ('elastic-step', 'expiring', 'inserting', 'delta'):
            announce(moment)
    trainer.step(BATCH)


def main():
    """Train."""
    store = mx.kv.create('hybrid')
    mx.random.seed(7)
    net = Net()
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.5}, kvstore=store)
    checkpoint = mxhybrid.checkpoint.load(SPEC['saving'], net, trainer) if 'saving' in SPEC else None
    first = 0 if checkpoint is None else checkpoint.step
    print('training from step %d' % first, flush=True)
    if SPEC.get('elastic'):
        hold_state()
        announce('elastic-start')
        state = mxhybrid.elastic.State(net, trainer)
        first = state.step
    for step in range(first, STEPS):
        if SPEC.get('moment') == 'elastic-restore' and (GENERATION, RANK, step) == (0, 3, INSERTING):
            os.kill(os.getpid(), signal.SIGKILL)  # so that there is something to restore
        if SPEC.get('moment') == 'lookup' and step == MOMENTS['lookup']:
            hold_lookups()
        train(net, trainer, step, store.num_workers)
        if SPEC.get('elastic'):
            if RANK and step == INSERTING:
                announce('elastic-commit')
            state.step = step + 1
            state.commit()
        if 'saving' in SPEC:
            mxhybrid.checkpoint.save(SPEC['saving'], net, trainer, step + 1, delta=True)
    if 'weights' in SPEC:
        keys = np.concatenate([np.arange(FREQUENT_KEYS)] + [new_keys(step)[::97] for step in LARGE_STEPS])
        np.savez(os.path.join(SPEC['weights'], 'weights.%d.npz' % RANK), users=net.users(keys).asnumpy(),
                 words=net.words(keys).asnumpy())


if __name__ == '__main__':
    sys.exit(main())
