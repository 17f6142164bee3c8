"""Gradient buckets: allreduces and updates in MXNet's engine, bit for bit equal to MXNet's operators."""
import gc

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.lane.allreduce import AllreduceBuffer
from mxhybrid.lane.gradient_bucket import Copies, DenseUpdate, GradientBucket
from mxhybrid.native.dense_rules import Update, begin_update
from mxhybrid.native.optimizer_state import state_arrays

from .hosts import hosts, lib, sum_in_rank_order

pytestmark = pytest.mark.both_pythons

SHAPES = [(3,), (7, 5), (1,), (40, 50), (2, 3, 4)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
ROUNDS = 4
#: The number of rounds in which the learning rate changes.
MORE_ROUNDS = 40


class JobWorker:
    """The part of a worker on the lane that AllreduceBuffer calls."""

    def __init__(self, job, worker):
        self._job, self._worker = job, worker

    def open_allreduce(self, number, dtype, count):
        return self._job.open_allreduce(self._worker, number, list(lib.dtypes)[dtype], count).pointer


@pytest.fixture
def job():
    with hosts([1], [1]) as job:
        yield job


def make_buffer(job, dtype, worker=0):
    return AllreduceBuffer(JobWorker(job, worker), 1, sum(SIZES), np.dtype(dtype))


def make_bucket(job, gradients, wire_dtype=None):
    """Return a bucket of gradients, which travel as `wire_dtype`, and its buffer."""
    dtype = np.dtype(gradients[0].dtype)
    buffer = make_buffer(job, wire_dtype or dtype)
    return GradientBucket(buffer, gradients, dtype), buffer


def arrays(seed, dtype):
    random = np.random.RandomState(seed)
    return [mx.nd.array(random.normal(size=shape), dtype=dtype) for shape in SHAPES]


def sgd(rescale):
    """Return an update by SGD of arrays of all shapes, with rate 1 and without weight decay."""
    return Update('sgd', {'rescale': rescale}, [None, None] * len(SHAPES), ([1.0] * len(SHAPES), [0.0] * len(SHAPES)))


OPTIMIZERS = {
    'sgd': ('sgd', {'learning_rate': 0.1}), 'sgd wd': ('sgd', {'learning_rate': 0.1, 'wd': 0.01}),
    'sgd clip': ('sgd', {'learning_rate': 0.1, 'wd': 0.01, 'clip_gradient': 0.3}),
    'momentum': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01}),
    'momentum clip': ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'clip_gradient': 0.3}),
    'adam': ('adam', {'learning_rate': 0.01, 'wd': 0.1}),
    'sgd odd': ('sgd', {'learning_rate': 1.7e-5, 'wd': 2.9e-5, 'clip_gradient': 4.3e-5}),
    'momentum odd': ('sgd', {'learning_rate': 1.7e-5, 'momentum': 1.9e-5, 'wd': 2.9e-5}),
    'adam odd': ('adam', {'learning_rate': 1.7e-5, 'wd': 2.9e-5, 'epsilon': 1.7e-7, 'clip_gradient': 4.3e-5}),
    'adagrad': ('adagrad', {'learning_rate': 0.1, 'wd': 0.01}),
    'adagrad odd': ('adagrad', {'learning_rate': 1.7e-5, 'wd': 2.9e-5, 'eps': 1.7e-7, 'clip_gradient': 4.3e-5}),
    'adam clip': ('adam', {'learning_rate': 0.01, 'beta1': 0.8, 'clip_gradient': 0.3}),
}


# MXNet's adagrad fails with float64 weights and dense gradients.
@pytest.mark.parametrize('name, dtype', [(name, dtype) for dtype in ('float32', 'float64') for name in OPTIMIZERS
                                         if dtype == 'float32' or 'adagrad' not in name])
def test_updates_are_mxnets_bit_for_bit(job, name, dtype):
    kind, options = OPTIMIZERS[name]

    def create():
        optimizer = mx.optimizer.create(kind, rescale_grad=0.25, param_idx2name=dict(enumerate('abcde')), **options)
        optimizer.set_lr_mult({'b': 0.5})
        optimizer.set_wd_mult({'c': 0.0})
        return mx.optimizer.get_updater(optimizer)
    reference, updater = create(), create()
    keys = list(range(len(SHAPES)))
    expected, weights = arrays(0, dtype), arrays(0, dtype)
    gradients = arrays(1, dtype)
    bucket, _ = make_bucket(job, gradients)
    rates = np.random.RandomState(7)
    rounds = MORE_ROUNDS if name.endswith('odd') else ROUNDS
    for step in range(rounds):
        for array, value in zip(gradients, arrays(10 + step, dtype)):
            value.copyto(array)
        if name.endswith('odd'):  # MXNet's operators get floats that are not the nearest ones
            lr, rescale = (10 ** rates.uniform(-7, 0, 2)).tolist()
            for each in (updater, reference):
                each.optimizer.lr, each.optimizer.rescale_grad = lr, rescale
        reference(list(keys), gradients, expected)
        if step == 0:  # MXNet creates the state
            assert begin_update(updater, keys, mx.cpu(), dtype) is None
            updater(list(keys), gradients, weights)
            continue
        update = begin_update(updater, keys, mx.cpu(), dtype)
        bucket.start(0)
        DenseUpdate(weights, update.states).start(update, 0, bucket)
        for result, other in zip(weights, expected):
            np.testing.assert_array_equal(result.asnumpy(), other.asnumpy(), err_msg='step %d' % step)
    assert updater.optimizer.num_update == reference.optimizer.num_update == rounds
    for key in keys:
        for result, other in zip(*(state_arrays(each.states[key]) for each in (updater, reference))):
            np.testing.assert_array_equal(result.asnumpy(), other.asnumpy())


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('workers', [([1], [1]), ([2], [1]), ([5], [2]), ([2, 1], [1, 1])], ids=str)
def test_buckets_are_summed_in_rank_order(workers, dtype):
    """The last worker of one host adds its gradients from where they are; a missing gradient keeps its range."""
    with hosts(*workers) as job:
        gradients, buckets, buffers = [], [], []
        for worker in range(len(job.workers)):
            buffers.append(make_buffer(job, dtype, worker))
            buffers[-1].input[:] = worker + 0.25
            gradients.append(arrays(worker, dtype))
            gradients[-1][2] = None
            buckets.append(GradientBucket(buffers[-1], gradients[-1], np.dtype(dtype), SIZES))
        for step in range(3):
            for worker in np.roll(np.arange(len(buckets)), step):  # another worker is the last one
                buckets[worker].start(0)
            for index, (end, size) in enumerate(zip(np.cumsum(SIZES), SIZES)):
                inputs = [np.full(size, worker + 0.25, dtype) if values[index] is None
                          else values[index].asnumpy().reshape(-1) for worker, values in enumerate(gradients)]
                expected = sum_in_rank_order(inputs, workers[0])
                for buffer in buffers:
                    np.testing.assert_array_equal(buffer.output.asnumpy()[end - size:end], expected)
        del buckets, gradients
        mx.nd.waitall()


@pytest.mark.parametrize('rule', ['multi sgd', 'dense adam'])
@pytest.mark.parametrize('in_lists', [False, True])
def test_the_update_says_how_rates_are_rounded(job, rule, in_lists):
    """MXNet rounds lists of rates and single rates differently: an update of a bucket follows its `in_lists`."""
    gradients = arrays(4, 'float32')
    bucket, _ = make_bucket(job, gradients)
    states = [mx.nd.zeros(shape) if rule == 'dense adam' else None for shape in SHAPES for _ in range(2)]
    settings = {'rescale': 1.0, 'clip': -1.0, 'beta1': 0.5, 'beta2': 0.5, 'epsilon': 0.5}
    rates = np.random.RandomState(5)
    for _ in range(MORE_ROUNDS):
        lrs = (10 ** rates.uniform(-7, 0, len(SHAPES))).tolist()
        update = Update(rule, settings, states, (lrs, [0.0] * len(SHAPES)), in_lists)
        weights, expected = [[mx.nd.zeros(shape) for shape in SHAPES] for _ in range(2)]
        own_states = [None if array is None else array.copy() for array in states]
        bucket.start(0)
        DenseUpdate(weights, states).start(update, 0, bucket)
        DenseUpdate(expected, own_states, gradients).start(update, 0)
        for result, other in zip(weights, expected):
            np.testing.assert_array_equal(result.asnumpy(), other.asnumpy())


def test_values_that_travel_as_float16(job):
    gradients = arrays(3, 'float32')
    bucket, buffer = make_bucket(job, gradients, 'float16')
    weights, update = [mx.nd.zeros(shape) for shape in SHAPES], sgd(rescale=1.0)
    bucket.start(0)
    DenseUpdate(weights, update.states).start(update, 0, bucket)
    for weight, gradient in zip(weights, gradients):
        np.testing.assert_array_equal(weight.asnumpy(), -gradient.asnumpy().astype('f2').astype('f4'))
    assert buffer.is_finite()
    for large in (70000, np.nan):
        gradients[-1][-1] = large
        bucket.start(0)
        assert not buffer.is_finite()


def test_engine_keeps_the_order_of_operations(job):
    """Many operations are pushed to the engine without a wait between them."""
    gradients = [mx.nd.zeros(shape) for shape in SHAPES]
    totals = [mx.nd.zeros(shape) for shape in SHAPES]
    bucket, buffer = make_bucket(job, gradients)
    ends = np.cumsum(SIZES)
    sums = [buffer.output[int(end - array.size):int(end)].reshape(array.shape) for array, end in zip(gradients, ends)]
    copies = Copies()
    seen = []
    for step in range(30):
        for array in gradients:
            array[:] = step
        bucket.start(-step)
        copies.run(sums, totals)
        seen.append([total.copy() for total in totals])
    for step, values in enumerate(seen):
        for value in values:
            assert (value.asnumpy() == step).all()


def test_arrays_and_buckets_may_be_deleted_early(job):
    """A script may delete net and Trainer after its last step, or use new arrays in each step."""
    buffer = make_buffer(job, 'float32')
    weights = [mx.nd.zeros(shape) for shape in SHAPES]
    update = sgd(rescale=-1.0)
    targets = DenseUpdate(weights, update.states)
    late = mx.nd.ones((700, 700))
    for step in range(1, 6):
        late = mx.nd.dot(late, late) * 0 + step  # keeps the engine busy
        gradients = [late[:1, :1].reshape(1) * mx.nd.ones(shape) for shape in SHAPES]
        bucket = GradientBucket(buffer, gradients, np.dtype('float32'))
        bucket.start(0)
        targets.start(update, 0, bucket)
        del bucket, gradients
        gc.collect()
        others = [mx.nd.full(shape, -1e6) for shape in SHAPES * 20]  # reuse the memory of the deleted arrays
    for weight in weights:
        assert (weight.asnumpy() == 15).all()
    assert others


def test_other_optimizers_are_left_to_mxnet():
    for optimizer in (mx.optimizer.NAG(momentum=0.9), mx.optimizer.RMSProp(),
                      type('Own', (mx.optimizer.SGD,), {})(momentum=0.9), mx.optimizer.SGD(momentum=-0.5)):
        updater = mx.optimizer.get_updater(optimizer)
        updater([0], [mx.nd.ones(3)], [mx.nd.ones(3)])
        counted = optimizer.num_update
        assert begin_update(updater, [0], mx.cpu(), 'float32') is None
        assert optimizer.num_update == counted
    updater = mx.optimizer.get_updater(mx.optimizer.SGD())
    updater([0], [mx.nd.ones(3, dtype='float16')], [mx.nd.ones(3, dtype='float16')])
    assert begin_update(updater, [0], mx.cpu(), 'float16') is None
