"""Train, save a checkpoint on the way, go on; load it and go on from there; each case by itself, as in ``train.py``.

``--part save`` does both, ``--part resume`` only the second, ``--part alone`` trains without any checkpoint.
"""
import os
import resource

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet.gluon import nn
from train import ON_STORE, Model, Worker, filled, fit, parser_of, trainer_of

import mxhybrid
from mxhybrid import CheckpointError
from mxhybrid.checkpoint import collect, files, reader, save_load as checkpoint
from tests.helpers.outcomes import error_of

#: More than it takes until servers hold the weight of an ``nn.Embedding``.
BEFORE, AFTER = 8, 6

# Kind of the tables, optimizer, options of the Trainer.
CASES = {
    'weight/adam': ('weight', 'adam', {}), 'weight/groupadagrad': ('weight', 'groupadagrad', {}),
    'weight/schedule': ('weight', 'sgd-momentum', {}), 'weight/allreduce': ('weight', 'adam', {}),
    'gradient/adam': ('gradient', 'adam', {}), 'gradient/on-store': ('gradient', 'sgd-momentum', ON_STORE),
    'gradient/ftrl': ('gradient', 'ftrl', {}), 'dense/on-store': ('dense', 'adam', ON_STORE),
    'weight/lowered': ('weight', 'sgd-momentum', {}), 'gradient/lowered': ('gradient', 'sgd-momentum', {}),
    'deferred': (None, 'adam', {}),
}


def make(worker, case, seed=None):
    """A model and its Trainer; with a seed, other values than those that all cases start with."""
    kind, optimizer, options = CASES[case]
    if kind is None:
        net = nn.Sequential()
        net.add(nn.Dense(8, activation='tanh'), nn.Dense(2))
        net.initialize(mx.init.Constant(0.1 if seed is None else 0.3))
    else:
        net = Model(kind, (4, 3), use_bias=optimizer != 'groupadagrad')
        if seed is None:
            filled(net)
        else:
            mx.random.seed(seed)
            net.initialize(mx.init.Uniform(0.5))
    extra = {'lr_scheduler': mx.lr_scheduler.FactorScheduler(step=3, factor=0.8, base_lr=0.1, warmup_steps=4)
             } if case.endswith('schedule') else {}
    store = mxhybrid.create(routes='allreduce') if case.endswith('allreduce') and worker.hybrid else None
    return net, trainer_of(worker, net, optimizer, extra, store, **options)


def begin(worker, case, net, trainer):
    """Train until the checkpoint."""
    fit(worker, net, trainer, steps=BEFORE)
    if case.endswith('lowered'):
        trainer._optimizer.momentum = 0.0  # MXNet keeps the state


def go_on(worker, case, net, trainer):
    """Train from there on."""
    if case.endswith('lowered'):
        fit(worker, net, trainer, seed=5, steps=1)
        trainer._optimizer.momentum = 0.5
    return fit(worker, net, trainer, seed=6, steps=AFTER)


def resume(worker, case, path):
    """Load a checkpoint into a model of other values, and go on."""
    net, trainer = make(worker, case, seed=17)
    restored = checkpoint.load(path, net, trainer)
    assert restored.step == BEFORE and restored.extra == {'rank': 0}, restored
    return go_on(worker, case, net, trainer)


def save(worker, case, path):
    """Train, save, go on; then load it twice: into a fresh model, and into the one that went on."""
    net, trainer = make(worker, case)
    begin(worker, case, net, trainer)
    checkpoint.save(path, net, trainer, BEFORE, extra={'rank': worker.rank})
    went_on = go_on(worker, case, net, trainer)
    assert checkpoint.load(path, net, trainer).step == BEFORE
    return went_on, go_on(worker, case, net, trainer)


def faults(worker, directory):
    """Provoke failures on worker 0: all workers raise the same error, no file is left, and training continues."""
    net, trainer = make(worker, 'weight/adam')
    fit(worker, net, trainer, steps=1)
    path = os.path.join(directory, 'faults')
    assert checkpoint.load(path, net, trainer) is None
    checkpoint.save(path, net, trainer, 1)
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    if worker.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, whole[1]))
    errors = [error_of(checkpoint.save, path, net, trainer, 2, kind=CheckpointError)]
    if worker.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    left = sorted(os.listdir(path)) if worker.rank == 0 else None
    second = checkpoint.save(path, net, trainer, 3)
    if worker.rank == 0:
        os.truncate(os.path.join(second, '00000.safetensors'), 99)
    errors.append(str(checkpoint.load(path, net, trainer).step))
    # Damaged after the check, by whatever: the workers stay in step, and all of them learn of it.
    verify = reader.Reader.verify
    reader.Reader.verify = lambda reader: None
    errors.append(error_of(checkpoint.load, path, net, trainer, kind=CheckpointError))
    reader.Reader.verify = verify
    if worker.rank == 0:
        os.remove(os.path.join(path, '00000001-step-1', 'manifest.json'))
    errors.append(error_of(checkpoint.load, path, net, trainer, kind=CheckpointError))
    fit(worker, net, trainer, steps=1)
    everyone = checkpoint.allgather(trainer, worker.rank * 10)
    return {'errors': errors, 'left': left, 'gathered': everyone}


np.seterr(all='raise')
parser = parser_of(CASES)
parser.add_argument('--part', choices=['alone', 'save', 'resume'], required=True)
arguments = parser.parse_args()
# Small enough that the tables take several of each.
files.SHARD_BYTES, collect.PIECE_BYTES = 2000, 300
worker = Worker(arguments.kvstore, arguments.partitions)
for case in arguments.cases:
    path = os.path.join(arguments.directory, case.replace('/', '-'))
    if arguments.part == 'alone':
        net, trainer = make(worker, case)
        begin(worker, case, net, trainer)
        report(worker.rank, **{case: go_on(worker, case, net, trainer)})
        continue
    if arguments.part == 'save':
        went_on, again = save(worker, case, path)
        report(worker.rank, **{'went on/' + case: went_on, 'again/' + case: again})
    report(worker.rank, **{case: resume(worker, case, path)})
if arguments.part == 'save':
    report(worker.rank, faults=faults(worker, arguments.directory))
