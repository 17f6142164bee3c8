"""Train with sharded updates, and each process by itself on the joint batch; report both results.

With a directory as argument the cases are those of a network that ``parallelize`` has split.
"""
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from tests.helpers.outcomes import error_of

BATCH, STEPS = 12, 4

OPTIMIZERS = {
    'sgd': {'learning_rate': 0.1}, 'momentum': {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01},
    'nag': {'learning_rate': 0.1, 'momentum': 0.9}, 'adam': {'learning_rate': 0.01, 'wd': 0.01},
    'adagrad': {'learning_rate': 0.1}, 'rmsprop': {'learning_rate': 0.01, 'centered': True}, 'ftrl': {},
    'signum': {'learning_rate': 0.01}, 'adamax': {'learning_rate': 0.01}, 'adadelta': {}, 'ftml': {},
    'dcasgd': {'learning_rate': 0.1}}
#: MXNet keeps their state in float32.
FLOAT32 = ('adagrad', 'rmsprop', 'ftrl', 'adadelta')
REFUSED = ('LARS', 'LAMB', 'LBSGD', 'SGLD', 'Nadam', 'GroupAdaGrad')


class TwoHeads(gluon.HybridBlock):
    """A network whose heads are not used in all steps."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body = nn.Dense(9, activation='tanh', in_units=5)
            self.heads = [nn.Dense(3, in_units=9), nn.Dense(3, in_units=9)]
            for head in self.heads:
                self.register_child(head)

    def forward(self, x, head):
        return self.heads[head](self.body(x))


def values_of(shape, seed):
    return np.random.RandomState(seed).normal(size=shape) * 0.5


def filled(net, dtype='float64'):
    """Give the parameters values that depend on their positions only; return the net."""
    net.initialize(mx.init.Zero())
    net.cast(dtype)
    for position, param in enumerate(net.collect_params().values()):
        param.set_data(mx.nd.array(values_of(param.shape, position), dtype=dtype))
    return net


def dense(dtype='float64'):
    net = nn.HybridSequential()
    net.add(nn.Dense(7, activation='tanh', in_units=5), nn.Dense(11, activation='tanh', in_units=7),
            nn.Dense(3, in_units=11))
    net.hybridize()
    return filled(net, dtype)


class Training:
    """A network that is trained on this worker's share of joint batches, or on all of them in one process."""

    def __init__(self, store, net, optimizer='momentum', dtype='float64'):
        self.net, self.store, self.dtype = net, store, dtype
        name = 'sgd' if optimizer == 'momentum' else optimizer
        self.trainer = gluon.Trainer(net.collect_params(), name, OPTIMIZERS[optimizer], kvstore=store)
        self.rank, self.size = (0, 1) if store is None else (store.rank, store.num_workers)
        self.seed = 100

    def backward(self, *arguments):
        self.seed += 1
        mine = slice(self.rank * BATCH // self.size, (self.rank + 1) * BATCH // self.size)
        share = getattr(self.net, 'samples', mine)  # a split network takes its samples
        x, y = [mx.nd.array(values_of((BATCH, width), self.seed + width), dtype=self.dtype)[share] for width in (5, 3)]
        with autograd.record():
            loss = ((self.net(x, *arguments) - y) ** 2).sum()
        loss.backward()

    def step(self, *arguments):
        self.backward(*arguments)
        self.trainer.step(BATCH)

    def fit(self):
        for _ in range(STEPS):
            self.step()
            self.trainer.set_learning_rate(self.trainer.learning_rate * 0.8)
        return self

    @property
    def values(self):
        return {'%d' % position: param.data().asnumpy()
                for position, param in enumerate(self.net.collect_params().values())}


def optimizer_case(name):
    dtype = 'float32' if name in FLOAT32 else 'float64'
    return lambda store: Training(store, dense(dtype), name, dtype).fit().values


def stale(store):
    """A step that MXNet refuses after its sums were scattered; the next step is made as if it had not been."""
    training = Training(store, filled(TwoHeads()))
    for step in range(4):
        training.backward(step == 1)
        training.step(step != 1)
        assert error_of(training.step, step == 1, kind=UserWarning)  # of MXNet
    return training.values


CASES = dict({name: optimizer_case(name) for name in OPTIMIZERS}, stale=stale)


def new_store(shard_updates=True):
    return mxhybrid.create(shard_updates=shard_updates)


def refused():
    """Return the messages of errors."""
    said = {}
    for name in REFUSED:
        training = Training(new_store(), dense('float32'), 'sgd', 'float32')
        training.trainer._optimizer = mx.optimizer.create(name)
        said[name] = error_of(training.step)
    training = Training(new_store(), dense()).fit()
    training.backward()
    said['update'] = error_of(training.trainer.update, BATCH)
    return said


def plans(folder):
    """Networks that a plan splits: weights that all workers hold whole are sharded, others are shards already."""
    results, expected = {}, {}
    for name, plan in {'data parallel': mxhybrid.parallel.data_parallel(),
                       'split': mxhybrid.parallel.by_name({'*dense*': {'channels': 2}}),
                       'some ranks': mxhybrid.parallel.by_name({'*': {'ranks': [1]}})}.items():
        alone = Training(None, dense(), 'momentum').fit()
        expected[name] = alone.values
        net = mxhybrid.parallelize(dense(), plan, data=(BATCH, 5), dtype='float64')
        training = Training(new_store(), net, 'momentum')
        training.fit()
        path = folder + '/' + name.replace(' ', '-')
        net.save_parameters(path)
        store._barrier()
        whole = dense()
        whole.load_parameters(path)
        results[name] = {'%d' % position: param.data().asnumpy()
                         for position, param in enumerate(whole.collect_params().values())}
        mxhybrid.checkpoint.save(path + '.checkpoint', net, training.trainer, STEPS)
        again = mxhybrid.parallelize(dense(), plan, data=(BATCH, 5), dtype='float64')
        other = Training(new_store(False), again, 'momentum')
        mxhybrid.checkpoint.load(path + '.checkpoint', again, other.trainer)
        other.seed = training.seed
        training.fit()
        other.fit()
        differences = [np.abs(first.data().asnumpy() - second.data().asnumpy()).max() for first, second in
                       zip(net.collect_params().values(), again.collect_params().values())]
        results[name]['resumed'], expected[name]['resumed'] = np.array(max(differences)), np.array(0.0)
    return results, expected


def whole_networks():
    """Each case, in a job and in one process."""
    return {name: case(new_store()) for name, case in CASES.items()}, {name: case(None) for name, case in CASES.items()}


store = new_store()
results, expected = (plans if sys.argv[1:] else whole_networks)(*sys.argv[1:])
report(store.rank, outcomes=results, expected=expected)
if not sys.argv[1:]:
    training = Training(new_store(), dense(), 'adam').fit()
    left = Training(new_store(), dense())
    left.trainer._kvstore_params['update_on_kvstore'] = True
    left.fit()
    report(store.rank, said=refused(), table=training.store.report(), left=left.values)
