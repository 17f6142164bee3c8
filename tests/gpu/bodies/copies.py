"""Move arrays of a GPU through the store by copies alone, which need no kernel of MXNet, and compare with NumPy.

A GPU for which an MXNet build has no kernels (``mxhybrid doctor`` reports it) copies all the same, so that this shows
there how arrays pass through the host's memory.  args: ``--device cpu`` or ``gpu``; several workers may share a GPU.
"""
import argparse

import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid  # noqa: F401  registers the store

ROWS, WIDTH = 40, 6


def values_of(rank, seed, shape):
    return np.random.RandomState(1000 * seed + rank).uniform(-1, 1, shape).astype('float32')


def sum_of(workers, seed, shape):
    return sum(values_of(rank, seed, shape).astype('float64') for rank in range(workers))


def assert_close(actual, expected, tolerance):
    np.testing.assert_allclose(actual.asnumpy(), expected, rtol=0, atol=tolerance)


def check_dense(store, device):
    shapes = [(3, 5), (1,), (257, 33), (1 << 18,)]
    for key, shape in enumerate(shapes):
        out = mx.nd.array(np.full(shape, 7.0, 'float32'), ctx=device)
        store.broadcast(str(key), mx.nd.array(values_of(store.rank, key, shape), ctx=device), out)
        assert_close(out, values_of(0, key, shape), 1e-6)
    for step in range(1, 6):
        gradients = [mx.nd.array(values_of(store.rank, 10 * step + key, shape), ctx=device)
                     for key, shape in enumerate(shapes)]
        outs = [mx.nd.array(np.zeros(shape, 'float32'), ctx=device) for shape in shapes]
        if step % 2:
            store.pushpull([str(key) for key in range(len(shapes))], gradients, outs)
        else:
            for key, (gradient, out) in enumerate(zip(gradients, outs)):
                store.pushpull(str(key), gradient, out)
        for key, (shape, out) in enumerate(zip(shapes, outs)):
            assert out.context == device, out.context
            assert_close(out, sum_of(store.num_workers, 10 * step + key, shape), 1e-5)
    # In place, as Trainer.allreduce_grads does.
    gradient = mx.nd.array(values_of(store.rank, 99, shapes[2]), ctx=device)
    store.pushpull('2', gradient)
    assert_close(gradient, sum_of(store.num_workers, 99, shapes[2]), 1e-5)


def sparse_on(device, rows, ids):
    return mx.nd.sparse.row_sparse_array((mx.nd.array(rows, ctx=device), mx.nd.array(ids, dtype='int64', ctx=device)),
                                         shape=(ROWS, WIDTH), ctx=device)


def check_table(store, device):
    whole = values_of(0, 500, (ROWS, WIDTH)).astype('float64')
    store.set_optimizer(mx.optimizer.create('sgd', learning_rate=0.5))
    store.init('table', mx.nd.array(values_of(0, 500, (ROWS, WIDTH))).tostype('row_sparse'))
    for step in range(5):
        touched = [np.sort(np.random.RandomState(50 * step + rank).choice(ROWS, 7, replace=False))
                   for rank in range(store.num_workers)]
        row_ids = touched[store.rank]
        out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH), ctx=device)
        store.row_sparse_pull('table', out=out, row_ids=mx.nd.array(row_ids, dtype='int64', ctx=device))
        assert out.context == device, out.context
        assert_close(out.indices, row_ids, 0)
        assert_close(out.data, whole[row_ids], 1e-5)
        store.push('table', sparse_on(device, values_of(store.rank, 600 + step, (7, WIDTH)), row_ids))
        for rank, ids in enumerate(touched):
            whole[ids] -= 0.5 * values_of(rank, 600 + step, (7, WIDTH))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--device', default='gpu', choices=['cpu', 'gpu'])
    device = mx.gpu(0) if parser.parse_args().device == 'gpu' else mx.cpu()
    store = mx.kv.create('hybrid')
    check_dense(store, device)
    check_table(mx.kv.create('hybrid'), device)
    report(store.rank)


main()
