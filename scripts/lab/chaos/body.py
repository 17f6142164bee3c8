"""The script of every worker of a case: trains, saves, and announces the moments that it reaches.

The case is in the environment, as JSON in ``MXHYBRID_CHAOS``.  A worker announces a moment by a file and waits for
another one, the go, where the case wants that.  Without the variable it only trains.
"""
import json
import os
import sys
import time
from pathlib import Path

SPEC = json.loads(os.environ.get('MXHYBRID_CHAOS', '{}'))
RANK = int(os.environ.get('HOROVOD_RANK', '0'))
GENERATION = int(os.environ.get('MXHYBRID_RESTART', '0'))
STEPS, EARLIER, MID, SAVING = 12, 3, 5, 8
#: A worker that trains with large pushes has some 10 MB in each of two tables in each step.
LARGE = SPEC.get('moment') in ('pushing', 'sending')
ROWS, WIDTH, BATCH, LENGTH = (20000, 512, 4096, 5) if LARGE else (2000, 16, 32, 5)
#: Key, rows and width of another table.  A server merges pushes of 36 MB of each of two workers: malloc never has 64 MB
#: in reserve.
LATE = (1000, 100000, 360)


def announce(moment):
    """Announce that this worker is at `moment`, if the case needs it, and wait for the go."""
    if SPEC.get('moment') != moment or SPEC.get('generation', GENERATION) != GENERATION:
        return
    directory = Path(SPEC['directory'])
    if RANK in SPEC['announcers']:
        scratch = directory / ('scratch.%d' % RANK)
        scratch.write_text(str(os.getpid()))
        scratch.replace(directory / ('at.%d' % RANK))
    if SPEC['raises'] == RANK:
        # While another worker is in that moment, if the case announces the moment of another worker.
        wait_for([directory / ('at.%d' % rank) for rank in SPEC['announcers']])
        raise RuntimeError('deliberately wrong')
    if RANK in SPEC['announcers'] and SPEC['holds']:
        wait_for([directory / 'go'])


def happens():
    """Say that the fault happens now, where the body itself brings it about."""
    (Path(SPEC['directory']) / 'fault').write_text('')


def wait_for(files):
    """Wait until all files exist."""
    while not all(file.exists() for file in files):
        time.sleep(0.02)


if SPEC.get('log'):
    log = os.open(os.path.join(SPEC['directory'], 'log.%d' % RANK), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)

announce('start')

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402

import mxhybrid  # noqa: E402


class Net(gluon.Block):
    """A row_sparse table, a dense one with sparse gradients, two dense layers."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words = gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH, prefix='words_')
            self.bins = gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=True, prefix='bins_')
            self.hidden = gluon.nn.Dense(16, activation='tanh', in_units=2 * WIDTH)
            self.score = gluon.nn.Dense(1, in_units=16)

    def forward(self, ids):
        both = mx.nd.concat(self.words(ids).mean(axis=1), self.bins(ids).mean(axis=1), dim=1)
        return self.score(self.hidden(both))


def save(directory, net, trainer, step):
    """Save on worker 0; all workers call it."""
    if not SPEC['plain']:
        mxhybrid.checkpoint.save(directory, net, trainer, step)
    elif RANK == 0:
        net.save_parameters(os.path.join(directory, 'net.params'))
        trainer.save_states(os.path.join(directory, 'net.states'))


def hold_while_writing():
    """Announce 'saving' in the middle of the writing of a file."""
    fsync = os.fsync

    def held(descriptor):
        announce('saving')
        fsync(descriptor)
    os.fsync = held


def hold_while_leaving(lifeline):
    """Announce 'exit' when all workers have been told that all have ended, and leave."""
    finish = lifeline.finish

    def held():
        result = finish()
        if SPEC.get('raises') is None:
            announce('exit')
        return result
    lifeline.finish = held


def grow(store):
    """Make another table, and push to it."""
    key, rows, width = LATE
    announce('growing')
    store.init(key, mx.nd.sparse.zeros('row_sparse', (rows, width)))
    gradient = mx.nd.sparse.row_sparse_array((np.ones((rows, width), np.float32), np.arange(rows)),
                                             shape=(rows, width))
    store.push(key, mx.nd.sparse.zeros('row_sparse', (rows, width)))  # makes the optimizer's state
    announce('filling')
    store.push(key, gradient)


def main():
    """Train."""
    store = mxhybrid.create()
    if store.num_workers > 1:
        assert store.backend._servers.on_lane and store.backend._collective.sums_together  # the faults of these cases
        hold_while_leaving(store._job.guard.lifeline)
    mx.random.seed(7 + store.rank)
    net = Net()
    net.initialize(mx.init.Uniform(0.5))
    trainer = gluon.Trainer(net.collect_params(), 'adagrad', {'learning_rate': 0.1}, kvstore=store)
    draw = np.random.RandomState(3)
    share = slice(store.rank * BATCH // store.num_workers, (store.rank + 1) * BATCH // store.num_workers)
    for step in range(SPEC.get('steps', STEPS)):
        ids = np.minimum(draw.zipf(1.3, size=(BATCH, LENGTH)) - 1, ROWS - 1)
        if LARGE:
            ids = draw.randint(ROWS, size=ids.shape)
        target = draw.uniform(-1, 1, size=(BATCH, 1))
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(mx.nd.array(ids[share])), mx.nd.array(target[share]))
        loss.backward()
        if step == 0:
            announce('first')
        if step == MID:
            for moment in ('mid', 'pushing', 'sending'):
                announce(moment)
            if SPEC.get('moment') in ('growing', 'filling'):
                grow(store)
        if SPEC.get('server_raises') and step == {'first': 0, 'mid': MID, 'saving': SAVING}[SPEC['moment']]:
            if store.rank == 0:
                happens()
                store.backend._servers.command('mode', keys=[12345], mode='optimize')
        trainer.step(BATCH)
        if step == EARLIER and 'saving' in SPEC and not SPEC['plain']:
            save(SPEC['saving'], net, trainer, step)
        if step == SAVING and 'saving' in SPEC:
            if RANK == 0:
                happens()
                hold_while_writing()
            elif SPEC['raises'] == RANK:
                announce('saving')
            save(SPEC['saving'], net, trainer, step)
        if store.rank == 0 and step % 100 == 0:
            print('step', step, flush=True)
    if SPEC.get('raises') is not None:
        announce('exit')
    weights = {name: (parameter.row_sparse_data(mx.nd.arange(ROWS)) if parameter._stype == 'row_sparse'
                      else parameter.data()).asnumpy() for name, parameter in net.collect_params().items()}
    if 'weights' in SPEC:
        np.savez(os.path.join(SPEC['weights'], 'weights.%d.npz' % RANK), **weights)


if __name__ == '__main__':
    sys.exit(main())
