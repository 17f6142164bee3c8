"""Sum dense values of many types and shapes, gather and copy arrays, and compare with NumPy; args: steps [rank].

With a rank, that worker kills itself in the middle of its second step.

Values are small whole numbers, so that every order of adding gives the same bits.
"""
import os
import signal
import sys

import mxnet as mx
import numpy as np
from lab.reports import report

import mxhybrid

SHAPES = {'one': (1,), 'few': (3, 5), 'odd': (7, 11, 13), 'flat': (40001,), 'large': (1200, 1000)}
DTYPES = ['float32', 'float64', 'int32', 'int64', 'float16']


def values_of(worker, key, step, shape, dtype):
    return np.random.RandomState([worker, step, len(key)]).randint(-9, 10, shape).astype(dtype)


doomed = int(sys.argv[2]) if len(sys.argv) > 2 else None
store = mxhybrid.create()
shapes = {'%s-%s' % (name, dtype): (shape, dtype) for dtype in DTYPES for name, shape in SHAPES.items()
          if dtype in ('float32', 'float16') or name != 'large'}
shapes.update({'tiny%d' % i: ((i % 7 + 1,), 'float32') for i in range(60)})
for key, (shape, dtype) in shapes.items():
    store.init(key, mx.nd.zeros(shape, dtype=dtype))
arrays = {key: mx.nd.zeros(shape, dtype=dtype) for key, (shape, dtype) in shapes.items()}
for step in range(int(sys.argv[1])):
    # Workers come to a sum in different orders, and nobody waits before the end of a step.
    for count, key in enumerate(np.random.RandomState(100 * step + store.rank).permutation(sorted(shapes))):
        if (step, count, store.rank) == (1, len(shapes) // 2, doomed):
            os.kill(os.getpid(), signal.SIGKILL)
        shape, dtype = shapes[key]
        arrays[key][:] = mx.nd.array(values_of(store.rank, key, step, shape, dtype), dtype=dtype)
        store.pushpull(key, arrays[key], out=arrays[key])
    for key, (shape, dtype) in shapes.items():
        expected = sum(values_of(worker, key, step, shape, dtype) for worker in range(store.num_workers))
        np.testing.assert_array_equal(arrays[key].asnumpy(), expected, key)
# Several in one call, other ones in each step, more selections than are summed together: all the same sums.
names = sorted(shapes)
for step in range(9):
    chosen = names[step % 6::1 + step % 6]
    for key in chosen:
        shape, dtype = shapes[key]
        arrays[key][:] = mx.nd.array(values_of(store.rank, key, step, shape, dtype), dtype=dtype)
    given = [arrays[key] for key in chosen] if step % 2 else [arrays[key].copy() for key in chosen]
    store.pushpull(chosen, given, out=given)
    for key, array in zip(chosen, given):
        expected = sum(values_of(worker, key, step, *shapes[key]) for worker in range(store.num_workers))
        np.testing.assert_array_equal(array.asnumpy(), expected, key)
selections = len(store.backend._buckets._buckets)
# Keys share arrays: all values are read before sums are written.
keys = ['shared%d' % index for index in range(3)]
chain = [mx.nd.full((40001,), value) for value in range(4)]
store.broadcast(keys, chain[:3], out=chain[1:])
assert [array.mean().asscalar() for array in chain] == [0, 0, 1, 2]
store.pushpull(keys, chain[1:], out=chain[:3])
assert [array.mean().asscalar() for array in chain] == [0, store.num_workers, 2 * store.num_workers, 2]
for array in (mx.nd.ones((40001,)), mx.np.ones((40001,))):
    for power in (1, 2):
        store.pushpull(keys, [array] * 3)
        assert float(array.mean().asnumpy()) == store.num_workers ** power
# Sums of fractions depend on the order of adding: all workers must have the same bits.
fractions = mx.nd.array(np.random.RandomState(store.rank).normal(size=50000))
store.init('fractions', mx.nd.zeros(50000))
store.pushpull('fractions', fractions, out=fractions)
# Numbers of all workers, of any count, none included.
collective = store.backend._collective
for step, counts in enumerate([[3, 0, 5], [0, 0, 0], [1000, 1, 70000], [2, 2, 2]]):
    mine = [np.random.RandomState([step, worker]).randint(-2 ** 40, 2 ** 40, counts[worker % 3])
            for worker in range(store.num_workers)]
    for name, dtype, mask in (('wide', np.int64, -1), ('narrow', np.int32, 2 ** 31 - 1)):
        found = collective.allgather(mine[store.rank] & mask, 'test.' + name, dtype)
        assert len(found) == store.num_workers
        for worker, values in enumerate(found):
            assert values.dtype == np.int64
            np.testing.assert_array_equal(values, mine[worker] & mask)
texts = collective.allgather_json({'rank': store.rank, 'text': 'gr\u00f6\u00dfe' * 100 * store.rank}, 'test.texts')
assert texts == [{'rank': worker, 'text': 'gr\u00f6\u00dfe' * 100 * worker} for worker in range(store.num_workers)]
# Arrays of worker 0, of more than one piece, with bytes of zeros that have a sign and of values that are no numbers.
for dtype, count in {'float32': 5300001, 'float16': 4500003, 'float64': 7, 'uint8': 33}.items():
    expected = (np.random.RandomState(count).standard_normal(count) * 100).astype(dtype)
    if dtype != 'uint8':
        expected[:3] = [-0.0, np.nan, np.inf]
    array = mx.nd.array(expected if store.rank == 0 else np.zeros(count), dtype=dtype)
    store.backend.broadcast(array, dtype)
    assert array.asnumpy().tobytes() == expected.tobytes(), dtype
report(store.rank, fractions=fractions, by_lane=store.backend._collective.reduction is not None, selections=selections)
