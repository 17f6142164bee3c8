"""Change a value on the last worker that must be the same on all workers; report the error and its step."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from tests.helpers.outcomes import error_of
from tests.helpers.training_steps import backward

STEPS = 5


def schedule():
    return {'begin_num_update': 2000, 'lr_scheduler': mx.lr_scheduler.PolyScheduler(4000, base_lr=0.1)}


class Case:
    """Training in which the last worker does something in a step that the others do not do."""

    batch_size = 8

    def __init__(self, table, extra):
        self.net = gluon.nn.Sequential()
        self.net.add(SparseEmbedding(9, 3) if table else gluon.nn.Embedding(9, 3), gluon.nn.Dense(2, in_units=3))
        self.net.initialize(mx.init.Constant(0.1))
        self.weight = self.net[1].weight
        self.trainer = gluon.Trainer(self.net.collect_params(), 'sgd', dict({'learning_rate': 0.1}, **extra),
                                     kvstore='hybrid')

    def run(self, meddle, when):
        """Return the step and the text of an error, and the dense weight before and after it."""
        for step in range(STEPS):
            self.batch_size = 8
            if step == when and store.rank == store.num_workers - 1:
                meddle(self)
            backward(self.net, mx.nd.array([1, 2]))
            before = self.weight.data().asnumpy()
            said = error_of(self.trainer.step, self.batch_size, kind=mxhybrid.InputError)
            if said:
                return {'step': step, 'said': said, 'kept': np.array_equal(self.weight.data().asnumpy(), before)}
        said = error_of(self.net.collect_params().save, '/dev/null', kind=mxhybrid.InputError)
        return {'step': 'save', 'said': said} if said else {'step': None, 'weight': self.weight.data()}


def smaller_batch(case):
    case.batch_size = 4


def other_rate(case):
    case.trainer.set_learning_rate(0.05)


def other_decay(case):
    case.trainer.optimizer.wd = 0.001


def other_momentum(case):
    case.trainer.optimizer.momentum = 0.5


def other_multiplier(case):
    case.weight.lr_mult = 0.5


def other_schedule(case):
    case.trainer.optimizer.lr_scheduler.base_lr_orig = 0.4


def logs(case):
    """Read the rate on one worker, as for its log; MXNet's schedules change their state when they are read."""
    assert case.trainer.learning_rate < 0.1


def gives_values(case):
    case.weight.set_data(case.weight.data() + 1)


def draws_values(case):
    case.weight.initialize(mx.init.Normal(), force_reinit=True)


def gives_values_back(case):
    """Set other values for a while, for example to evaluate averages."""
    kept = case.weight.data().copy()
    case.weight.set_data(kept * 0.5)
    case.weight.set_data(kept)


#: The call of the last worker, its step, whether there is a table, and settings of the optimizer.
CASES = {'batch-first': (smaller_batch, 0, False, {}), 'batch': (smaller_batch, 2, False, {}),
         'batch-last': (smaller_batch, STEPS - 1, False, {}), 'batch-table': (smaller_batch, 0, True, {}),
         'rate': (other_rate, 2, False, {}), 'rate-table': (other_rate, 2, True, {}),
         'decay-last': (other_decay, STEPS - 1, False, {}), 'given': (gives_values, 2, False, {}),
         'drawn': (draws_values, 2, False, {}), 'given-back': (gives_values_back, 2, False, {}),
         'momentum': (other_momentum, 2, False, {'momentum': 0.9}),
         'momentum-table': (other_momentum, 2, True, {'momentum': 0.9}),
         'multiplier': (other_multiplier, 2, False, {}), 'logs': (logs, 0, False, schedule()),
         'scheduled': (other_schedule, 2, False, schedule())}

store = mxhybrid.create()
for name, (meddle, when, table, extra) in CASES.items():
    report(store.rank, **{name: Case(table, extra).run(meddle, when)})
store._barrier()
