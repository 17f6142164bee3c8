"""Push row_sparse arrays whose row ids are repeated, in any order, by every route; compare sums with a NumPy model.

Values are small whole numbers, so that sums are exact in any order.  Some pushes have more ids than the table has rows.
"""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from tests.helpers.outcomes import problem_of
from tests.helpers.training_steps import backward

ROWS, WIDTH, STEPS = 40, 3, 6


def push_of(step, rank):
    """Ids, in any order and repeated, and rows, known to all workers."""
    random = np.random.RandomState(100 * step + rank)
    count = [2, 5 * ROWS, 0 if rank else 3, 20, 1 if rank else ROWS + 1, 2 * ROWS][step % 6]
    ids = random.randint(0, ROWS if step % 2 else 3, count)
    return ids, random.randint(-4, 5, (count, WIDTH)).astype('f4')


def row_sparse(ids, rows):
    """An array for the store."""
    if not len(ids):
        return mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
    return mx.nd.sparse.row_sparse_array((rows, ids), shape=(ROWS, WIDTH))


def pushed(step, workers):
    """The sum of all pushes of a step."""
    total = np.zeros((ROWS, WIDTH), np.float32)
    for rank in range(workers):
        np.add.at(total, *push_of(step, rank))
    return total


def by_hand(routes):
    """Calls of the store: a row_sparse weight, and a dense one, of which two devices push."""
    store = mxhybrid.create(partitions=2, routes=routes)
    store.init('table', mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)))
    store.init('dense', mx.nd.zeros((ROWS, WIDTH)))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, lazy_update=True))
    weight = np.zeros((ROWS, WIDTH), np.float32)
    for step in range(STEPS):
        ids, rows = push_of(step, store.rank)
        store.push('table', row_sparse(ids, rows))
        half = len(ids) // 2
        store.push('dense', [row_sparse(ids[:half], rows[:half]), row_sparse(ids[half:], rows[half:])])
        weight -= pushed(step, store.num_workers) / 2
        table, dense = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)), mx.nd.zeros((ROWS, WIDTH))
        store.row_sparse_pull('table', out=table, row_ids=mx.nd.arange(ROWS))
        store.pull('dense', out=dense)
        np.testing.assert_array_equal(table.asnumpy(), weight)
        np.testing.assert_array_equal(dense.asnumpy(), weight)
    return [store.backend.routes[key].kind for key in ('table', 'dense')]


def refuse_fractions(net):
    """Check the error for fractions, which is the same before servers have the weight and after."""
    problem = problem_of(lambda: net(mx.nd.array([0, 1.5])), [
        'nn.Embedding: row id 1.5 of %s is not a whole number' % net.weight.name], mxhybrid.InputError)
    assert not problem, problem


def by_trainer():
    """Gradients of an embedding that a script makes by itself, before and after servers take its weight."""
    store = mxhybrid.create(partitions=2)
    net = nn.Embedding(ROWS, WIDTH, sparse_grad=True)
    net.initialize(mx.init.Zero())
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5}, kvstore=store)
    weight = np.zeros((ROWS, WIDTH), np.float32)
    for step in range(STEPS + 2):
        refuse_fractions(net)
        backward(net, mx.nd.array([store.rank]))
        row_sparse(*push_of(step, store.rank)).copyto(net.weight.list_grad()[0])
        trainer.step(1)
        weight -= pushed(step, store.num_workers) / 2
    kind = store.backend.routes[0].kind
    np.testing.assert_array_equal(net(mx.nd.arange(ROWS)).asnumpy(), weight)
    return kind


kinds = {routes: by_hand(routes) for routes in ('servers', 'allreduce')}
report(mxhybrid.create().rank, kinds=kinds, trainer=by_trainer())
