"""What the workers of a Trainer tell each other, as far as one process shows it."""
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxhybrid.kvstore.trainer_step import steps_of

pytestmark = pytest.mark.both_pythons


class Slow:
    """A sum that is there when it is let go."""

    def __init__(self, values):
        self.values, self.read, self.there = values, threading.Event(), threading.Event()

    def asnumpy(self):
        self.read.set()
        assert self.there.wait(30)
        return self.values


def test_who_saves_in_a_thread_and_the_next_step_do_not_mix_their_sums():
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid', update_on_kvstore=True)
    with autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    trainer.step(1)
    agreed = steps_of(trainer).agreement
    agreed._sum, agreed._values = Slow(np.full_like(agreed._sum.asnumpy(), 7)), None
    late, told = agreed._sum, threading.Event()
    saves = threading.Thread(target=agreed.look_back)
    saves.start()
    assert late.read.wait(30)

    def tell():
        agreed._tell([], False, False)
        told.set()

    steps = threading.Thread(target=tell)
    steps.start()
    assert not told.wait(0.2)  # the next sum would overwrite the one that is read
    late.there.set()
    saves.join(30)
    steps.join(30)
    assert told.is_set() and agreed._anywhere(0) and agreed._read()[0] == 1
