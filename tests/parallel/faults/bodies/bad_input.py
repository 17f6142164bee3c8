"""Make wrong calls: each is refused on the calling rank, by name, before anything is sent; the store stays usable."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from tests.helpers.outcomes import problem_of

ones = mx.nd.ones


def rows(ids, shape=(9, 2), dtype='float32'):
    """A row_sparse array."""
    return mx.nd.sparse.row_sparse_array((np.ones((len(ids),) + shape[1:], dtype), np.array(ids)), shape=shape)


def out(shape=(9, 2), dtype='float32'):
    """An empty row_sparse array."""
    return mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype)


class Odd(mx.optimizer.SGD):
    """A user's optimizer that servers do not know."""


@mxhybrid.row_wise
class Local(mx.optimizer.SGD):
    """An optimizer that works row by row, but that servers cannot import."""


def wrong_calls(kv):
    """Name, call, and words that the message must have."""
    pull = kv.row_sparse_pull
    return [
        ('row id too large', lambda: pull('table', out=out(), row_ids=mx.nd.array([1, 9])), ['9', 'table', '0 to 8']),
        ('row id negative', lambda: pull('table', out=out(), row_ids=mx.nd.array([-1])), ['-1', 'table', '0 to 8']),
        ('row id broken', lambda: pull('table', out=out(), row_ids=mx.nd.array([1.5])), ['table', 'whole']),
        ('push outside', lambda: kv.push('table', rows([3, 9], (10, 2))), ['table', '(9, 2)', '(10, 2)']),
        ('shape', lambda: kv.push('dense', ones((2, 3))), ['dense', '(3, 2)', '(2, 3)']),
        ('dtype', lambda: kv.push('dense', ones((3, 2), dtype='float64')), ['dense', 'float32', 'float64', 'astype']),
        ('unknown key', lambda: kv.push('nobody', ones((3, 2))), ['nobody', 'init']),
        ('unknown pull', lambda: pull(77, out=out(), row_ids=mx.nd.array([1])), ['77', 'init']),
        ('dense for sparse', lambda: kv.push('table', ones((9, 2))), ['table', 'row_sparse', 'tostype']),
        ('sparse pushpull', lambda: kv.pushpull('dense', rows([1], (3, 2))), ['dense', 'row_sparse']),
        ('pushpull a table', lambda: kv.pushpull('table', ones((9, 2))), ['table', 'row_sparse_pull']),
        ('rows of dense', lambda: pull('dense', out=out((3, 2)), row_ids=mx.nd.array([1])), ['dense', 'pull']),
        ('dense output', lambda: pull('table', out=ones((9, 2)), row_ids=mx.nd.array([1])), ['table', 'row_sparse']),
        ('key type', lambda: kv.push(1.5, ones((3, 2))), ['1.5', 'int or str']),
        ('value type', lambda: kv.push('dense', 'text'), ['dense', 'NDArray']),
        ('list lengths', lambda: kv.push(['dense', 'table'], [ones((3, 2))]), ['2 keys']),
        ('two values', lambda: kv.init(['new', 'new'], [ones((3, 2)), ones((3, 2))]), ['new', '2 values', 'once']),
        ('init twice', lambda: kv.init('dense', ones((3, 2))), ['dense', 'before']),
        ('compression', lambda: kv.set_gradient_compression({'type': '2bit'}), ['2bit', 'compression_params']),
        ('no optimizer', lambda: kv.save_optimizer_states('/nowhere/states'), ['set_optimizer']),
        ('module', lambda: fit_module(kv), ['mx.mod.Module', 'gluon.Trainer', 'dist_sync']),
        ('module by name', lambda: fit_module('hybrid'), ['mx.mod.Module', 'gluon.Trainer', 'dist_sync']),
        ('not an optimizer', lambda: kv.set_optimizer('sgd'), ['sgd', 'Optimizer']),
        ('partitions=0', lambda: mxhybrid.create(partitions=0), ['partitions', '0', 'at least 1']),
        ('partitions=-1', lambda: mxhybrid.create(partitions=-1), ['partitions', '-1', 'at least 1']),
        ('partitions=many', lambda: mxhybrid.create(partitions='many'), ['partitions', 'many', 'whole number']),
        ('routes=fast', lambda: mxhybrid.create(routes='fast'), ['routes', 'fast', 'servers', 'allreduce']),
        ('routes of a name', lambda: mxhybrid.create(routes={'emb*': 1}), ['routes[emb*]', '1', 'auto']),
        ('unknown setting', lambda: mxhybrid.create(partition=3), ['partition', 'partitions']),
    ]


def wrong_in_jobs(kv):
    """Calls that only a job of several processes must refuse."""
    calls = [('int8 table', lambda: kv.init('bytes', rows([1], dtype='int8')), ['bytes', 'int8', 'float32'])]
    for bad in (9, -1):  # the table's last row is 8
        calls += [('push row %d' % bad, lambda bad=bad: kv.push('table', rows([3, bad])),
                   [str(bad), 'table', '0 to 8']),
                  ('push row %d of dense' % bad, lambda bad=bad: kv.push('dense', rows([bad], (3, 2))),
                   [str(bad), 'dense', '0 to 2'])]
    calls += [('crumbs', lambda: mxhybrid.create(partitions=220000).init('crumbs', rows([1], (220000, 1))),
               ['crumbs', '220000', 'MXHYBRID_PARTITIONS']),
              ('repartition', lambda: kv.repartition('table', 0), ['table', 'partitions=0', 'at least 1'])]
    for name in ('lamb', 'lars', 'adamax', 'sgld', 'nadam', 'signum', 'ftml', 'dcasgd', 'lbsgd'):
        calls.append((name, lambda name=name: kv.set_optimizer(mx.optimizer.create(name)), [name, 'table', 'adagrad']))
    return calls + [
        ('own optimizer', lambda: kv.set_optimizer(Odd()), ['odd', 'table', 'adagrad', 'row_wise']),
        ('local optimizer', lambda: kv.set_optimizer(Local()), ['Local', 'table', 'script', 'module of its own']),
        ('adagrad wd', lambda: kv.set_optimizer(mx.optimizer.create('adagrad', wd=0.1)), ['adagrad', 'wd=0.1']),
        ('servers', lambda: mxhybrid.create(servers_per_host=5), ['SERVERS_PER_HOST', '5', 'once']),
        ('dense', lambda: mxhybrid.create(dense_transport='horovod'),
         ["DENSE_TRANSPORT='horovod'", "runs with 'auto'", 'all stores']),
        ('lamb trainer', lamb_trainer, ['lamb', 'embedding0_weight', 'adagrad'])]


def fit_module(store):
    """MXNet's older interface."""
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=1), name='lin')
    data = mx.io.NDArrayIter(np.ones((4, 3)), np.zeros(4), batch_size=2, label_name='lin_label')
    mx.mod.Module(symbol, label_names=('lin_label',)).fit(data, num_epoch=1, kvstore=store)


def lamb_trainer():
    """Train with an optimizer that cannot update a row_sparse weight, as the first forward pass of training finds."""
    net = SparseEmbedding(9, 2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'lamb', kvstore='hybrid')
    with mx.autograd.record():
        net(mx.nd.array([1]))
    return trainer


def too_many_partitions():
    """Ask for more partitions than tables have rows; return the report of a store."""
    table = mx.nd.sparse.zeros('row_sparse', (5, 2))
    kv = mxhybrid.create(partitions=99)
    kv.init('small', table)
    text = kv.report()
    kv = mxhybrid.create(partitions=99, routes='allreduce')
    kv.init('held', table)
    kv.init('summed', mx.nd.zeros((5, 2)))
    for _ in range(3):
        kv.push('held', table)
        kv.push('summed', table)
    return text


kv = mx.kv.create('hybrid')
kv.init('dense', ones((3, 2)))
kv.init('table', rows(list(range(9))))
calls = wrong_calls(kv) + (wrong_in_jobs(kv) if kv.num_workers > 1 else [])
problems = {name: problem_of(call, words) for name, call, words in calls}
# After all of that the store still works, so nothing was sent by halves.
kv.push('dense', ones((3, 2)))
kv.push('table', rows([2, 4]))
dense, sparse = mx.nd.zeros((3, 2)), out()
kv.pull('dense', out=dense)
kv.row_sparse_pull('table', out=sparse, row_ids=mx.nd.array([2, 3]))
report(kv.rank, problems=problems, dense=dense, rows=sparse.data)
if kv.num_workers > 1:
    report(kv.rank, reduced=too_many_partitions())
