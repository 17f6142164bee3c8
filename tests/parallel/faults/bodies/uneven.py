"""Workers that differ in a value that must be the same on all workers, one value in each case; reports the error and
its step.
"""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid

STEPS = 5


def batch(worker, trainer, net, step):
    """Another batch size in the step."""
    return 4


def rate(worker, trainer, net, step):
    """Another learning rate from a step on."""
    trainer.set_learning_rate(0.05)
    return 8


def decay(worker, trainer, net, step):
    """Another weight decay from a step on."""
    trainer.optimizer.wd = 0.001
    return 8


def momentum(worker, trainer, net, step):
    """Another momentum from a step on."""
    trainer.optimizer.momentum = 0.5
    return 8


def multiplier(worker, trainer, net, step):
    """Another multiplier of a parameter from a step on."""
    net[1].weight.lr_mult = 0.5
    return 8


def logs(worker, trainer, net, step):
    """Read the rate on one worker, as for its log; MXNet's schedules change their state when they are read."""
    assert trainer.learning_rate < 0.1
    return 8


def scheduled(worker, trainer, net, step):
    """Another schedule from a step on."""
    trainer.optimizer.lr_scheduler.base_lr_orig = 0.4
    return 8


def given(worker, trainer, net, step):
    """Values of its own for one parameter."""
    net[1].weight.set_data(net[1].weight.data() + 1)
    return 8


def drawn(worker, trainer, net, step):
    """Change the values by drawing them again."""
    net[1].weight.initialize(mx.init.Normal(), force_reinit=True)
    return 8


def given_back(worker, trainer, net, step):
    """Set other values for a while, for example to evaluate averages."""
    kept = net[1].weight.data().copy()
    net[1].weight.set_data(kept * 0.5)
    net[1].weight.set_data(kept)
    return 8


class Case:
    """Training in which the last worker does something in a step that the others do not do."""

    def __init__(self, rank, size, meddle, when, table, **extra):
        self.odd, self.meddle, self.when = rank == size - 1, meddle, when
        self.net = gluon.nn.Sequential()
        self.net.add(SparseEmbedding(9, 3) if table else gluon.nn.Embedding(9, 3), gluon.nn.Dense(2, in_units=3))
        self.net.initialize(mx.init.Constant(0.1))
        self.trainer = gluon.Trainer(self.net.collect_params(), 'sgd', dict({'learning_rate': 0.1}, **extra),
                                     kvstore='hybrid')

    def run(self):
        """Return the step and the text of an error, and the dense weight before and after it."""
        for step in range(STEPS):
            size = self.meddle(self, self.trainer, self.net, step) if self.odd and step == self.when else 8
            with autograd.record():
                loss = self.net(mx.nd.array([1, 2])).sum()
            loss.backward()
            before = self.net[1].weight.data().asnumpy()
            try:
                self.trainer.step(size)
            except mxhybrid.InputError as error:
                return {'step': step, 'said': str(error),
                        'kept': np.array_equal(self.net[1].weight.data().asnumpy(), before)}
        try:
            self.net.collect_params().save('/dev/null')
        except mxhybrid.InputError as error:
            return {'step': 'save', 'said': str(error)}
        return {'step': None, 'said': '', 'weight': self.net[1].weight.data()}


CASES = {'batch-first': (batch, 0, False), 'batch': (batch, 2, False), 'batch-last': (batch, STEPS - 1, False),
         'batch-table': (batch, 0, True), 'rate': (rate, 2, False), 'rate-table': (rate, 2, True),
         'decay-last': (decay, STEPS - 1, False), 'given': (given, 2, False), 'drawn': (drawn, 2, False),
         'momentum': (momentum, 2, False), 'momentum-table': (momentum, 2, True),
         'multiplier': (multiplier, 2, False), 'given-back': (given_back, 2, False),
         'logs': (logs, 0, False), 'scheduled': (scheduled, 2, False)}


def main():
    store = mxhybrid.create()
    for name, (meddle, when, table) in CASES.items():
        extra = {'begin_num_update': 2000, 'lr_scheduler': mx.lr_scheduler.PolyScheduler(4000, base_lr=0.1)
                 } if meddle in (logs, scheduled) else {'momentum': 0.9} if meddle is momentum else {}
        report(store.rank, **{name: Case(store.rank, store.num_workers, meddle, when, table, **extra).run()})
    store._barrier()


if __name__ == '__main__':
    main()
