"""Trainers with sharded updates: each case also trains one process on the joint batch; both results are reported.

With the argument ``plan`` the cases are those of a network that ``parallelize`` has split.
"""
import pickle
import sys

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.contrib.amp.loss_scaler import LossScaler
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


def fill(net, dtype='float64'):
    """Give the parameters values that depend on their positions only."""
    net.initialize(mx.init.Zero())
    net.cast(dtype)
    for position, param in enumerate(net.collect_params().values()):
        if param.shape is not None and all(param.shape):
            param.set_data(mx.nd.array(values_of(param.shape, position), dtype=dtype))


def dense(dtype='float64', units=5):
    net = nn.HybridSequential()
    net.add(nn.Dense(7, activation='tanh', in_units=units), nn.Dense(11, activation='tanh', in_units=7 if units else 0),
            nn.Dense(3, in_units=11 if units else 0))
    fill(net, dtype)
    net.hybridize()
    return net


class Training:
    """A network that is trained on this worker's share of joint batches, or on all of them in one process."""

    def __init__(self, store, net, optimizer='momentum', dtype='float64', **options):
        self.net, self.store, self.dtype = net, store, dtype
        settings = dict(OPTIMIZERS[optimizer], **options)
        name = 'sgd' if optimizer == 'momentum' else optimizer
        self.trainer = gluon.Trainer(net.collect_params(), name, settings, kvstore=store)
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

    def step(self, *arguments, **options):
        self.backward(*arguments)
        self.trainer.step(BATCH, **options)

    def fit(self, steps=STEPS):
        for _ in range(steps):
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


def by_hand(store):
    """Gradients are clipped by the norm of whole gradients, which float32 alone allows, and doubled."""
    training = Training(store, dense('float32'), 'adam', 'float32')
    for _ in range(STEPS):
        training.backward()
        training.trainer.allreduce_grads()
        gradients = [param.grad() for param in training.net.collect_params().values()]
        gluon.utils.clip_global_norm(gradients, 0.5)
        gradients[0][:] *= 2
        training.trainer.update(BATCH)
    return training.values


class Products(gluon.HybridBlock):
    """A dense layer of products and sums, which MXNet has for float16 on CPUs, too."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get('weight', shape=(3, 5))

    def hybrid_forward(self, F, x, weight):
        return F.broadcast_mul(x.expand_dims(1), weight.expand_dims(0)).sum(axis=2)


def halves(store):
    net = nn.HybridSequential()
    net.add(Products(), nn.HybridLambda(lambda F, x: x * 2))
    fill(net, 'float16')
    return Training(store, net, 'momentum', 'float16', multi_precision=True).fit().values


def multipliers_and_freezing(store):
    training = Training(store, dense())
    params = list(training.net.collect_params().values())
    params[0].lr_mult, params[2].wd_mult, params[1].grad_req = 0.1, 0.0, 'null'
    training.fit(2)
    params[1].grad_req, params[4].grad_req = 'write', 'null'
    training.fit(2)
    params[4].grad_req = 'write'
    return training.fit(2).values


def adding(store):
    training = Training(store, dense())
    training.net.collect_params().setattr('grad_req', 'add')
    for _ in range(STEPS):
        training.net.collect_params().zero_grad()
        training.backward()
        training.backward()
        training.trainer.step(2 * BATCH)
    return training.values


def unused(store):
    net = TwoHeads()
    fill(net)
    training = Training(store, net, 'adam')
    for step in range(7):
        training.step(step % 3 == 1, ignore_stale_grad=True)
    return training.values


def stale(store):
    """A step that MXNet refuses after its sums were scattered; the next step is made as if it had not been."""
    net = TwoHeads()
    fill(net)
    training = Training(store, net)
    for step in range(4):
        training.backward(step == 1)
        training.step(step != 1)
        assert error_of(training.step, step == 1, kind=UserWarning)  # of MXNet
    return training.values


def schedule(store):
    training = Training(store, dense(), lr_scheduler=mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1))
    for _ in range(6):
        training.step()
    return training.values


def deferred(store):
    net = dense(units=0)
    net.collect_params().initialize(mx.init.Constant(0.1), force_reinit=True)
    return Training(store, net, 'adam').fit().values


def loss_scaler(store):
    """AMP's loss scaler leaves out the second step, in which one worker's gradient overflows."""
    training = Training(store, dense('float32'), 'momentum', 'float32')
    training.trainer._amp_loss_scaler = LossScaler()
    training.trainer._amp_original_scale = training.trainer._scale
    for step in range(STEPS):
        training.backward()
        if step == 1 and training.rank == 0:
            list(training.net.collect_params().values())[0].grad()[:] = float('inf')
        training.trainer.step(BATCH)
    return training.values


def inference_between(store):
    """Convolutions leave weights in layouts of oneDNN when they are evaluated."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1, in_channels=1), nn.Activation('tanh'), nn.Conv2D(8, 3, in_channels=8),
            nn.Dense(3, in_units=8 * 3))
    fill(net, 'float32')
    net.hybridize(static_alloc=True, static_shape=True)
    stretched = nn.HybridSequential()
    stretched.add(nn.HybridLambda(lambda F, x: F.reshape(F.tile(x, (1, 3)), (-1, 1, 3, 5))), net)
    training = Training(store, stretched, 'momentum', 'float32', learning_rate=0.002)
    for _ in range(STEPS):
        training.step()
        stretched(mx.nd.ones((2, 5)))
    return training.values


CASES = dict({name: optimizer_case(name) for name in OPTIMIZERS}, **{
    function.__name__: function for function in (by_hand, halves, multipliers_and_freezing, adding, unused, stale,
                                                 schedule, deferred, loss_scaler, inference_between)})


def new_store(shard_updates=True):
    return mxhybrid.create(shard_updates=shard_updates)


def states_of(path):
    states, _ = pickle.loads(open(path, 'rb').read())
    return {'%d.%d' % (key, slot): array.asnumpy() for key, state in states.items()
            for slot, array in enumerate(state if isinstance(state, tuple) else [state])}


def files(folder):
    """States and checkpoints go from sharded to other Trainers and back; values and states are those of one process."""
    results, expected = {}, {}
    alone = Training(None, dense(), 'adam').fit()
    states_alone = folder + '/alone%d' % mxhybrid.create().rank
    alone.trainer.save_states(states_alone)
    expected['states'] = states_of(states_alone)
    sharded = Training(new_store(), dense(), 'adam').fit()
    sharded.trainer.save_states(folder + '/states')
    sharded.store._barrier()
    results['states'] = states_of(folder + '/states')
    mxhybrid.checkpoint.save(folder + '/checkpoint', sharded.net, sharded.trainer, STEPS)
    seed = sharded.seed
    expected['values'] = alone.fit().values
    results['values'] = sharded.fit().values
    for name, shard_updates in (('to sharded', True), ('to whole', False)):
        other = Training(new_store(shard_updates), dense(), 'adam')
        other.net.collect_params().zero_grad()
        mxhybrid.checkpoint.load(folder + '/checkpoint', other.net, other.trainer)
        other.seed = seed
        results['checkpoint ' + name], expected['checkpoint ' + name] = other.fit().values, expected['values']
        again = Training(new_store(shard_updates), dense(), 'adam')
        mxhybrid.checkpoint.load(folder + '/checkpoint', again.net, again.trainer)
        again.trainer.load_states(folder + '/states')
        again.seed = seed
        again.trainer.set_learning_rate(0.01 * 0.8 ** STEPS)
        results['states ' + name], expected['states ' + name] = again.fit().values, expected['values']
    whole = Training(new_store(False), dense(), 'adam').fit()
    whole.trainer.save_states(folder + '/whole')
    whole.store._barrier()
    results['states of whole'], expected['states of whole'] = states_of(folder + '/whole'), expected['states']
    return results, expected


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


def whole_networks(folder):
    """Each case, in a job and in one process."""
    results, expected = {}, {}
    for name, case in CASES.items():
        expected[name], results[name] = case(None), case(new_store())
    for outcomes, found in zip((results, expected), files(folder)):
        outcomes.update({'files: ' + name: arrays for name, arrays in found.items()})
    return results, expected


store = new_store()
results, expected = (plans if sys.argv[1] == 'plan' else whole_networks)(sys.argv[-1])
report(store.rank, outcomes=results, expected=expected)
if sys.argv[1] != 'plan':
    training = Training(new_store(), dense(), 'adam').fit()
    left = Training(new_store(), dense())
    left.trainer._kvstore_params['update_on_kvstore'] = True
    left.fit()
    report(store.rank, said=refused(), table=training.store.report(), left=left.values)
