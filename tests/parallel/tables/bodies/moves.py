"""Train while tables are repartitioned, again and again; report all final weights.

With ``--kvstore device`` in one process it gives the reference: MXNet alone on the joint batch.  The cases after
``--still`` are trained a second time, without repartitioning.
"""
import functools
import os
import pickle

import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from tests.parallel.training.bodies import train

#: Partitions from a step on: more, fewer, some for the second time, some on other servers, as many as rows.
COUNTS = {2: 4, 4: 2, 7: 7, 9: 1, 11: 4, 14: 100, 17: 7}


def cut(trainer, step):
    """Repartition all tables of the first layers if it is time."""
    store = trainer._kvstore
    if step in COUNTS and getattr(store, 'num_servers', 0):
        for index, param in enumerate(trainer._params):
            if param._grad_stype == 'row_sparse':
                store.repartition(index, COUNTS[step])
                assert store.backend.routes[index].partitioning.count == min(COUNTS[step], train.ROWS)


def embedding(worker, still, kind='weight', optimizer='adam', meddle=None, meddles_first=False, **options):
    """Train a model with tables of one kind; `meddle` is called after the moves of a step, or before them."""
    net, trainer = train.make(worker, kind, optimizer, **options)

    def before(step, trainer):
        if meddle and meddles_first:
            meddle(worker, net, trainer, step)
        if not still:
            cut(trainer, step)
        if meddle and not meddles_first:
            meddle(worker, net, trainer, step)

    return train.fit(worker, net, trainer, before=before)


def slower(worker, net, trainer, step):
    """Change the learning rate twice."""
    if step in (7, 15):
        trainer.set_learning_rate(trainer.learning_rate / 2)


def lowered(worker, net, trainer, step):
    """Train without momentum while tables are cut: MXNet keeps the state that it has made, and saves it."""
    trainer._optimizer.momentum = 0.0 if 5 <= step < 12 else 0.9
    if step == 9:
        name = os.path.join(worker.directory, 'lowered.states')
        trainer.save_states(name)
        worker.barrier()
        with open(name, 'rb') as handle:
            states, _ = pickle.load(handle)
        assert all(state is not None and state.asnumpy().any() for state in states.values()), states


def ahead(worker, net, trainer, step):
    """Ask for rows before the move that comes next: for this step, and for the one after."""
    ids, _ = train.batches()
    for when in (step, step + 1)[:train.STEPS - step]:
        for table in net.tables:
            mxhybrid.prefetch(table.weight, worker.share(ids[when]), after_step=when > step)


def saved(worker, net, trainer, step):
    """Save and load the optimizer state right after moves."""
    if step in (7, 13):
        name = os.path.join(worker.directory, 'moves-%d.states' % step)
        trainer.save_states(name)
        worker.barrier()
        trainer.load_states(name)


def restarted(worker, net, trainer, step):
    """Go back to former parameters: the store is made again around the same tables."""
    name = os.path.join(worker.directory, 'moves.params')
    if step == 5:
        if worker.rank == 0:
            net.save_parameters(name)
        worker.barrier()
    elif step == 9:
        net.load_parameters(name)


def frozen(worker, net, trainer, step):
    """Freeze a table for some moves, which have a new store without an optimizer for it."""
    weight = net.tables[0].weight
    if step == 5:
        weight.grad_req = 'null'
        name = os.path.join(worker.directory, 'frozen-%d.params' % worker.rank)
        net.save_parameters(name)
        net.load_parameters(name)
    elif step == 12:
        weight.grad_req = 'write'


def plain(worker, still, dtype='float32'):
    """A store without an optimizer: pushed rows are stored, other rows are zeros, also after moves.

    The fourth move takes no row to another server.
    """
    store = mxhybrid.create(partitions=worker.partitions) if worker.hybrid else mx.kv.create('device')
    shape, everything = (train.ROWS, 3), np.arange(train.ROWS)
    store.init('table', mx.nd.sparse.row_sparse_array((np.ones(shape, dtype), everything), shape=shape, dtype=dtype))
    values_by_step = {}
    for step, count in enumerate((3, 1, 4, 8, 3)):
        ids = np.arange(worker.rank, train.BATCH, worker.size) * min(step + 1, 3)
        rows = np.repeat(ids[:, None] + step, 3, axis=1).astype(dtype)
        store.push('table', mx.nd.sparse.row_sparse_array((rows, ids), shape=shape, dtype=dtype))
        if worker.hybrid and not still:
            store.repartition('table', count)
        out = mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype)
        store.row_sparse_pull('table', out=out, row_ids=mx.nd.arange(train.ROWS))
        values_by_step['%d' % step] = out.tostype('default').asnumpy()
    return values_by_step


CASES = {
    'slower': functools.partial(embedding, meddle=slower),
    'ahead': functools.partial(embedding, meddle=ahead, meddles_first=True),
    'saved': functools.partial(embedding, meddle=saved),
    'restarted': functools.partial(embedding, optimizer='sgd-momentum', meddle=restarted),
    'frozen': functools.partial(embedding, meddle=frozen),
    'lowered': functools.partial(embedding, optimizer='sgd-momentum', meddle=lowered),
    'plain': plain, 'plain-float16': functools.partial(plain, dtype='float16'),
    'plain-float64': functools.partial(plain, dtype='float64'),
    'gradient-adam': functools.partial(embedding, kind='gradient'),
    'gradient-on-store': functools.partial(embedding, kind='gradient', **train.ON_STORE),
    **{'weight-' + optimizer: functools.partial(embedding, optimizer=optimizer)
       for optimizer in ('sgd-momentum', 'adam', 'adagrad', 'rmsprop-centered', 'groupadagrad')}}


def main():
    parser = train.parser_of(CASES)
    parser.add_argument('--still', nargs='*', default=[])
    arguments = parser.parse_args()
    worker = train.Worker(arguments.kvstore, arguments.partitions, directory=arguments.directory)
    for case in arguments.cases:
        report(worker.rank, **{case: CASES[case](worker, False)})
    for case in arguments.still:
        report(worker.rank, **{'still ' + case: CASES[case](worker, True)})


if __name__ == '__main__':
    main()
