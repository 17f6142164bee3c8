"""Steps keep the arrays that they have looked up, and notice every change between steps."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.kvstore.trainer_step import hooks_of

from ...helpers.gluon_nets import backward, step

pytestmark = pytest.mark.both_pythons


def set_last_gradient(net, new):
    """Let the last layer write its gradient to another array."""
    weight = net[-1].weight
    new.attach_grad()
    autograd.mark_variables([weight.data()], [new])
    weight._grad[0] = new


def own_gradients(net):
    """Give a parameter a method of its own, which returns other gradients than those of backward."""
    weight = net[-1].weight
    weight.list_grad = lambda: [mx.nd.ones(weight.shape)]


CHANGES = {
    'frozen': lambda net, trainer: setattr(net[0].weight, 'grad_req', 'null'),
    'frozen and not any more': lambda net, trainer: [setattr(net[0].weight, 'grad_req', kind)
                                                     for kind in ('null', 'write')],
    'added up': lambda net, trainer: setattr(net[0].weight, 'grad_req', 'add'),
    'reset_ctx': lambda net, trainer: net.collect_params().reset_ctx([mx.cpu(1)]),
    'set_data': lambda net, trainer: net[-1].weight.set_data(net[-1].weight.data() * 2),
    'initialize': lambda net, trainer: net.initialize(mx.init.Constant(0.25), force_reinit=True),
    'arrays of a list': lambda net, trainer: set_last_gradient(net, mx.nd.zeros(net[-1].weight.shape)),
    'a method': lambda net, trainer: own_gradients(net),
    'set_learning_rate': lambda net, trainer: trainer.set_learning_rate(0.5),
    'lr_mult': lambda net, trainer: setattr(net[0].bias, 'lr_mult', 0.5),
    'wd_mult': lambda net, trainer: setattr(net[0].bias, 'wd_mult', 0.5),
    'wd': lambda net, trainer: setattr(trainer.optimizer, 'wd', 0.25),
    'momentum': lambda net, trainer: setattr(trainer.optimizer, 'momentum', 0.25),
    'no momentum': lambda net, trainer: setattr(trainer.optimizer, 'momentum', 0.0),
    'clip_gradient': lambda net, trainer: setattr(trainer.optimizer, 'clip_gradient', 0.01),
    'aggregate_num': lambda net, trainer: setattr(trainer.optimizer, 'aggregate_num', 1),
    'schedule': lambda net, trainer: setattr(trainer.optimizer, 'lr_scheduler',
                                             mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.3)),
    'optimizer': lambda net, trainer: trainer._init_optimizer('adam', {'learning_rate': 0.1}),
    'a new optimizer of the updater': lambda net, trainer: setattr(
        trainer._updaters[0], 'optimizer', mx.optimizer.SGD(learning_rate=0.2, momentum=0.9,
                                                            param_dict=dict(enumerate(net.collect_params().values())))),
    'a method of the optimizer': lambda net, trainer: setattr(
        trainer.optimizer, '_get_wds', lambda keys: [0.5 for _ in keys]),
    'states': lambda net, trainer: trainer._updaters[0].set_states(trainer._updaters[0].get_states()),
    'states are dropped': lambda net, trainer: trainer._updaters[0].states.clear(),
    'counts': lambda net, trainer: trainer.optimizer._all_index_update_counts[0].update({0: 7}),
}

#: Changes that need an optimizer with momentum.
OF_SGD = ('momentum', 'no momentum', 'a new optimizer of the updater')


def trained(store, change, optimizer='sgd', settings=(('momentum', 0.9),)):
    """Train a net, change something after three steps, train on, and return all weights."""
    mx.random.seed(2)
    net = gluon.nn.Sequential(prefix='net_')
    with net.name_scope():
        net.add(*[gluon.nn.Dense(3, in_units=3) for _ in range(3)])
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(settings, learning_rate=0.1, wd=0.01),
                            kvstore=store, update_on_kvstore=False)
    data = mx.nd.array(np.random.RandomState(1).normal(size=(4, 3)))
    for number in range(8):
        if number in (3, 6):
            change(net, trainer)
        step(trainer, lambda: (net(data.as_in_context(net[0].weight.list_ctx()[0])) ** 2).sum(), 4)
    return [param.data().asnumpy() for param in net.collect_params().values()], trainer


@pytest.mark.parametrize('name, optimizer', [
    (name, optimizer) for name in CHANGES for optimizer in ('sgd', 'adam') if optimizer == 'sgd' or name not in OF_SGD])
def test_steps_after_a_change_are_those_of_mxnet(name, optimizer):
    settings = (('momentum', 0.9),) if optimizer == 'sgd' else ()
    expected, _ = trained('device', CHANGES[name], optimizer, settings)
    weights, trainer = trained('hybrid', CHANGES[name], optimizer, settings)
    assert hooks_of(trainer) is not None
    np.testing.assert_equal(weights, expected)


def two_layers():
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(2, in_units=2), gluon.nn.Dense(2, in_units=2))
    net.initialize(mx.init.Xavier())
    return net


def loss_of(layers):
    return sum(layer(mx.nd.ones((1, 2), dtype=layer.weight.dtype)).sum() for layer in layers)


@pytest.fixture
def trained_net():
    """A net with the arrays of a step, and its Trainer."""
    net = two_layers()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'momentum': 0.9}, kvstore='hybrid', update_on_kvstore=False)
    for _ in range(3):
        step(trainer, lambda: loss_of(net))
    return net, trainer


def test_stale_gradients_are_refused_in_later_steps(trained_net):
    net, trainer = trained_net
    with pytest.raises(UserWarning, match='has not been updated by backward'):
        step(trainer, lambda: loss_of(list(net)[:1]))
    weights = [layer.weight.data().asnumpy() for layer in net]
    backward(lambda: loss_of(list(net)[:1]))
    trainer.step(1, ignore_stale_grad=True)
    changed = [(layer.weight.data().asnumpy() != values).any() for layer, values in zip(net, weights)]
    assert changed == [True, False]


def test_arrays_of_another_type_are_refused_in_later_steps(trained_net):
    net, trainer = trained_net
    net.cast('float64')
    backward(lambda: loss_of(net))
    with pytest.raises(mxhybrid.InputError, match='has dtype float32, but the value given has dtype float64'):
        trainer.step(1)


def test_parameters_of_two_trainers():
    results = []
    for store in ('device', 'hybrid'):
        mx.random.seed(4)
        net = two_layers()
        trainers = [gluon.Trainer(layer.collect_params(), name, {'learning_rate': 0.1}, kvstore=store)
                    for layer in net for name in ('sgd', 'adam')]
        for number in range(6):
            for trainer in trainers if number % 2 else trainers[::2]:
                step(trainer, lambda net=net: loss_of(net))
        results.append([param.data().asnumpy() for param in net.collect_params().values()])
    np.testing.assert_equal(*results)


def test_steps_look_up_arrays_once_and_release_them(trained_net):
    net, trainer = trained_net
    hooks = hooks_of(trainer)
    arrays = hooks._arrays
    assert arrays is not None and arrays.is_current(trainer)
    step(trainer, lambda: loss_of(net))
    assert hooks._arrays is arrays
    net.initialize(force_reinit=True)
    assert not arrays.is_current(trainer)
    step(trainer, lambda: loss_of(net))
    assert hooks._arrays is not arrays and hooks._arrays.is_current(trainer)
