"""The comparison of steps between workers, in a job of one process."""
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxhybrid.kvstore.trainer_step import hooks_of

from ...helpers.gluon_nets import step

pytestmark = pytest.mark.both_pythons


class Slow:
    """A sum that comes once `there` is set."""

    def __init__(self, values):
        self.values, self.read, self.there = values, threading.Event(), threading.Event()

    def __call__(self):
        self.read.set()
        assert self.there.wait(30)
        return self.values


@pytest.fixture
def training():
    """A net, its Trainer, and a function that trains one step."""
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'momentum': 0.9}, kvstore='hybrid', update_on_kvstore=True)
    return net, trainer, lambda: step(trainer, lambda: net(mx.nd.ones((1, 2))).sum())


def test_a_save_and_the_next_step_sum_apart(training):
    _, trainer, train = training
    train()
    consistency = hooks_of(trainer).consistency
    consistency._sum, consistency._values = Slow(np.full_like(consistency._sum(), 7)), None
    late, sent = consistency._sum, threading.Event()
    saves = threading.Thread(target=consistency.check_last_step)
    saves.start()
    assert late.read.wait(30)

    def send():
        consistency._send([0, 1], False, False, 0)
        sent.set()

    steps = threading.Thread(target=send)
    steps.start()
    assert not sent.wait(0.2)  # the next sum would overwrite the one that is read
    late.there.set()
    saves.join(30)
    steps.join(30)
    assert sent.is_set() and consistency._fresh_anywhere(0) and consistency._read()[0] == 1


@pytest.mark.parametrize('change', [
    lambda trainer, net: setattr(net.weight, 'lr_mult', 0.5), lambda trainer, net: setattr(net.bias, 'wd_mult', 0.0),
    lambda trainer, net: net.bias.lr_mult.fill(0.25), lambda trainer, net: trainer.set_learning_rate(0.3),
    lambda trainer, net: setattr(trainer.optimizer, 'wd', 0.1),
    lambda trainer, net: setattr(trainer.optimizer, 'momentum', 0.5),
    lambda trainer, net: setattr(trainer.optimizer, 'clip_gradient', 2),
    lambda trainer, net: setattr(trainer.optimizer, 'beta', np.float32(0.5)),
    lambda trainer, net: setattr(trainer, '_optimizer', mx.optimizer.Adam(learning_rate=0.1))],
    ids=['lr_mult', 'wd_mult', 'an array as lr_mult', 'learning rate', 'wd', 'momentum', 'clip_gradient', 'beta',
         'optimizer'])
def test_every_change_of_a_number_is_compared(training, change, request):
    net, trainer, train = training
    if 'array' in request.node.name:  # in this case alone: beside an array, no multiplier is known to be unchanged
        net.bias.lr_mult = np.array(1.0)
    reports = []
    for number in range(4):
        if number == 2:
            change(trainer, net)
        train()
        reports.append(hooks_of(trainer).consistency._sum().tobytes())
    assert reports[0] == reports[1] != reports[2] == reports[3]
