"""Dense weights that a worker updates by compiled kernels have the bits of MXNet's own updates, in every call."""
import copy
import functools
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxhybrid.kvstore.compiled_updates import CompiledUpdates, StandIn
from mxhybrid.lane import gradient_bucket
from mxhybrid.native.optimizer_state import state_arrays

from ...helpers.gluon_nets import step

SHAPES = [(3,), (7, 5), (1,), (40, 50), (2, 3, 4), (130, 70), (5000,)]
ALL = range(7)
RATES = {'learning_rate': 0.1, 'wd': 0.01}
OPTIMIZERS = {
    'sgd': ('sgd', RATES), 'sgd clip': ('sgd', dict(RATES, clip_gradient=0.3)),
    'momentum': ('sgd', dict(RATES, momentum=0.9)),
    'momentum clip': ('sgd', dict(RATES, momentum=0.9, clip_gradient=0.3)),
    'adam': ('adam', RATES), 'adam clip': ('adam', dict(RATES, beta1=0.8, clip_gradient=0.3)),
    'adagrad': ('adagrad', RATES), 'adagrad clip': ('adagrad', dict(RATES, clip_gradient=0.3)),
    'momentum schedule': ('sgd', dict(RATES, momentum=0.9, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.7))),
    'adam schedule': ('adam', dict(RATES, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.7))),
}


def arrays(seed, dtypes):
    random = np.random.RandomState(seed)
    return [mx.nd.array(random.normal(size=shape), dtype=dtype) for shape, dtype in zip(SHAPES, dtypes)]


def numbers(arrays):
    return [array.asnumpy() for array in arrays]


class Pair:
    """Weights that MXNet updates, and equal ones that compiled kernels update where they can."""

    def __init__(self, optimizer, settings, dtypes=('float32',) * 7, sparse=()):
        self.reference, self.updater = [mx.optimizer.get_updater(mx.optimizer.create(
            optimizer, param_idx2name=dict(enumerate('abcdefg')), **copy.deepcopy(settings))) for _ in range(2)]
        for each in self.updaters:
            each.optimizer.set_lr_mult({'b': 0.5})
            each.optimizer.set_wd_mult({'c': 0.0})
        self.expected, self.weights = arrays(0, dtypes), arrays(0, dtypes)
        self.gradients = [array.tostype('row_sparse') if key in sparse else array
                          for key, array in enumerate(arrays(1, dtypes))]
        self.compiled_updates = CompiledUpdates()
        self.trainer = SimpleNamespace(_updaters=[self.updater])
        self._step = 0

    @property
    def updaters(self):
        """Both updaters."""
        return self.reference, self.updater

    def steps(self, *calls):
        """Make a step for each list of keys."""
        for keys in calls:
            self.step(keys)

    def step(self, keys=ALL):
        """Update the weights of `keys` with other gradients, and compare all."""
        self._step += 1
        for array in self.gradients:
            if array.stype == 'default':
                array[:] = mx.nd.array(np.random.RandomState([self._step, array.size]).normal(size=array.shape),
                                       dtype=array.dtype)
        gradients = [self.gradients[key] for key in keys]
        lr, rescale = (10 ** np.random.RandomState(self._step).uniform(-5, 0, 2)).tolist()
        for each in self.updaters:  # MXNet's operators get floats that are not the nearest ones
            each.optimizer.rescale_grad = rescale
            if each.optimizer.lr_scheduler is None:
                each.optimizer.set_learning_rate(lr)
        self.reference(list(keys), gradients, [self.expected[key] for key in keys])
        with self.compiled_updates.updating(self.trainer):
            self.trainer._updaters[0](list(keys), gradients, [self.weights[key] for key in keys])
        assert self.trainer._updaters == [self.updater]
        self.check()

    def check(self):
        """Compare weights, state and counts of updates."""
        np.testing.assert_equal(numbers(self.weights), numbers(self.expected), 'step %d' % self._step)
        expected_states, states = [{key: numbers(state_arrays(state)) for key, state in each.states.items()}
                                   for each in self.updaters]
        np.testing.assert_equal(states, expected_states)
        expected_counts, counts = [(each.optimizer.num_update, each.optimizer._all_index_update_counts)
                                   for each in self.updaters]
        assert counts == expected_counts


@pytest.fixture
def started(monkeypatch):
    """The number of weights in each compiled update that was started."""
    counts, start = [], gradient_bucket.DenseUpdate.start

    def start_and_count(self, update, *arguments):
        counts.append(len(update.rates[0]))
        start(self, update, *arguments)

    monkeypatch.setattr(gradient_bucket.DenseUpdate, 'start', start_and_count)
    return counts


@pytest.mark.both_pythons
# MXNet's adagrad fails with float64 weights and dense gradients.
@pytest.mark.parametrize('name, dtype', [(name, dtype) for dtype in ('float32', 'float64') for name in OPTIMIZERS
                                         if dtype == 'float32' or 'adagrad' not in name])
def test_all_weights_have_the_bits_of_mxnet(started, name, dtype):
    pair = Pair(*OPTIMIZERS[name], dtypes=[dtype] * 7)
    for number in range(5):
        pair.step()
        if number == 2:
            for each in pair.updaters:
                each.optimizer.clip_gradient, each.optimizer.wd = 4.3e-3, 0.3
    assert sum(started) == 4 * 7  # the first update makes the state


#: A schedule follows the largest count of updates, so the order of the updates counts.
SOME_MORE_OFTEN = [ALL, [5], [5, 6], ALL, [0, 1, 2, 3], ALL]
#: MXNet's sgd has other kernels for a call with a row_sparse gradient.
DENSE_AND_SPARSE = [ALL, ALL, [4], [1], [1, 5], ALL]


@pytest.mark.parametrize('sparse, calls', [
    ((), SOME_MORE_OFTEN), ((1,), DENSE_AND_SPARSE), ((0, 5), DENSE_AND_SPARSE), (ALL, DENSE_AND_SPARSE)])
@pytest.mark.parametrize('name', OPTIMIZERS)
def test_calls_with_some_of_the_weights(started, name, sparse, calls):
    pair = Pair(*OPTIMIZERS[name], sparse=sparse)
    pair.steps(*calls)
    assert sum(started) == sum(key not in sparse for keys in calls[1:] for key in keys)


@pytest.mark.parametrize('name', ['momentum schedule', 'adam schedule'])
def test_weights_of_several_types(started, name):
    optimizer, settings = OPTIMIZERS[name]
    dtypes = ['float32', 'float16', 'float64', 'float32', 'float16', 'float16', 'float32']
    pair = Pair(optimizer, dict(settings, multi_precision=True), dtypes)
    pair.steps(ALL, ALL, [2], [0, 1], ALL)
    assert sum(started) == 4 + 1 + 1 + 4


@pytest.mark.parametrize('name', ['momentum', 'adam'])
def test_state_that_is_loaded(started, name):
    """MXNet gives loaded state to the device of the weight in the first update, which may replace its arrays."""
    pair = Pair(*OPTIMIZERS[name])
    pair.steps(*[ALL] * 3)
    for each in pair.updaters:
        each.set_states(each.get_states(dump_optimizer=True))
    pair.steps(*[ALL] * 3)
    assert sum(started) == 2 * 7 + 2 * 7


@pytest.mark.parametrize('name', ['sgd', 'momentum', 'adam'])
def test_other_arrays_in_each_step(started, name):
    pair = Pair(*OPTIMIZERS[name])
    for _ in range(4):
        pair.step()
        for attribute in ('gradients', 'weights', 'expected'):
            setattr(pair, attribute, [array.copy() for array in getattr(pair, attribute)])
    assert sum(started) == 3 * 7


@pytest.mark.parametrize('name', ['momentum', 'adam'])
def test_weights_and_gradients_that_are_views_of_one_array(started, name):
    pair = Pair(*OPTIMIZERS[name])
    for attribute in ('weights', 'gradients'):
        values = getattr(pair, attribute)
        whole = mx.nd.concat(*[array.reshape(-1) for array in values], dim=0)
        ends = np.cumsum([array.size for array in values]).tolist()
        setattr(pair, attribute, [whole[end - array.size:end].reshape(array.shape) for array, end in zip(values, ends)])
    pair.steps(*[ALL] * 4)
    assert sum(started) == 3 * 7


def test_momentum_that_comes_and_goes(started):
    pair = Pair(*OPTIMIZERS['momentum'])
    for momentum in (0.9, 0.9, 0.0, 0.0, 0.5, -0.5, 0.5):
        for each in pair.updaters:
            each.optimizer.momentum = momentum
        pair.step()
    assert sum(started) == 5 * 7  # not the first update, and not the one with negative momentum


def _own_method(optimizer):
    optimizer.update_multi_precision = optimizer.update
    return optimizer


@pytest.mark.parametrize('make', [
    lambda: mx.optimizer.NAG(momentum=0.9), lambda: mx.optimizer.RMSProp(),
    lambda: type('Own', (mx.optimizer.SGD,), {})(momentum=0.9), lambda: type('Own', (mx.optimizer.Adam,), {})(),
    lambda: _own_method(mx.optimizer.SGD(momentum=0.9))], ids=['nag', 'rmsprop', 'own sgd', 'own adam', 'own method'])
def test_other_optimizers_are_left_to_mxnet(started, make):
    pair = Pair('sgd', RATES)
    pair.reference, pair.updater = mx.optimizer.get_updater(make()), mx.optimizer.get_updater(make())
    pair.trainer._updaters = [pair.updater]
    pair.steps(*[ALL] * 3)
    assert not started


def test_weights_with_a_new_layout_are_updated(started, monkeypatch):
    """MXNet changes the layout of a convolution's weight while the convolution runs, so after the update was pushed."""
    data, nets = mx.nd.ones((2, 32, 9, 9)), []
    push = gradient_bucket.push_native

    def evaluate_and_push(*arguments, **keywords):
        weight = nets[1].weight.data()
        mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=64, no_bias=True)
        mx.nd.waitall()
        with pytest.raises(mx.MXNetError, match='MKLDNN data'):
            weight.to_dlpack_for_read()
        push(*arguments, **keywords)

    monkeypatch.setattr(gradient_bucket, 'push_native', evaluate_and_push)
    for store in (None, 'hybrid'):
        mx.random.seed(3)
        net = gluon.nn.Conv2D(64, 3, in_channels=32)
        net.initialize(mx.init.Xavier())
        nets.append(net)
        trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9}, kvstore=store)
        for _ in range(3):
            step(trainer, lambda: (nets[-1](data) ** 2).sum(), 2)
    expected, result = [numbers(param.data() for param in net.collect_params().values()) for net in nets]
    np.testing.assert_equal(result, expected)
    assert sum(started) == 2 * 2


def test_trainers_in_one_process(started):
    """Several devices, parameters that are frozen or were not computed, gradients that add up, and AMP's scaler."""
    results = []
    for store in (None, 'hybrid'):
        mx.random.seed(3)
        contexts = [mx.cpu(0), mx.cpu(1)]
        net = gluon.nn.Sequential()
        net.add(*[gluon.nn.Dense(4, in_units=4) for _ in range(4)])
        net.initialize(mx.init.Xavier(), ctx=contexts)
        net[0].weight.grad_req, net[1].weight.grad_req = 'null', 'add'
        trainer = gluon.Trainer(net.collect_params(), 'adam', dict(RATES), kvstore=store or 'device',
                                update_on_kvstore=False)
        for count in (2, 4, 2, 4, 2):
            layers = list(net)[:count]
            with autograd.record():
                losses = []
                for context in contexts:
                    data = mx.nd.ones((2, 4), ctx=context) * (context.device_id + 1)
                    for layer in layers:
                        data = layer(data)
                    losses.append((data ** 2).sum())
            autograd.backward(losses)
            trainer.step(4, ignore_stale_grad=True)
        results.append(numbers(array for param in net.collect_params().values() for array in param.list_data()))
    np.testing.assert_equal(*results)
    assert started


@pytest.mark.parametrize('name', ['sgd', 'momentum'])
def test_stand_ins_for_weights_choose_the_same_kernels(started, name):
    pair = Pair(*OPTIMIZERS[name])
    stand_in = StandIn('stands in for 9')
    its_gradient, its_weight = mx.nd.sparse.zeros('row_sparse', (1, 1)), mx.nd.zeros((1, 1))
    for number in range(5):
        for gradient in pair.gradients:
            gradient[:] = number + 0.3
        for updater, weights in ((pair.reference, pair.expected), (pair.updater, pair.weights)):
            if number == 3:
                updater.optimizer.momentum = 0.0
            update = updater if updater is pair.reference else functools.partial(pair.compiled_updates.update, updater)
            update([*range(7), stand_in], [*pair.gradients, its_gradient], [*weights, its_weight])
            for by_key in (updater.states, updater.states_synced, updater.optimizer._index_update_count):
                by_key.pop(stand_in, None)
        pair.check()
    assert sum(started) >= 2 * 7


def test_a_repeated_update_uses_its_operations_again(started):
    pair = Pair(*OPTIMIZERS['adam'])
    pair.steps(*[ALL] * 4)
    repeated, = pair.compiled_updates._repeated.values()
    pair.step()
    assert list(pair.compiled_updates._repeated.values()) == [repeated]
    for each in pair.updaters:
        each.set_states(each.get_states())
    pair.step()
    assert repeated not in pair.compiled_updates._repeated.values()
