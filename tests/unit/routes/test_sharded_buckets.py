"""Shards of buckets: as equal as whole rows allow, and updated as MXNet's optimizers update whole weights."""
import itertools
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.lane.allreduce import AllreduceBuffer
from mxhybrid.routes.sharded_buckets import ShardedBucket, shard_ends

from ..lane.hosts import hosts

SHAPES = [(6, 5), (4,), (9, 3, 2), (1, 7)]
KEYS = list(range(len(SHAPES)))
WORKERS, STEPS = 2, 4

shapes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes, st.integers(1, 8))
@settings(deadline=None)
def test_shards_are_rows_and_nearly_equal(arrays, count):
    ends = shard_ends(arrays, count)
    sizes = [int(np.prod(shape)) for shape in arrays]
    total, widest = sum(sizes), max(int(np.prod(shape[1:])) for shape in arrays)
    assert len(ends) == count and ends[-1] == total and ends == sorted(ends)
    borders = {start + row * int(np.prod(shape[1:])) for shape, start in
               zip(arrays, itertools.accumulate([0] + sizes)) for row in range(shape[0] + 1)}
    assert set(ends) <= borders
    for number, end in enumerate(ends, 1):
        assert abs(end - total * number / count) <= widest / 2 + 1


@pytest.mark.parametrize('arrays, count, ends', [([(4,)], 2, [2, 4]), ([(1, 100)], 3, [0, 100, 100]),
                                                 ([(3, 2), (2,)], 4, [2, 4, 6, 8])])
def test_shards_of_some_arrays(arrays, count, ends):
    assert shard_ends(arrays, count) == ends


class Worker:
    """A worker with a bucket of weights; it is the collective and the updater of the bucket."""

    def __init__(self, rank, buffer, optimizer, dtype):
        self.rank, self.size, self._opened = rank, WORKERS, buffer
        self.reduction = SimpleNamespace(buffer=self._buffer, workers_by_host=list(range(WORKERS)))
        self.weights, self.gradients = random_arrays(0, dtype), random_arrays(0, dtype)
        self._updater = mx.optimizer.get_updater(optimizer)
        self.optimizer, self.states, self.states_synced = (self._updater.optimizer, self._updater.states,
                                                           self._updater.states_synced)
        #: The keys of each update that MXNet made.
        self.calls = []
        routes = [SimpleNamespace(key=key, shape=shape, rows=shape[0], width=int(np.prod(shape[1:])),
                                  dtype=np.dtype(dtype), traffic=SimpleNamespace(add=lambda **_: None))
                  for key, shape in zip(KEYS, SHAPES)]
        self.bucket = ShardedBucket(self, 'bucket', routes)

    def __call__(self, keys, gradients, weights):
        self.calls.append(list(keys))
        self._updater(keys, gradients, weights)

    def _buffer(self, name, count, dtype, ends):
        return AllreduceBuffer(SimpleNamespace(open_allreduce=lambda *_: self._opened.pointer), 1, count, dtype, ends)

    def allreduce_bucket(self, bucket, values, name, priority, scatter):
        bucket.start(priority, scatter)

    def gather_ranges(self, buffer, name, priority):
        buffer.gather(priority)


def random_arrays(seed, dtype):
    random = np.random.RandomState(seed)
    return [mx.nd.array(random.normal(size=shape), dtype=dtype) for shape in SHAPES]


OPTIMIZERS = {'sgd': ('sgd', {'wd': 0.01}), 'momentum': ('sgd', {'momentum': 0.9, 'clip_gradient': 0.3}),
              'adam': ('adam', {'wd': 0.01}), 'nag': ('nag', {'momentum': 0.9})}


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('scatters', [True, False], ids=['scattered sums', 'whole sums'])
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_sharded_updates_are_mxnets_bit_for_bit(name, scatters, dtype):
    """Compiled kernels update shards with scattered sums once MXNet has made their states, but not shards that a
    script may have changed the sums of, nor those of other optimizers.  In one step, a weight is left out.
    """
    kind, options = OPTIMIZERS[name]

    def optimizer():
        created = mx.optimizer.create(kind, learning_rate=0.1, rescale_grad=0.5, param_idx2name=dict(enumerate('abcd')),
                                      **options)
        created.set_lr_mult({'b': 0.5})
        return created
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    expected, updater = random_arrays(0, dtype), mx.optimizer.get_updater(optimizer())
    with hosts([WORKERS], [1]) as job:
        workers = [Worker(rank, buffer, optimizer(), dtype) for rank, buffer in enumerate(
            job.allreduce(1, dtype, sum(sizes), shard_ends(SHAPES, WORKERS)))]
        owned_keys = [list(worker.bucket.shards) for worker in workers]
        assert set(owned_keys[0]) | set(owned_keys[1]) == set(KEYS)
        for step in range(STEPS):
            keys = [key for key in KEYS if step != 2 or key != 1]
            parts = [random_arrays(WORKERS * step + rank + 1, dtype) for rank in range(WORKERS)]
            updater(list(keys), [parts[0][key] + parts[1][key] for key in keys], [expected[key] for key in keys])
            for worker, part in zip(workers, parts):
                for gradient, value in zip(worker.gradients, part):
                    value.copyto(gradient)
                worker.calls.clear()
            for worker in workers:
                worker.bucket.sum({key: worker.gradients[key] for key in keys}, scatters, 0)
            for worker in workers:
                worker.bucket.update(worker, {key: worker.gradients[key] for key in keys},
                                     {key: worker.weights[key] for key in keys})
            compiled = scatters and name != 'nag' and step > 0
            for worker, owned in zip(workers, owned_keys):
                assert worker.calls == ([] if compiled else [[key for key in owned if key in keys]])
                for weight, other in zip(worker.weights, expected):
                    np.testing.assert_array_equal(weight.asnumpy(), other.asnumpy(), err_msg='step %d' % step)
        mx.nd.waitall()
        del workers
