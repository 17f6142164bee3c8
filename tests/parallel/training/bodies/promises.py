"""Promises of a Trainer that stock dist_sync breaks; each case by itself, as in ``train.py``."""
import os
import pickle

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.contrib import amp
from train import (
    BATCH,
    LOSS,
    OPTIMIZERS,
    Model,
    Worker,
    backward,
    backward_of_some,
    batches,
    fill,
    fit,
    make,
    parser_of,
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
    """allreduce_grads, clipping by the global norm, update."""
    net, trainer = make(worker, kind, update_on_kvstore=False)
    norms = []
    for batch in zip(*batches()):
        backward(worker, net, *batch)
        trainer.allreduce_grads()
        norms.append(gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], 0.5))
        trainer.update(1)
    return dict(weights(net), norms=np.array(norms))


def parameters(worker, kind, directory, **options):
    """Save before training and in the middle; go back to the first, whole and in part; train on."""
    net, trainer = make(worker, kind, **options)
    first, middle = (os.path.join(directory, '%s-%s.params' % (kind, name)) for name in ('first', 'middle'))
    _save(worker, net, first)
    fit(worker, net, trainer, steps=5)
    _save(worker, net, middle)
    fit(worker, net, trainer, steps=5, seed=6)
    net.load_parameters(first)
    result = {'first-%s' % name: value for name, value in weights(net).items()}
    fit(worker, net, trainer, steps=5, seed=7)
    net.load_parameters(middle)
    result.update({'middle-%s' % name: value for name, value in weights(net).items()})
    result.update(fit(worker, net, trainer, steps=5, seed=8))
    return result


def _save(worker, net, path):
    if worker.rank == 0:
        net.save_parameters(path + '.part')
        os.replace(path + '.part', path)
    worker.barrier()


def _save_both(worker, net, trainer, path):
    _save(worker, net, path + '.params')
    trainer.save_states(path + '.states')
    worker.barrier()


def _go_on(worker, net, trainer, path):
    net.load_parameters(path + '.params')
    trainer.load_states(path + '.states')
    return fit(worker, net, trainer, seed=6, steps=8)


def one_parameter(worker, kind):
    """Set one dense parameter in the middle of training; the tables keep their trained rows."""
    net, trainer = make(worker, kind, 'adagrad')
    fit(worker, net, trainer, steps=5)
    before = weights(net)
    net.out.bias.set_data(mx.nd.array([1.0, -1.0]))
    after = weights(net)
    fit(worker, net, trainer, steps=1, seed=6)
    last = list(before)[-1]
    return {'kept': np.array([np.array_equal(before[name], after[name]) for name in before if name != last]),
            'moved': np.array([np.abs(weights(net)[name] - before[name]).max() < 0.5 for name in before
                               if name != last])}


def save(worker, kind, optimizer, directory, **options):
    """Train, save parameters and states on the way, train on."""
    net, trainer = make(worker, kind, optimizer, **options)
    fit(worker, net, trainer, steps=8)
    _save_both(worker, net, trainer, os.path.join(directory, '%s-%s' % (kind, optimizer)))
    return fit(worker, net, trainer, seed=6, steps=8)


def resume(worker, kind, optimizer, directory, **options):
    """Go on from what `save` left."""
    net, trainer = make(worker, kind, optimizer, **options)
    return _go_on(worker, net, trainer, os.path.join(directory, '%s-%s' % (kind, optimizer)))


def restore(worker, kind, optimizer, directory):
    """Save as `save` does, but let another model train on, from a checkpoint."""
    net, trainer = make(worker, kind, optimizer)
    fit(worker, net, trainer, steps=8)
    path = os.path.join(directory, 'restore-%s-%s' % (kind, optimizer))
    mxhybrid.checkpoint.save(path, net, trainer, 8)
    net, trainer = make(worker, kind, optimizer)
    assert mxhybrid.checkpoint.load(path, net, trainer).step == 8
    return fit(worker, net, trainer, seed=6, steps=8)


def back(worker, kind, optimizer, directory, **options):
    """Save states, train on, load them again in the same Trainer, together with the parameters."""
    net, trainer = make(worker, kind, optimizer, **options)
    fit(worker, net, trainer, steps=4)
    path = os.path.join(directory, 'back-%s-%s' % (kind, optimizer))
    _save_both(worker, net, trainer, path)
    fit(worker, net, trainer, seed=9, steps=3)
    return _go_on(worker, net, trainer, path)


def states_anew(worker, kind, directory):
    """New values for the weights drop the optimizer state: saved before the next step, there is none."""
    net, trainer = make(worker, kind, update_on_kvstore=True)
    fit(worker, net, trainer, steps=2)
    path = os.path.join(directory, 'anew-' + kind)
    _save(worker, net, path + '.params')
    net.load_parameters(path + '.params')
    trainer.save_states(path + '.states')
    worker.barrier()
    with open(path + '.states', 'rb') as handle:
        return {'kept': np.array([len(pickle.load(handle))])}


def states_lowered(worker, kind, directory, **options):
    """Momentum goes, states are saved and loaded, momentum returns: MXNet keeps, and stores, the optimizer that it has
    made.
    """
    net, trainer = make(worker, kind, **options)
    path = os.path.join(directory, 'lowered-%s.states' % kind)
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
    net = Model(kind, (4, 3))
    fill(net.collect_params())
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
    net = gluon.nn.Sequential()
    net.add(trunk, beside)
    fill(net.collect_params())
    trainer = gluon.Trainer(net.collect_params(), optimizer, {
        'sgd': {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.1}, 'adam': {'learning_rate': 0.02}}[optimizer],
        kvstore=worker.store(**options), **options)
    result = {}
    for step, batch in enumerate(zip(*batches())):
        using = {0: True, 6: np.arange(BATCH) % 2 == 0, 7: np.arange(BATCH) == 5, 12: True}.get(step, False)
        backward_of_some(worker, batch, (trunk, True), (beside, using))
        # All gradients are fresh in the first step, so it does not need ignore_stale_grad.
        trainer.step(BATCH, ignore_stale_grad=step > 0)
        if step in (5, 8):
            result.update({'%d-%s' % (step, name): value for name, value in weights(net).items()})
    return dict(weights(net), **result)


def stale_on_store(worker, kind):
    """Train with stale gradients, without an error: where the store updates, MXNet applies the last gradients again."""
    left, right = Model(kind), Model(kind)
    both = gluon.nn.Sequential()
    both.add(left, right)
    fill(both.collect_params())
    trainer = gluon.Trainer(both.collect_params(), 'sgd', {'learning_rate': 0.02, 'momentum': 0.5},
                            kvstore=worker.store(update_on_kvstore=True), update_on_kvstore=True)
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


def rows_held(worker):
    """A worker holds and pulls only the rows that it asks for."""
    net, trainer = make(worker, 'weight', 'adagrad')
    fit(worker, net, trainer, steps=2)
    ids = mx.nd.array([7, 2, 2, 30])
    held = net.tables[0].weight.row_sparse_data(ids)
    return {'ids': held.indices.asnumpy(), 'rows': held.data.asnumpy()}


STATEFUL = (('weight', 'adam'), ('weight', 'adagrad'), ('weight', 'ftrl'), ('weight', 'rmsprop-centered'),
            ('weight', 'sgd-momentum'), ('weight', 'nag'), ('gradient', 'adam'), ('dense', 'sgd-momentum'))

CASES = {}
for _kind in ('weight', 'gradient', 'dense'):
    for _function in (learning_rate, scheduler, batch_size, multipliers, freezes):
        CASES['%s/%s' % (_function.__name__, _kind)] = lambda w, d, f=_function, k=_kind: f(w, k)
    CASES['parameters/' + _kind] = lambda w, d, k=_kind: parameters(w, k, d)
CASES.update({
    'learning_rate/dense-on-store': lambda w, d: learning_rate(w, 'dense', update_on_kvstore=True),
    'learning_rate/gradient-on-store': lambda w, d: learning_rate(w, 'gradient', update_on_kvstore=True),
    'parameters/dense-on-store': lambda w, d: parameters(w, 'dense', d, update_on_kvstore=True),
    'clip/gradient': lambda w, d: clip(w, 'gradient'), 'clip/dense': lambda w, d: clip(w, 'dense'),
    'sums_in_gradients/dense/script': lambda w, d: sums_in_gradients(w, 'dense', 'script'),
    'sums_in_gradients/dense/class': lambda w, d: sums_in_gradients(w, 'dense', 'class'),
    'sums_in_gradients/dense/scheduler': lambda w, d: sums_in_gradients(w, 'dense', 'scheduler'),
    'one_parameter/weight': lambda w, d: one_parameter(w, 'weight'),
    'overflow/weight': lambda w, d: overflow(w, 'weight'), 'overflow/gradient': lambda w, d: overflow(w, 'gradient'),
    'overflow/dense': lambda w, d: overflow(w, 'dense'),
    'overflow/gradient-on-store': lambda w, d: overflow(w, 'gradient', update_on_kvstore=True),
    'head/weight': lambda w, d: head(w, 'weight', 'sgd'), 'head/gradient': lambda w, d: head(w, 'gradient', 'sgd'),
    'head/weight-adam': lambda w, d: head(w, 'weight', 'adam'), 'head/dense': lambda w, d: head(w, 'dense', 'sgd'),
    'head/gradient-on-store': lambda w, d: head(w, 'gradient', 'adam', update_on_kvstore=True),
    'head/dense-on-store': lambda w, d: head(w, 'dense', 'sgd', update_on_kvstore=True),
    'stale_on_store/gradient': lambda w, d: stale_on_store(w, 'gradient'),
    'stale_on_store/dense': lambda w, d: stale_on_store(w, 'dense'),
    'anew/weight': lambda w, d: anew(w, 'weight'), 'anew/gradient': lambda w, d: anew(w, 'gradient'),
    'anew/gradient-on-store': lambda w, d: anew(w, 'gradient', update_on_kvstore=True),
    'anew/dense': lambda w, d: anew(w, 'dense'),
    'anew/dense-on-store': lambda w, d: anew(w, 'dense', update_on_kvstore=True),
    'states_lowered/weight': lambda w, d: states_lowered(w, 'weight', d),
    'states_lowered/gradient': lambda w, d: states_lowered(w, 'gradient', d, update_on_kvstore=True),
    'states_anew/weight': lambda w, d: states_anew(w, 'weight', d),
    'rows_held/weight': lambda w, d: rows_held(w),
    'restore/weight': lambda w, d: restore(w, 'weight', 'adam', d),
    'restore/gradient': lambda w, d: restore(w, 'gradient', 'adam', d),
    'save/dense-on-store': lambda w, d: save(w, 'dense', 'adam', d, update_on_kvstore=True),
    'resume/dense-on-store': lambda w, d: resume(w, 'dense', 'adam', d, update_on_kvstore=True),
})
for _kind, _optimizer in STATEFUL:
    for _function in (save, resume, back):
        CASES['%s/%s/%s' % (_function.__name__, _kind, _optimizer)] = (
            lambda w, d, f=_function, k=_kind, o=_optimizer: f(w, k, o, d))


def main():
    arguments = parser_of(CASES).parse_args()
    chosen = [case for case in CASES if {case, case.split('/')[0]} & set(arguments.cases)]
    worker = Worker(arguments.kvstore, arguments.partitions)
    if not worker.hybrid:  # MXNet alone loses all rows but those last pulled
        chosen = [case for case in chosen if case != 'one_parameter/weight']
    for case in chosen:
        report(worker.rank, **{case: CASES[case](worker, arguments.directory)})


if __name__ == '__main__':
    main()
