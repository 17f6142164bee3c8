"""Actions of scripts on parameters of a split network, by every plan, compared with one process; args: patterns."""
import fnmatch
import os
import sys
import tempfile

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.kvstore.weight_shards import shard_of
from mxhybrid.parallel import by_name, data_parallel, grid, pipeline
from tests.helpers.gluon_nets import Net, backward, initialised, trainer_of
from tests.helpers.outcomes import relative_difference, values_of

BATCH, WIDTH, STEPS = 8, 6, 6
FOLDER = tempfile.mkdtemp()
store = mxhybrid.create()
two = {'channels': 2}
PLANS = {
    'data': data_parallel(), 'grid': grid(model=2), 'partials': by_name({'layer0*': two, 'layer1*': {'partials': 2}}),
    'ranks': by_name({'layer0*': {'ranks': [0]}, 'norm*': {'ranks': [0]}, 'layer1*': {'ranks': [1]}}),
    'sharded updates': data_parallel(), 'stages': pipeline(2, 2), 'gpipe': pipeline(2, 2, 'gpipe'),
    'one stage': pipeline(1, 2), 'recomputed': grid(model=2).with_recompute(['layer*', 'norm*']),
    'recomputed stages': pipeline(2, 2, 'gpipe').with_recompute(['layer0*']),
}
PIPELINES = ('stages', 'gpipe', 'one stage', 'recomputed stages')


def new_net(norm):
    """Return a network that computes the loss of each sample; a pipeline of micro-batches has no joint statistics."""
    return Net(lambda: [nn.Dense(8, in_units=WIDTH, use_bias=not norm, prefix='layer0_'),
                        nn.BatchNorm(in_channels=8, prefix='norm_') if norm else nn.Activation('tanh', prefix='norm_'),
                        nn.Dense(4, in_units=8, prefix='layer1_')],
               lambda F, x, layer0, norm, layer1: F.mean(F.square(layer1(F.tanh(norm(layer0(x))))), axis=1))


def requests(net, value, pattern='*'):
    """Set grad_req of the parameters whose names match, as far as they are trained at all."""
    for name, param in net.collect_params().items():
        if fnmatch.fnmatch(name, pattern):
            param.grad_req = value


def batch(step, part):
    return mx.nd.array(np.random.RandomState(step).normal(size=(BATCH, WIDTH)))[part]


class Training:
    """A training of the network, split or not; methods are the actions, by the steps before which they are made."""

    def __init__(self, action, plan, norm, optimizer):
        self.action, self.plan, self.optimizer = action, plan, optimizer
        mx.random.seed(1)
        self.net = initialised(new_net(norm), mx.init.Normal(0.5))
        self.part = slice(None)
        self.at('begin')
        if plan is not None:
            self.net = mxhybrid.parallelize(self.net, PLANS[plan], (BATCH, WIDTH))
            self.part = self.net.samples
        self.at('split')
        self.new_trainer()

    def at(self, moment):
        ACTIONS[self.action].get(moment, lambda training: None)(self)

    def new_trainer(self):
        kvstore = None if self.plan is None else mxhybrid.create(shard_updates=self.plan == 'sharded updates')
        name, settings = self.optimizer
        self.trainer = trainer_of(self.net, name, kvstore, **settings)

    def record(self, step):
        with autograd.record():
            return self.net(batch(step, self.part))

    def run(self):
        for step in range(STEPS):
            self.at(step)
            (ACTIONS[self.action].get('backward') or (lambda training, at: training.record(at).backward()))(self, step)
            self.trainer.step(BATCH)
            self.at('end')
        mx.nd.waitall()

    # -- what scripts do ---------------------------------------------------------------------------------------------

    def reinitialise(self, init, names='*'):
        mx.random.seed(2)
        for name, param in self.net.collect_params().items():
            if fnmatch.fnmatch(name, names):
                param.initialize(init, force_reinit=True)

    def zero(self):
        self.net.collect_params().zero_grad()

    def freeze_and_train(self):
        requests(self.net, 'null')
        requests(self.net, 'write')

    def set_values(self):
        draw = np.random.RandomState(7)
        for param in self.net.collect_params('.*(weight|bias)').values():
            shard = shard_of(param)
            shape = param.shape if shard is None else shard.whole_shape
            param.set_data(mx.nd.array(draw.normal(size=shape)))

    def files(self):
        path = os.path.join(FOLDER, '%s-%s' % (self.plan, store.rank if self.plan is None else 'all'))
        self.net.save_parameters(path)
        for param in self.net.collect_params().values():
            param.set_data(mx.nd.zeros(param.shape))
        self.net.load_parameters(path)

    def dictionary(self):
        draw = np.random.RandomState(8)
        values = {'net_layer%d_weight' % at: mx.nd.array(draw.normal(size=shape))
                  for at, shape in enumerate([(8, WIDTH), (4, 8)])}
        self.net.collect_params().load_dict(values, allow_missing=True)

    def evaluate(self):
        self.net(batch(9, self.part))
        with autograd.predict_mode():
            self.net(batch(8, self.part))


def accumulated(training, step):
    for more in (0, 100):
        training.record(step + more).backward()


def twice_of_one_call(training, step):
    with autograd.record():
        loss = training.net(batch(step, training.part))
        first, second = loss * 1, loss * 3
    first.backward(retain_graph=True)
    second.backward()


def second_pass_after_a_step(training, step):
    loss = training.record(step)
    loss.backward(retain_graph=True)
    training.trainer.step(BATCH)
    loss.backward()


def both_calls_together(training, step):
    autograd.backward([training.record(step), training.record(step + 100)])


def other_sizes(training, step):
    net, part = training.net, training.part
    if training.plan is not None and step % 2:
        net = net.for_data((BATCH // 4, WIDTH))
        part = net.samples
    rows = batch(step, slice(None))[:BATCH // 4 if step % 2 else BATCH]
    backward(lambda: net(rows[part]))


def request(value, pattern='*'):
    return lambda training: requests(training.net, value, pattern)


def both(*calls):
    def made(training):
        for call in calls:
            call(training)
    return made


def turns(training):
    training.count = getattr(training, 'count', 0) + 1
    requests(training.net, ('null', 'write')[training.count % 2], '*layer0*')
    requests(training.net, ('write', 'null')[training.count % 2], '*layer1*')


FROZEN = request('null', '*layer0*')
#: The actions by the moments at which they are made: before the network is split, after that, before a step, or after
#: every step; and other ways to run backward.
ACTIONS = {
    'initialised again': {2: lambda training: training.net.initialize(mx.init.Constant(0.3), force_reinit=True)},
    'initialised again by random numbers': {at: lambda training: training.reinitialise(mx.init.Xavier(), '*weight')
                                            for at in (2, 4)},
    'a weight initialised again': {2: lambda training: training.reinitialise(mx.init.One(), '*layer1_bias')},
    'frozen and trained without a call between': {2: Training.freeze_and_train},
    'frozen later': {2: FROZEN}, 'frozen for two steps': {2: FROZEN, 4: request('write', '*layer0*')},
    'the last layer frozen for two steps': {2: request('null', '*layer1*'), 4: request('write', '*layer1*')},
    'frozen before': {'begin': FROZEN, 3: request('write', '*layer0*')},
    'the last layer frozen before': {'begin': request('null', '*layer1*'), 3: request('write', '*layer1*')},
    'frozen after the split': {'split': FROZEN, 2: request('write', '*layer0*')},
    'only a bias trained': {1: both(request('null'), request('write', '*layer1_bias')), 4: request('write')},
    'trained in turns': dict.fromkeys(range(STEPS), turns),
    'unfrozen to be added': {'begin': FROZEN, 2: request('add', '*layer0*'), 'end': Training.zero},
    'added': {'split': request('add'), 'end': Training.zero, 'backward': accumulated},
    'added before': {'begin': request('add'), 'end': Training.zero, 'backward': accumulated},
    'added for a step': {2: request('add'), 3: request('write'), 'backward': accumulated},
    'added and frozen and added': {1: request('add'), 2: FROZEN, 4: request('add'), 'end': Training.zero},
    'zeroed': {2: Training.zero}, 'set': {2: Training.set_values}, 'saved and loaded': {3: Training.files},
    'a dictionary loaded': {2: Training.dictionary},
    'the same device': {2: lambda training: training.net.collect_params().reset_ctx(mx.cpu())},
    'the same type': {2: lambda training: training.net.cast('float32')},
    'hybridized again': {2: lambda training: training.net.hybridize()},
    'another Trainer': {'begin': FROZEN, 3: both(request('write'), Training.new_trainer)},
    'evaluated while frozen': {2: both(FROZEN, Training.evaluate), 3: both(request('write'), Training.evaluate)},
    'two backward passes of a call': {'backward': twice_of_one_call},
    'two added backward passes of a call': {'split': request('add'), 'backward': twice_of_one_call,
                                            'end': Training.zero},
    'a second backward pass after a step': {'backward': second_pass_after_a_step},
    'two calls together': {2: FROZEN, 4: request('write'), 'backward': both_calls_together},
    'other sizes': {'begin': FROZEN, 2: request('write'), 4: FROZEN, 'backward': other_sizes},
}
#: The trainings without arguments; the gradients of other plans take the same ways.
CHOSEN = ['data: *', 'grid: *', 'stages: *', 'gpipe: *', '*: *frozen*', '*: *initialised again by*', '*: added before',
          '*: saved and loaded', '*: other sizes', 'ra*: two*', 'recomputed: two*']
SGD, ADAM = ('sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.01}), ('adam', {'learning_rate': 0.02})


def compared(action, plan):
    """Return the largest difference to one process, relative to the largest weight, or an error."""
    norm = plan not in PIPELINES and 'second' not in action  # MXNet refuses a second pass through running averages
    optimizer = ADAM if plan in ('grid', 'stages', 'sharded updates') else SGD
    alone, split = Training(action, None, norm, optimizer), Training(action, plan, norm, optimizer)
    alone.run()
    split.run()
    return relative_difference(split.net, values_of(alone.net))


def is_chosen(plan, action):
    """Return whether the training belongs to the patterns; a pipeline makes its passes when it is called."""
    name = '%s: %s' % (plan, action)
    refused = plan == 'gpipe' and action.startswith('two ') or plan in PIPELINES and 'second' in action
    return not refused and any(fnmatch.fnmatch(name, pattern) for pattern in sys.argv[1:] or CHOSEN)


def main():
    report(store.rank, differences={'%s: %s' % (plan, action): compared(action, plan)
                                    for plan in PLANS for action in ACTIONS if is_chosen(plan, action)})


main()
