"""Train tables with optimizer classes of the user's own, and with MXNet's 'test'; report all final weights.

With ``--kvstore device`` in one process it gives the reference: MXNet alone on the joint batch.
"""
import functools
import os
import sys
import types

import moves
import mxnet as mx
import numpy as np
import own_optimizers
from lab.reports import report

import mxhybrid
from tests.parallel.training.bodies import train

train.OPTIMIZERS['heavyball'] = {'learning_rate': 0.2, 'wd': 0.01}
train.OPTIMIZERS['anchored'] = {'learning_rate': 0.3, 'wd': 0.1}


def changed(worker, net, trainer, step):
    """Change settings of several kinds in mid-run."""
    if step == 6:
        trainer._optimizer.betas = (0.5, None)
        trainer._optimizer.rates['early'][1] = 0.75
        trainer.set_learning_rate(0.1)


def resumed(worker, name):
    """Half of the steps, a checkpoint, and the others with another net."""
    directory = os.path.join(worker.directory, 'checkpoints-' + name)
    ids, targets = train.batches()
    for steps in (range(0, 10), range(10, train.STEPS)):
        net, trainer = train.make(worker, 'weight', name)
        at = mxhybrid.checkpoint.load(directory, net, trainer)
        assert (at.step if at else 0) == steps[0]
        for step in steps:
            train.backward(worker, net, ids[step], targets[step])
            trainer.step(train.BATCH)
        mxhybrid.checkpoint.save(directory, net, trainer, steps[-1] + 1)
    return train.weights(net)


def replicated(worker, name):
    """Hold the tables on every worker."""
    return train.embedding(worker, 'weight', name, store=worker.hybrid and mxhybrid.create(routes='allreduce'))


def tested(worker):
    """Update as MXNet's nightly tests do: ``w += rescale_grad * sum(grad)`` on the store."""
    if not worker.hybrid:
        return None  # in one process MXNet's 'test' fails on row_sparse weights
    store = mxhybrid.create(partitions=worker.partitions)
    shape, everything = (train.ROWS, 3), np.arange(train.ROWS)
    store.init('table', mx.nd.sparse.row_sparse_array((np.ones(shape, 'f4'), everything), shape=shape))
    store.init('dense', mx.nd.ones(shape))
    store.set_optimizer(mx.optimizer.create('test', rescale_grad=0.5))
    values_by_step = {}
    for step in range(3):
        ids = np.arange(worker.rank + step, train.BATCH, worker.size)
        rows = np.repeat(ids[:, None] + step, 3, axis=1).astype('f4')
        store.push('table', mx.nd.sparse.row_sparse_array((rows, ids), shape=shape))
        store.push('dense', mx.nd.ones(shape) * (worker.rank + 1))
        out = mx.nd.sparse.zeros('row_sparse', shape)
        store.row_sparse_pull('table', out=out, row_ids=mx.nd.arange(train.ROWS))
        values_by_step['%d' % step] = out.tostype('default').asnumpy()
    dense = mx.nd.zeros(shape)
    store.pull('dense', out=dense)
    return dict(values_by_step, dense=dense.asnumpy())


CASES = {'tested': tested,
         'changed-heavyball': functools.partial(moves.embedding, still=False, optimizer='heavyball', meddle=changed)}
for name in ('heavyball', 'anchored'):
    CASES.update({
        'moved-' + name: functools.partial(moves.embedding, still=False, optimizer=name),
        'saved-' + name: functools.partial(moves.embedding, still=False, optimizer=name, meddle=moves.saved),
        'gradient-' + name: functools.partial(train.embedding, kind='gradient', optimizer=name, widths=(4, 3)),
        'replicated-' + name: functools.partial(replicated, name=name),
        'resumed-' + name: functools.partial(resumed, name=name)})


parser = train.parser_of(CASES)
parser.add_argument('--only-here', action='store_true')
arguments = parser.parse_args()
worker = train.Worker(arguments.kvstore, arguments.partitions, directory=arguments.directory)
if arguments.only_here:  # a class that no server finds
    module = sys.modules['nowhere'] = types.ModuleType('nowhere')
    module.Ball = type('Ball', (own_optimizers.HeavyBall,), {'__module__': 'nowhere'})
    mx.optimizer.register(mxhybrid.row_wise(module.Ball))
    train.OPTIMIZERS['ball'] = {}
    train.embedding(worker, 'weight', 'ball')
for case in arguments.cases:
    report(worker.rank, **{case: CASES[case](worker)})
