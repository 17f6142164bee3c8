"""The comparison of steps, as far as one process shows it."""
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxhybrid.kvstore.trainer_step import hooks_of

pytestmark = pytest.mark.both_pythons


class Slow:
    """A sum that is there when it is let go."""

    def __init__(self, values):
        self.values, self.read, self.there = values, threading.Event(), threading.Event()

    def asnumpy(self):
        self.read.set()
        assert self.there.wait(30)
        return self.values


def test_a_save_in_a_thread_and_the_next_step_do_not_mix_their_sums():
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid', update_on_kvstore=True)
    with autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    trainer.step(1)
    consistency = hooks_of(trainer).consistency
    consistency._sum, consistency._values = Slow(np.full_like(consistency._sum.asnumpy(), 7)), None
    late, sent = consistency._sum, threading.Event()
    saves = threading.Thread(target=consistency.check_last_step)
    saves.start()
    assert late.read.wait(30)

    def send():
        consistency._send([], False, False)
        sent.set()

    steps = threading.Thread(target=send)
    steps.start()
    assert not sent.wait(0.2)  # the next sum would overwrite the one that is read
    late.there.set()
    saves.join(30)
    steps.join(30)
    assert sent.is_set() and consistency._fresh_anywhere(0) and consistency._read()[0] == 1
