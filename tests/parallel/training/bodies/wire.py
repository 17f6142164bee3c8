"""Push given gradients to a store whose float32 values travel as float16; report all that comes back.

With ``--alone N`` one process computes what N workers must give: exactly or, with ``--rounded``, with every rounding
that wire_dtype=float16 documents and no other: of each worker's gradients, which ps-lite sends apart, or only of what
is pulled, as on the lane within one host.
"""
import argparse
import os
import pickle

import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid
from mxhybrid.native.arrays import make_row_sparse, row_sparse_parts
from tests.helpers.outcomes import error_of

SHAPE, STEPS = (23, 6), 12

OPTIMIZERS = {
    'sgd': {'learning_rate': 0.1, 'momentum': 0.9}, 'adam': {'learning_rate': 0.01},
    'sgd-notlazy': {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01, 'lazy_update': False},
    'rmsprop': {'learning_rate': 0.01, 'wd': 0.01},
}


def start(key, rank=0):
    """Initial values, one row zeros, many digits; worker 0's count."""
    values = np.random.RandomState(1000 * rank + key).normal(size=SHAPE).astype('f4')
    values[3], values[4, 0], values[5, 1] = 0, 1e-30, 70000.25
    return values


def gradient(key, step, rank):
    """Rows of one worker, magnitudes 1e-9 to 1e3; some steps without rows."""
    random = np.random.RandomState(100000 * key + 100 * step + rank)
    count = 0 if random.rand() < 0.2 else random.randint(1, 9)
    ids = np.sort(random.choice(SHAPE[0], count, replace=False)).astype(np.int64)
    return ids, (random.normal(size=(count, SHAPE[1])) * 10.0 ** random.uniform(-9, 3, (count, 1))).astype('f4')


def gradients(key, step, workers):
    """All workers' gradients of a step as dense arrays, and the rows that anyone touched."""
    parts, touched = [], []
    for rank in range(workers):
        ids, rows = gradient(key, step, rank)
        parts.append(np.zeros(SHAPE, 'f4'))
        parts[-1][ids] = rows
        touched.append(ids)
    return parts, np.unique(np.concatenate(touched))


def create(name):
    """Make one of the optimizers."""
    return mx.optimizer.create(name.split('-')[0], rescale_grad=0.5, **OPTIMIZERS[name])


def pulled_rows(kv, key, row_ids=range(SHAPE[0])):
    """Pull rows as workers do for a forward pass; return the table, in which other rows are zeros."""
    out = mx.nd.sparse.zeros('row_sparse', SHAPE)
    kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array(row_ids))
    return out.asnumpy()


class Together:
    """The calls and results of one worker of a job."""

    def __init__(self, wire, partitions):
        self.keywords = {'wire_dtype': wire, 'partitions': partitions}
        self.rank = mxhybrid.create(**self.keywords).rank
        self.reports = []

    def table(self, name, key, path, moves=False):
        """A row_sparse weight under an optimizer; its state is saved and loaded, or moves to allreduce."""
        kv = mxhybrid.create(**self.keywords)
        kv.set_optimizer(create(name))
        kv.init(key, make_row_sparse(np.arange(SHAPE[0]), start(key, self.rank), SHAPE))
        results = {'start': self._all(kv, key)}
        path = os.path.join(path, name)
        for step in range(STEPS):
            kv.push(key, make_row_sparse(*gradient(key, step, self.rank), SHAPE))
            if step == STEPS // 2 and moves:
                kv.backend.routes[key] = kv.backend.routes[key].to_allreduce(kv.backend._optimizer)
            elif step == STEPS // 2:
                kv.save_optimizer_states(path)
                kv._barrier()
                kv.load_optimizer_states(path)
        results.update(end=self._all(kv, key), pulled=pulled_rows(kv, key))
        kv.save_optimizer_states(path)
        if self.rank == 0:
            with open(path, 'rb') as handle:
                results.update(states_of(pickle.load(handle)[key]))
        self.reports.append(kv.report())
        return results

    @staticmethod
    def _all(kv, key):
        out = mx.nd.sparse.zeros('row_sparse', SHAPE)
        kv.pull(key, out=out, ignore_sparse=False)
        return out.asnumpy()

    def replaced(self, key):
        """A row_sparse weight without an optimizer: the rows of the last push, all others zeros."""
        kv = mxhybrid.create(**self.keywords)
        kv.init(key, make_row_sparse(np.arange(SHAPE[0]), start(key, self.rank), SHAPE))
        kv.push(key, make_row_sparse(*gradient(key, 1, self.rank), SHAPE))
        kv.push(key, make_row_sparse(*gradient(key, 2, self.rank), SHAPE))
        return {'all': self._all(kv, key), 'pulled': pulled_rows(kv, key)}

    def sums(self, key, sparse, dtype='float32', routes=None):
        """Sums of gradients of a dense weight."""
        kv = mxhybrid.create(routes=routes, **self.keywords)
        out = mx.nd.zeros(SHAPE, dtype=dtype)
        kv.broadcast(key, mx.nd.array(start(key, self.rank), dtype=dtype), out)
        results = {'start': out.asnumpy()}
        for step in range(STEPS):
            ids, rows = gradient(key, step, self.rank)
            grad = make_row_sparse(ids, rows.astype(dtype), SHAPE)
            if sparse:
                kv.push(key, grad)
                kv.pull(key, grad, ignore_sparse=False)
            else:
                grad = grad.tostype('default')
                kv.pushpull(key, grad)
            results['%02d' % step] = grad.asnumpy()
        self.reports.append(kv.report())
        return results


class Alone:
    """The results that the workers together must give."""

    def __init__(self, workers, rounded):
        self.workers, self.rounded = workers, rounded

    def merged(self, key, step, by_allreduce=False):
        """The sum of all workers' gradients, with the roundings of float16 or none but the last."""
        parts, touched = gradients(key, step, self.workers)
        if by_allreduce:
            total = self._sum_of_halves(key, step).astype('f4')
        elif self.rounded == 'apart':
            total = sum(part.astype('f2').astype('f4') for part in parts)
        elif self.rounded == 'pulled':
            total = sum(parts[1:], parts[0])
        else:
            total = sum(part.astype('f8') for part in parts).astype('f4')
        return touched, total

    def _pulled(self, values):
        return values.astype('f2').astype('f4') if self.rounded else values

    def table(self, name, key, _, moves=False):
        """MXNet's own updater, on the whole table."""
        weight = make_row_sparse(np.arange(SHAPE[0]), start(key), SHAPE)
        sparse = name in ('sgd', 'adam', 'sgd-notlazy')
        weight = weight if sparse else weight.tostype('default')
        updater = mx.optimizer.get_updater(create(name))
        for step in range(STEPS):
            touched, total = self.merged(key, step, moves and step > STEPS // 2)
            grad = make_row_sparse(touched, total[touched], SHAPE)
            updater(key, grad if sparse else grad.tostype('default'), weight)
        end = weight.asnumpy()
        pulled = end if moves else self._pulled(end)
        return dict(states_of(updater.states[key]), start=start(key), end=end, pulled=pulled)

    def replaced(self, key):
        """The last sum."""
        total = self.merged(key, 2)[1]
        return {'all': total, 'pulled': self._pulled(total)}

    def sums(self, key, sparse):
        """The sums, rounded once more when they are pulled; dense ones in every addition, here in order of rank."""
        results = {}
        for step in range(STEPS):
            total = self.merged(key, step, self.rounded and not sparse)[1]
            results['%02d' % step] = self._pulled(total)
        return dict(results, start=start(key))

    def _sum_of_halves(self, key, step):
        first, *others = [part.astype('f2') for part in gradients(key, step, self.workers)[0]]
        return sum(others, first)

    def halves(self, key):
        """Sums of float16 gradients."""
        found = {'%02d' % step: self._sum_of_halves(key, step) for step in range(STEPS)}
        return dict(found, start=start(key).astype('f2'))


def states_of(state):
    """Optimizer state as named arrays, rows that no step has touched as zeros."""
    arrays = state if isinstance(state, (list, tuple)) else [state]
    states = {}
    for index, array in enumerate(arrays):
        full = np.zeros(SHAPE, 'f4')
        if array.stype == 'row_sparse':
            ids, rows = row_sparse_parts(array)
            full[ids] = rows
        else:
            full[:] = array.asnumpy()
        states['state%d' % index] = full
    return states


def warn(worker):
    """Overflow on one worker, in a sum of all, and in a dense sum."""
    kv = mxhybrid.create(**worker.keywords)
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    for key, name in ((90, 'one'), (91, 'both')):
        kv._names[key] = 'table_' + name
        kv.init(key, make_row_sparse(np.arange(SHAPE[0]), np.zeros(SHAPE, 'f4'), SHAPE))
    kv._names[92] = 'layer'
    kv.init(92, mx.nd.zeros(SHAPE))
    values = {90: 70000.0 * (worker.rank == 1), 91: 40000.0}
    rows_by_key = {}
    for key, value in values.items():
        for _ in range(2):
            kv.push(key, make_row_sparse(np.array([7]), np.full((1, SHAPE[1]), value, 'f4'), SHAPE))
            rows_by_key[str(key)] = pulled_rows(kv, key, [7, 8])[7:9]
    for value in (40000.0, 1.0, 1.0):
        kv.pushpull(92, mx.nd.full(SHAPE, value))
    return rows_by_key


def problems(worker):
    """Return errors: another setting for a later store, other types on the servers, another cut."""
    kv = mxhybrid.create(**worker.keywords)
    kv.init(97, mx.nd.zeros(SHAPE, dtype='float64'))
    kv.init(98, mx.nd.sparse.zeros('row_sparse', SHAPE))
    return [error_of(mxhybrid.create), error_of(mxhybrid.create, wire_dtype='bfloat16'),
            error_of(kv.init, 95, mx.nd.sparse.zeros('row_sparse', SHAPE, dtype='float64')),
            error_of(kv.init, 96, mx.nd.sparse.zeros('row_sparse', SHAPE, dtype='float16')),
            error_of(kv.push, 97, mx.nd.sparse.zeros('row_sparse', SHAPE, dtype='float64')),
            error_of(kv.repartition, 98, 5)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--alone', type=int)
    parser.add_argument('--rounded', choices=['apart', 'pulled'])
    parser.add_argument('--wire')
    parser.add_argument('--partitions', type=int)
    parser.add_argument('--directory')
    parser.add_argument('--extra', action='store_true', help='also overflow and refusals')
    arguments = parser.parse_args()
    worker = (Alone(arguments.alone, arguments.rounded) if arguments.alone else
              Together(arguments.wire, arguments.partitions))
    results = {name: worker.table(name, key, arguments.directory) for key, name in enumerate(OPTIMIZERS)}
    results.update(replaced=worker.replaced(10), rows=worker.sums(11, True), dense=worker.sums(12, False))
    results.update({'half-rows': worker.halves(13) if arguments.alone else worker.sums(13, True, 'float16'),
                    'half-dense': worker.halves(14) if arguments.alone else worker.sums(14, False, 'float16')})
    if arguments.alone:
        by_allreduce = {'sgd': worker.table('sgd', 0, None, True), 'rows': results['dense']}
        report(0, outcomes=results, by_allreduce=by_allreduce if arguments.rounded == 'apart' else None)
        return
    report(worker.rank, outcomes=results, reports=worker.reports)
    if arguments.extra:
        report(worker.rank, by_allreduce={'sgd': worker.table('sgd', 0, arguments.directory, True),
                                          'rows': worker.sums(12, True, routes='allreduce')})
        report(worker.rank, warned=warn(worker), problems=problems(worker))


if __name__ == '__main__':
    main()
