"""Train in ways that a Trainer promises and stock dist_sync breaks; each case by itself, as in ``train.py``.

The name of a case is that of a function and its arguments: ``save/dense-on-store/adam`` calls ``save`` with dense
tables, the optimizer adam, and a store that updates the weights.
"""
import os
import pickle

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon, npx
from mxnet.contrib import amp
from train import (
    BATCH,
    LOSS,
    ON_STORE,
    OPTIMIZERS,
    Model,
    Worker,
    array_of,
    backward,
    backward_of_some,
    batches,
    filled,
    fit,
    make,
    parser_of,
    side_by_side,
    trainer_of,
    weights,
)

import mxhybrid


def learning_rate(worker, kind, **options):
    """set_learning_rate in the middle, momentum kept."""
    net, trainer = make(worker, kind, **options)

    def slow_down(step, trainer):
        if step in (5, 12):
            trainer.set_learning_rate(trainer.learning_rate * 0.3)

    return fit(worker, net, trainer, before=slow_down)


def scheduler(worker, kind, **options):
    """A schedule, with warm-up, that changes the rate at most steps."""
    schedule = mx.lr_scheduler.FactorScheduler(step=3, factor=0.7, base_lr=0.3, warmup_steps=4)
    net, trainer = make(worker, kind, extra={'lr_scheduler': schedule}, **options)
    result = fit(worker, net, trainer)
    result['rate'] = np.array([trainer.learning_rate])
    return result


def batch_size(worker, kind, **options):
    """Every third batch is a partial one."""
    net, trainer = make(worker, kind, **options)
    for step, (ids, targets) in enumerate(zip(*batches())):
        size = BATCH // 2 if step % 3 == 2 else BATCH
        backward(worker, net, ids[:size], targets[:size])
        trainer.step(size)
    return weights(net)


def multipliers(worker, kind, **options):
    """lr_mult and wd_mult of a table, one changed on the way."""
    net, trainer = make(worker, kind, **options)
    net.tables[0].weight.lr_mult = 0.2
    net.tables[1].weight.wd_mult = 3.0
    net.out.bias.wd_mult = 0.0

    def change(step, trainer):
        if step == 10:
            net.tables[1].weight.lr_mult = 0.5

    return fit(worker, net, trainer, before=change)


def freezes(worker, kind, **options):
    """A bias and a table do not train for a while."""
    net, trainer = make(worker, kind, **options)

    def change(step, trainer):
        if step in (4, 12):
            for param in (net.out.bias, net.tables[0].weight):
                param.grad_req = 'null' if step == 4 else 'write'

    return fit(worker, net, trainer, before=change)


def clip(worker, kind):
    """Clip by the global norm between allreduce_grads and update."""
    net, trainer = make(worker, kind, update_on_kvstore=False)
    norms = []
    for batch in zip(*batches()):
        backward(worker, net, *batch)
        trainer.allreduce_grads()
        gradients = [param.grad().as_nd_ndarray() for param in net.collect_params().values()]
        norms.append(gluon.utils.clip_global_norm(gradients, 0.5))
        trainer.update(1)
    return dict(weights(net), norms=np.array(norms))


def parameters(worker, kind, **options):
    """Save before training and in the middle; go back to the first, whole and in part; train on."""
    net, trainer = make(worker, kind, **options)
    first, middle = (os.path.join(worker.directory, '%s-%s.params' % (kind, name)) for name in ('first', 'middle'))
    _save_parameters(worker, net, first)
    fit(worker, net, trainer, steps=5)
    _save_parameters(worker, net, middle)
    fit(worker, net, trainer, steps=5, seed=6)
    net.load_parameters(first)
    result = {'first-%s' % name: value for name, value in weights(net).items()}
    fit(worker, net, trainer, steps=5, seed=7)
    net.load_parameters(middle)
    result.update({'middle-%s' % name: value for name, value in weights(net).items()})
    result.update(fit(worker, net, trainer, steps=5, seed=8))
    return result


def _save_parameters(worker, net, path):
    if worker.rank == 0:
        net.save_parameters(path + '.part')
        os.replace(path + '.part', path)
    worker.barrier()


def _save_both(worker, net, trainer, path):
    _save_parameters(worker, net, path + '.params')
    trainer.save_states(path + '.states')
    worker.barrier()


def _go_on(worker, net, trainer, path):
    net.load_parameters(path + '.params')
    trainer.load_states(path + '.states')
    return fit(worker, net, trainer, seed=6, steps=8)


def one_parameter(worker, kind):
    """Set one dense parameter in the middle of training; the tables keep their trained rows."""
    if not worker.hybrid:
        return None  # MXNet alone loses all rows but those last pulled
    net, trainer = make(worker, kind, 'adagrad')
    fit(worker, net, trainer, steps=5)
    before = weights(net)
    net.out.bias.set_data(mx.nd.array([1.0, -1.0]))
    after = weights(net)
    fit(worker, net, trainer, steps=1, seed=6)
    others = list(before)[:-1]
    return {'kept': np.array([np.array_equal(before[name], after[name]) for name in others]),
            'moved': np.array([np.abs(weights(net)[name] - before[name]).max() < 0.5 for name in others])}


def save(worker, kind, optimizer, **options):
    """Train, save parameters and states on the way, train on."""
    net, trainer = make(worker, kind, optimizer, **options)
    fit(worker, net, trainer, steps=8)
    _save_both(worker, net, trainer, os.path.join(worker.directory, '%s-%s%d' % (kind, optimizer, len(options))))
    return fit(worker, net, trainer, seed=6, steps=8)


def resume(worker, kind, optimizer, **options):
    """Load the files of `save` into a new model, and train on."""
    net, trainer = make(worker, kind, optimizer, **options)
    return _go_on(worker, net, trainer, os.path.join(worker.directory, '%s-%s%d' % (kind, optimizer, len(options))))


def restore(worker, kind, optimizer, **options):
    """Save as `save` does, but let another model train on, from a checkpoint."""
    net, trainer = make(worker, kind, optimizer, **options)
    fit(worker, net, trainer, steps=8)
    path = os.path.join(worker.directory, 'restore-%s-%s%d' % (kind, optimizer, len(options)))
    mxhybrid.checkpoint.save(path, net, trainer, 8)
    net, trainer = make(worker, kind, optimizer, **options)
    assert mxhybrid.checkpoint.load(path, net, trainer).step == 8
    return fit(worker, net, trainer, seed=6, steps=8)


def back(worker, kind, optimizer, **options):
    """Save states, train on, load them again in the same Trainer, together with the parameters."""
    net, trainer = make(worker, kind, optimizer, **options)
    fit(worker, net, trainer, steps=4)
    path = os.path.join(worker.directory, 'back-%s-%s' % (kind, optimizer))
    _save_both(worker, net, trainer, path)
    fit(worker, net, trainer, seed=9, steps=3)
    return _go_on(worker, net, trainer, path)


def states_anew(worker, kind, **options):
    """New values for the weights drop the optimizer state: saved before the next step, there is none."""
    net, trainer = make(worker, kind, **options)
    fit(worker, net, trainer, steps=2)
    path = os.path.join(worker.directory, 'anew-' + kind)
    _save_parameters(worker, net, path + '.params')
    net.load_parameters(path + '.params')
    trainer.save_states(path + '.states')
    worker.barrier()
    with open(path + '.states', 'rb') as handle:
        return {'kept': np.array([len(pickle.load(handle))])}


def states_lowered(worker, kind, **options):
    """Momentum goes, states are saved and loaded, momentum returns: MXNet keeps, and stores, the optimizer that it has
    made.
    """
    net, trainer = make(worker, kind, **options)
    path = os.path.join(worker.directory, 'lowered-%s.states' % kind)
    fit(worker, net, trainer, steps=6)
    trainer._optimizer.momentum = 0.0
    trainer.save_states(path)
    worker.barrier()
    fit(worker, net, trainer, steps=3, seed=6)
    trainer.load_states(path)
    fit(worker, net, trainer, steps=2, seed=7)
    trainer._optimizer.momentum = 0.5
    return fit(worker, net, trainer, steps=6, seed=8)


def overflow(worker, kind, **options):
    """AMP's loss scaler: in two steps one sample, so one worker, overflows."""
    if not worker.hybrid and kind == 'weight':
        # MXNet pushes before it tests for overflow where the store updates; a dense weight takes the same steps.
        kind = 'gradient'
    amp.amp._amp_initialized = True  # amp.init would switch to float16 layers, which the CPU lacks
    net, trainer = make(worker, kind, 'sgd-momentum', **options)
    amp.init_trainer(trainer)
    trainer._amp_loss_scaler = amp.loss_scaler.LossScaler()
    trainer._amp_loss_scaler._scale_seq_len = 6
    scales = []
    for step, (ids, targets) in enumerate(zip(*batches())):
        if step in (4, 11):
            targets[1] = np.inf
        with autograd.record():
            output = LOSS(net(worker.share(ids)), worker.share(targets))
            with amp.scale_loss(output, trainer) as scaled:
                autograd.backward(scaled)
        trainer.step(BATCH)
        scales.append(trainer._amp_loss_scaler.loss_scale)
    return dict(weights(net), scales=np.array(scales))


class Clipping(gluon.Trainer):
    """A Trainer that clips the sums of gradients inside of a step."""

    def _update(self, ignore_stale_grad=False):
        gluon.utils.clip_global_norm([param.grad() for param in self._params], 0.5)
        super()._update(ignore_stale_grad)


class ByGradient(mx.lr_scheduler.LRScheduler):
    """A learning rate that depends on the sum of a gradient."""

    def __init__(self, param):
        super().__init__()
        self._param = param

    def __call__(self, num_update):
        return 0.1 / (1 + self._param.grad().norm().asscalar())


def sums_in_gradients(worker, kind, reader):
    """Gradients are sums for all that read them, in a step or after it."""
    net = filled(Model(kind, (4, 3)))
    settings = dict(OPTIMIZERS['sgd-momentum'])
    if reader == 'scheduler':
        settings['lr_scheduler'] = ByGradient(net.out.weight)
    trainer = (Clipping if reader == 'class' else gluon.Trainer)(
        net.collect_params(), 'sgd', settings, kvstore=worker.store(), update_on_kvstore=False)
    result = {}
    for step, batch in enumerate(zip(*batches())):
        backward(worker, net, *batch)
        trainer.step(BATCH)
        result.update({'%d-%d' % (step, index): param.grad().asnumpy()
                       for index, param in enumerate(net.collect_params().values())})
    return dict(weights(net), **result)


def head(worker, kind, optimizer, **options):
    """A part of the net that all samples use in two steps, some in two others, and no sample in the rest."""
    if not worker.hybrid:  # MXNet leaves stale gradients out only where workers update; the steps are the same
        kind, options = 'gradient' if kind == 'weight' else kind, {'update_on_kvstore': False}
    trunk, beside = Model(kind, (4, 3)), Model(kind, (5,))
    net = side_by_side(trunk, beside)
    trainer = trainer_of(worker, net, optimizer, **options)
    result = {}
    for step, batch in enumerate(zip(*batches())):
        using = {0: True, 6: np.arange(BATCH) % 2 == 0, 7: np.arange(BATCH) == 5, 12: True}.get(step, False)
        backward_of_some(worker, batch, (trunk, True), (beside, using))
        # All gradients are fresh in the first step, so it does not need ignore_stale_grad.
        trainer.step(BATCH, ignore_stale_grad=step > 0)
        if step in (5, 8):
            result.update({'%d-%s' % (step, name): value for name, value in weights(net).items()})
    return dict(weights(net), **result)


def stale(worker, kind, **options):
    """Train with stale gradients, without an error: where the store updates, MXNet applies the last gradients again."""
    left, right = Model(kind), Model(kind)
    both = side_by_side(left, right)
    trainer = trainer_of(worker, both, 'sgd-momentum', {'learning_rate': 0.02, 'momentum': 0.5}, **options)
    for step, batch in zip(range(8), zip(*batches())):
        using = {0: True, 3: np.arange(BATCH) == 5, 5: True}.get(step, False)
        backward_of_some(worker, batch, (left, True), (right, using))
        trainer.step(BATCH)
    return weights(both)


def anew(worker, kind, **options):
    """All weights are drawn again in the middle, on every worker by a seed of its own: worker 0's count."""
    net, trainer = make(worker, kind, **options)
    fit(worker, net, trainer, steps=6)
    mx.random.seed(7 + worker.rank)
    net.initialize(mx.init.Uniform(0.5), force_reinit=True)
    if not worker.hybrid and trainer._update_on_kvstore:  # MXNet's own stores would keep their values
        for param in net.collect_params().values():
            param.set_data(param._data[0].copy())
    # As before the first step ever, a worker's next gradient is of its own values: a step that gives it no weight.
    rate = trainer.learning_rate
    trainer.set_learning_rate(0)
    result = {'first-%s' % name: value for name, value in fit(worker, net, trainer, steps=1, seed=6).items()}
    trainer.set_learning_rate(rate)
    return dict(fit(worker, net, trainer, steps=7, seed=7), **result)


def rows_held(worker, kind):
    """A worker holds and pulls only the rows that it asks for."""
    net, trainer = make(worker, kind, 'adagrad')
    fit(worker, net, trainer, steps=2)
    ids = mx.nd.array([7, 2, 2, 30])
    held = net.tables[0].weight.row_sparse_data(ids)
    return {'ids': held.indices.asnumpy(), 'rows': held.data.asnumpy()}


def calls(worker, kind):
    """Call the store itself, with dense arrays."""
    store = mx.kv.create('hybrid' if worker.hybrid else 'device')
    pushed, out, summed = (array_of(np.full((2, 3), value, 'f4')) for value in (12 / worker.size, 0, 24 / worker.size))
    store.init('calls', array_of(np.ones((2, 3), 'f4')))
    store.push('calls', pushed)
    store.pull('calls', out=out)
    store.pushpull('calls', summed, out=summed)
    return {'pulled': out.asnumpy(), 'summed': summed.asnumpy()}


STATEFUL = ['weight/adam', 'weight/adagrad', 'weight/ftrl', 'weight/rmsprop-centered', 'weight/sgd-momentum',
            'weight/nag', 'gradient/adam', 'dense/sgd-momentum']
#: The functions of the cases, and their arguments; `resume` needs the files of `save`.
ARGUMENTS = {
    **dict.fromkeys((scheduler, batch_size, multipliers, freezes), ['weight', 'gradient', 'dense']),
    learning_rate: ['weight', 'gradient', 'gradient-on-store', 'dense', 'dense-on-store'],
    parameters: ['weight', 'gradient', 'dense', 'dense-on-store'],
    clip: ['gradient', 'dense'],
    sums_in_gradients: ['dense/script', 'dense/class', 'dense/scheduler'],
    one_parameter: ['weight'],
    overflow: ['weight', 'gradient', 'gradient-on-store', 'dense'],
    head: ['weight/sgd-momentum', 'weight/adam', 'gradient/sgd-momentum', 'gradient-on-store/adam',
           'dense/sgd-momentum', 'dense-on-store/sgd-momentum'],
    stale: ['gradient-on-store', 'dense-on-store'],
    anew: ['weight', 'gradient', 'gradient-on-store', 'dense', 'dense-on-store'],
    states_lowered: ['weight', 'gradient-on-store'],
    states_anew: ['weight-on-store'],
    rows_held: ['weight'],
    restore: ['weight/adam', 'gradient/adam', 'dense/sgd-momentum', 'dense-on-store/sgd-momentum'],
    **dict.fromkeys((save, resume), [*STATEFUL, 'dense/adam', 'dense-on-store/adam']),
    back: [*STATEFUL, 'dense-on-store/sgd-momentum'],
    calls: ['dense'],
}
CASES = {'%s/%s' % (function.__name__, arguments): function
         for function, arguments_of_cases in ARGUMENTS.items() for arguments in arguments_of_cases}


arguments = parser_of(CASES).parse_args()
if arguments.numpy:
    npx.set_np()
worker = Worker(arguments.kvstore, arguments.partitions, directory=arguments.directory)
for case, function in CASES.items():
    name, kind, *rest = case.split('/')
    if {case, name} & set(arguments.cases):
        options = ON_STORE if kind.endswith('-on-store') else {}
        report(worker.rank, **{case: function(worker, kind.replace('-on-store', ''), *rest, **options)})
