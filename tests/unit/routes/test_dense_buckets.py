"""Buckets of dense weights: the outputs that get the values which the store has updated."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.settings import Settings
from mxhybrid.lane.allreduce import AllreduceBuffer
from mxhybrid.routes.dense_allreduce import DenseAllreduce
from mxhybrid.routes.dense_buckets import DenseBuckets
from mxhybrid.routes.route import RouteContext

from ..lane.hosts import hosts

pytestmark = pytest.mark.both_pythons

SHAPES = [(5, 3), (40, 50), (7,)]


class OneWorker:
    """The collective of a job of one worker on the lane."""

    rank, size, sums_together = 0, 1, True

    def __init__(self, job):
        self._job, self._numbers = job, iter(range(100))

    def broadcast_(self, array, name, priority=0):
        """Nobody needs it."""

    def allreduce_buffer(self, name, count, dtype, ends=(), quantized=False):
        number = next(self._numbers)
        opened = self._job.allreduce(number, dtype, count)[0]
        return AllreduceBuffer(SimpleNamespace(open_allreduce=lambda *_: opened.pointer), number, count, dtype)

    def allreduce_bucket(self, bucket, values, name, priority):
        bucket.start(priority)


@pytest.fixture
def collective():
    with hosts([1], [1]) as job:
        yield OneWorker(job)
        mx.nd.waitall()


def outputs(kind):
    """Return the outputs of each weight."""
    if kind == 'several':
        return [[mx.nd.zeros(shape), mx.nd.zeros(shape)] for shape in SHAPES]
    if kind == 'float64':
        return [[mx.nd.zeros(shape, dtype='float64')] for shape in SHAPES]
    if kind == 'none of one':
        return [[], *([mx.nd.zeros(shape)] for shape in SHAPES[1:])]
    if kind == 'views':  # of one array
        sizes = [int(np.prod(shape)) for shape in SHAPES]
        whole, ends = mx.nd.zeros(sum(sizes)), np.cumsum(sizes)
        return [[whole[int(end - size):int(end)].reshape(shape)] for shape, end, size in zip(SHAPES, ends, sizes)]
    return [[mx.nd.zeros(shape)] for shape in SHAPES]


@pytest.mark.parametrize('kind', ['one', 'several', 'float64', 'none of one', 'views'])
def test_all_outputs_get_the_updated_values(collective, kind):
    routes = []
    for key, shape in enumerate(SHAPES):
        route = DenseAllreduce(key, 'w%d' % key, mx.nd.zeros(shape),
                               RouteContext(collective, SimpleNamespace(), Settings(), 'unit'))
        route.init(mx.nd.full(shape, key), [], 0)
        routes.append(route)
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    reference = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    expected = [mx.nd.full(shape, key) for key, shape in enumerate(SHAPES)]
    buckets, outs = DenseBuckets(collective, 'unit'), outputs(kind)
    gradients = [mx.nd.zeros(shape) for shape in SHAPES]
    work = [(route, [gradient], targets) for route, gradient, targets in zip(routes, gradients, outs)]
    for step in range(4):
        for gradient in gradients:
            gradient[:] = step + 0.25
        assert buckets.pushpull(work, updater, 0) == []
        reference(list(range(len(SHAPES))), gradients, expected)
        for route, targets, value in zip(routes, outs, expected):
            for array in [route.held(), *targets]:
                np.testing.assert_array_equal(array.asnumpy(), value.asnumpy())
