"""Give dynamic tables wrong input: each is refused by name on the rank that gives it, and training goes on.

The argument is a directory for a checkpoint.  With ``one`` in its place, worker 1 alone gives an id that no row has,
which ends the job; with ``joint``, all workers together have more keys than the capacity.
"""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon

import mxhybrid
from tests.helpers.outcomes import problem_of
from tests.helpers.training_steps import make_step

ROWS = 1 << 40
GOOD = np.arange(3)


class Net(gluon.Block):
    """A numbered table, and one by keys."""

    def __init__(self, rows=ROWS, width=4, **options):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.items = mxhybrid.nn.Embedding(rows, width, prefix='items_')
            self.users = mxhybrid.nn.HashEmbedding(width, prefix='users_', **options)

    def forward(self, items, users):
        return (self.items(items) * self.users(users)).sum(axis=1)


class Training:
    """A net and its Trainer."""

    def __init__(self, **options):
        self.net = Net(**options)
        self.net.initialize()
        self.trainer = gluon.Trainer(self.net.collect_params(), 'adagrad', {'learning_rate': 0.1}, kvstore='hybrid')

    def step(self, items=GOOD, users=GOOD):
        make_step(self.trainer, 1, self.net, items, users)

    def outputs(self):
        return self.net(np.arange(9), np.arange(9)).asnumpy()

    def load(self, directory):
        mxhybrid.checkpoint.load(directory, self.net, self.trainer)


def wrong_inputs(training, directory):
    """Name, call, and words that the message must have."""
    items, users, last = 'net_items_weight', 'net_users_weight', str(ROWS - 1)
    as_int64 = "give ids as int64: mx.nd.array(ids, dtype='int64')"
    return [
        ('out of range', lambda: training.step(np.array([1, ROWS, 3])), [items, str(ROWS), last, 'HashEmbedding']),
        ('negative', lambda: training.step(np.array([1, -5, 3])), [items, '-5', last, 'HashEmbedding']),
        ('NaN', lambda: training.step(mx.nd.array([1, np.nan, 3])), [items, 'nan', as_int64]),
        ('NaN key', lambda: training.step(GOOD, mx.nd.array([1, np.nan, 3])), [users, 'nan', as_int64]),
        ('float32', lambda: training.step(mx.nd.array([1, 2.0 ** 24 + 2, 3])), [items, '16777218', '2^24', as_int64]),
        ('float32 key', lambda: training.step(GOOD, mx.nd.array([1, -2.0 ** 24, 3])), [users, '-16777216', as_int64]),
        ('fraction', lambda: training.step(np.array([1, 2.5, 3])), [items, '2.5', as_int64]),
        ('string', lambda: training.step(GOOD, np.array(['a', 'b', 'c'])), [users, 'mxhybrid.nn.hash_key']),
        ('width', lambda: Net(width=0), [items, 'width=0', '1 to']),
        ('rows', lambda: Net(rows=0), [items, 'rows=0', '1 to']),
        ('capacity', lambda: Training(capacity=10).step(np.arange(30), np.arange(30)),
         [users, '30 distinct keys', 'capacity=10', 'smaller batches']),
        ('max_batch_rows', lambda: training.step(np.arange(101), np.arange(101)),
         ['items_weight', '101', 'MXHYBRID_MAX_BATCH_ROWS']),
        ('checkpoint of another width', lambda: Training(width=5).load(directory),
         ['items.weight', 'width 4', '5 in the net']),
        ('checkpoint of other rows', lambda: Training(rows=2).load(directory), ['items.weight', str(ROWS), '2 in'])]


def answers(store, directory):
    """Return the problems of the refusals by name, '' for none."""
    training = Training()
    training.step()
    mxhybrid.checkpoint.save(directory, training.net, training.trainer, 1)
    saved = training.outputs()
    problems = {name: problem_of(call, words) for name, call, words in wrong_inputs(training, directory)
                if name != 'max_batch_rows' or store.num_workers > 1}
    # Nothing was sent by halves.  A net with another seed takes the seed of the checkpoint, also for rows without one.
    np.testing.assert_array_equal(training.outputs(), saved)
    other = Training()
    assert np.abs(other.outputs() - saved).min() > 0
    other.load(directory)
    np.testing.assert_array_equal(other.outputs(), saved)
    other.step()
    training.step()
    np.testing.assert_array_equal(other.outputs(), training.outputs())
    return problems


store = mxhybrid.create()
what, = sys.argv[1:]
if what == 'one':
    training = Training()
    training.step()
    training.step(np.array([1, ROWS if store.rank == 1 else 2, 3]))
elif what == 'joint':
    # Each worker has at most the capacity of a partition, but together they have more.
    Training(capacity=8).step(np.arange(6), np.arange(6) + 6 * store.rank)
else:
    report(store.rank, problems=answers(store, what))
