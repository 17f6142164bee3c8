"""Buckets of dense weights choose the outputs that get the updated values."""
import functools
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.settings import Settings
from mxhybrid.kvstore.compiled_updates import CompiledUpdates
from mxhybrid.lane import gradient_bucket
from mxhybrid.lane.allreduce import AllreduceBuffer
from mxhybrid.routes.dense_allreduce import DenseAllreduce
from mxhybrid.routes.dense_buckets import DenseBuckets

from ..lane.hosts import hosts
from .alone import context

pytestmark = pytest.mark.both_pythons

SHAPES = [(5, 3), (40, 50), (7,)]


class OneWorker:
    """The collective of a job of one worker on the lane."""

    rank, size, sums_together = 0, 1, True

    def __init__(self, job):
        self._job, self._numbers = job, iter(range(100))
        self.reduction = SimpleNamespace(buffer=self._buffer)

    def broadcast_(self, array, name, priority=0):
        """Nobody needs it."""

    def _buffer(self, name, count, dtype, ends=(), quantized=False):
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


def zeros(count=1, dtype='float32'):
    return [[mx.nd.zeros(shape, dtype=dtype) for _ in range(count)] for shape in SHAPES]


def views():
    """Return a view of one array for each weight."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    whole, ends = mx.nd.zeros(sum(sizes)), np.cumsum(sizes)
    return [[whole[int(end - size):int(end)].reshape(shape)] for shape, end, size in zip(SHAPES, ends, sizes)]


#: Functions that return the outputs of each weight.
OUTPUTS = {
    'one': zeros, 'several': lambda: zeros(2), 'float64': lambda: zeros(dtype='float64'),
    'none of one': lambda: [[], *zeros()[1:]], 'views': views}


def routes_of(collective, shapes, settings=None):
    """Return routes whose weights have the number of the route as their elements."""
    routes = []
    for key, shape in enumerate(shapes):
        route = DenseAllreduce(key, 'w%d' % key, mx.nd.zeros(shape), context(collective, settings))
        route.init(mx.nd.full(shape, key), [], 0)
        routes.append(route)
    return routes


@pytest.mark.parametrize('kind', OUTPUTS)
def test_all_outputs_get_the_updated_values(collective, kind):
    routes = routes_of(collective, SHAPES)
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    reference = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    expected = [mx.nd.full(shape, key) for key, shape in enumerate(SHAPES)]
    buckets, outs = DenseBuckets(collective, 'unit'), OUTPUTS[kind]()
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


class Evaluation:
    """A convolution without ``autograd.record``, after which oneDNN keeps the weight in a layout of its own."""

    shape = (64, 32, 3, 3)

    def __init__(self, weight):
        self._weight, self._data = weight, mx.nd.ones((2, self.shape[1], 9, 9))

    def run(self):
        """Evaluate the convolution, and check that the layout of the weight has changed."""
        mx.nd.Convolution(self._data, self._weight, kernel=self.shape[2:], num_filter=self.shape[0], no_bias=True)
        mx.nd.waitall()
        with pytest.raises(mx.MXNetError, match='MKLDNN data'):
            self._weight.to_dlpack_for_read()


@pytest.mark.parametrize('when', ['before the call', 'before the push of the update'])
def test_outputs_whose_layout_an_evaluation_has_changed(collective, monkeypatch, when):
    """MXNet changes the layout while the evaluation runs, so at any time before the update runs."""
    shapes = [Evaluation.shape, (7,)]
    routes, outs = routes_of(collective, shapes), [mx.nd.zeros(shape) for shape in shapes]
    gradients = [mx.nd.zeros(shape) for shape in shapes]
    work = [(route, [gradient], [out]) for route, gradient, out in zip(routes, gradients, outs)]
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    evaluation, buckets = Evaluation(outs[0]), DenseBuckets(collective, 'unit')
    push, names = gradient_bucket.push_native_sync, []

    def evaluate_and_push(function, parameter, reads, writes, priority, name, delete):
        names.append(name)
        if when == 'before the push of the update':
            evaluation.run()
        push(function, parameter, reads, writes, priority, name, delete)

    monkeypatch.setattr(gradient_bucket, 'push_native_sync', evaluate_and_push)
    for step in range(3):
        for gradient in gradients:
            gradient[:] = mx.nd.arange(gradient.size).reshape(gradient.shape) + step
        if when == 'before the call':
            evaluation.run()
        assert buckets.pushpull(work, updater, 0) == []
        for route, out in zip(routes, outs):
            np.testing.assert_array_equal(out.asnumpy(), route.held().asnumpy())
    assert names == 2 * [b'mxhybrid_update']  # MXNet makes the first update, and with it the state


@pytest.mark.parametrize('kind', OUTPUTS)
def test_updates_write_first_outputs_that_are_separate(collective, kind):
    weights, outs = [mx.nd.zeros(shape) for shape in SHAPES], OUTPUTS[kind]()
    copies = [targets[0] if targets else None for targets in outs]
    states = [None, None] * len(SHAPES)
    update = gradient_bucket.DenseUpdate
    assert update(weights, states, copies=copies).writes_copies == (kind not in ('float64', 'views'))
    assert not update(weights, states).writes_copies
    assert not update(weights, states, copies=[weights[0], *copies[1:]]).writes_copies


def write_and_note(sums, written):
    """Write sums to their gradients, and add them to a list."""
    sums.write()
    written.append(sums)


@pytest.mark.parametrize('wire_dtype', ['float32', 'float16'])
@pytest.mark.parametrize('keys', [[0, 1, 2], [2, 0, 1], [1, 2]], ids=str)
@pytest.mark.parametrize('name', ['sgd', 'adam', 'nag'])
def test_updates_write_sums_to_gradients(collective, name, keys, wire_dtype):
    """Updates of all weights of a bucket take the sums from its buffer, other updates from gradients."""
    routes = routes_of(collective, SHAPES, Settings(wire_dtype=(('*', wire_dtype),)))
    for route in routes:
        route.init(mx.nd.zeros(SHAPES[route.key]), [], 0, keeps_dense=False)
    updater, reference = [mx.optimizer.get_updater(mx.optimizer.create(name, learning_rate=0.1, wd=0.01))
                          for _ in range(2)]
    weights, expected = [[mx.nd.full(shape, key) for key, shape in enumerate(SHAPES)] for _ in range(2)]
    gradients = [mx.nd.zeros(shape) for shape in SHAPES]
    buckets, updates = DenseBuckets(collective, 'unit'), CompiledUpdates()
    work = [(route, [gradient], [gradient]) for route, gradient in zip(routes, gradients)]
    for step in range(4):
        sums = [np.random.RandomState([step, key]).normal(size=shape).astype('f2').astype('f4')
                for key, shape in enumerate(SHAPES)]
        for gradient, value in zip(gradients, sums):
            gradient[:] = value
        pending = []
        assert buckets.pushpull(work, None, 0, pending) == []
        assert [key for part in pending for key in part.keys] == [0, 1, 2]
        for gradient in gradients:
            gradient[:] = -1
        written = []
        updates.take_sums([part._replace(write=functools.partial(write_and_note, part, written)) for part in pending])
        updates.update(updater, keys, [gradients[key] for key in keys], [weights[key] for key in keys])
        updates.write_sums()
        reference(keys, [mx.nd.array(sums[key]) for key in keys], [expected[key] for key in keys])
        for gradient, value, weight, other in zip(gradients, sums, weights, expected):
            np.testing.assert_array_equal(gradient.asnumpy(), value)
            np.testing.assert_array_equal(weight.asnumpy(), other.asnumpy())
        # MXNet makes the first update and those of nag; compiled updates read a bucket if all its weights are updated.
        assert bool(written) == (step == 0 or name == 'nag' or len(keys) < 3)
