"""Networks that are split: their files equal those of the whole network, and are loaded under any other plan and
without one.  Arguments: a part, a directory, cases, and the rest of the part.

- ``alone`` trains in one process, and saves what it begins with, and a checkpoint.
- ``save`` begins with that under each plan, saves everything on the way, and goes on; rest: plans.
- ``resume`` goes on from what any wrote; rest: a label of its files, and ``source:plan``.
- ``faults`` reports errors; it has no cases.
"""
import os
import resource
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import CheckpointError, checkpoint, parallel
from tests.helpers.gluon_nets import initialised, step, trainer_of

BATCH, SHAPE, BEFORE, AFTER = 8, (3, 8, 8), 3, 3
OPTIMIZERS = {'sgd': {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 1e-3},
              'adam': {'learning_rate': 0.01, 'epsilon': 1e-3},
              'ftml': {'learning_rate': 0.01, 'epsilon': 1e-3}}


class Net(gluon.HybridBlock):
    """Layers of layers, with shapes that are found later, and a weight that two layers share."""

    def __init__(self):
        super().__init__(prefix='model_')
        with self.name_scope():
            self.features = nn.HybridSequential(prefix='features_')
            with self.features.name_scope():
                self.features.add(nn.Conv2D(8, 3, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation('relu'),
                                  nn.MaxPool2D(2, 2), nn.Flatten(), nn.Dense(12, activation='relu'),
                                  nn.Dense(12, in_units=12, activation='relu'))
            twin = self.features[-1]
            self.twin = nn.Dense(12, in_units=12, activation='tanh', params=twin.params, prefix=twin.prefix)
            self.output = nn.Dense(10, prefix='output_')

    def hybrid_forward(self, F, x):
        return self.output(self.twin(self.features(x)))


def plans(ranks):
    """Return the plans by name."""
    return {
        'data': parallel.data_parallel(), 'trick': parallel.one_weird_trick(),
        'grid': parallel.grid(model=2, batch=ranks // 2),
        'domain': parallel.grid(domain=(ranks,)),
        'layers': parallel.by_name({'*conv0_fwd': {'channels': ranks}, '*batchnorm0_fwd': {'channels': 2},
                                   '*features_dense0_fwd': {'partials': ranks},
                                   '*output_fwd': {'ranks': [1], 'samples': 1}})}


def new_net(plan):
    """The network, split by a plan, or not at all for None."""
    net = initialised(Net(), mx.init.Xavier(), dtype='float64')
    net.collect_params('.*bias').setattr('lr_mult', 2.0)
    return net if plan is None else mxhybrid.parallelize(net, plan, (BATCH,) + SHAPE, dtype='float64')


def new_trainer(net, case):
    name, _, on_store = case.partition('/')
    return gluon.Trainer(net.collect_params(), name, OPTIMIZERS[name], kvstore='hybrid',
                         update_on_kvstore=True if on_store else None)


def batch(number, net=None):
    """Return images and labels: this worker's samples, if a network is split."""
    random, samples = np.random.RandomState(number), getattr(net, 'samples', slice(None))
    return (mx.nd.array(random.uniform(-1, 1, (BATCH,) + SHAPE)[samples], dtype='float64'),
            mx.nd.array(random.randint(0, 10, BATCH)[samples], dtype='float64'))


def fit(net, trainer, numbers):
    """Train through some steps of the joint batches."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for number in numbers:
        data, labels = batch(number, net)
        step(trainer, lambda data=data, labels=labels: loss_of(net(data), labels), BATCH)


def go_on(net, trainer, path):
    """Train through the last steps, and save the parameters."""
    fit(net, trainer, range(BEFORE, BEFORE + AFTER))
    net.save_parameters(path + '.params')


def infer(net):
    """Outputs for this worker's samples of a batch."""
    return net(batch(99, net)[0])


def alone(directory, case):
    net = new_net(None)
    infer(net)
    net.save_parameters(directory + '/start.params')
    trainer = new_trainer(net, case)
    fit(net, trainer, range(BEFORE))
    net.save_parameters(directory + '/alone.params')
    net.hybridize()
    outputs = infer(net)
    net.export(directory + '/alone', epoch=2)
    checkpoint.save(directory + '/alone', net, trainer, BEFORE)
    go_on(net, trainer, directory + '/end')
    return {'outputs': outputs, 'images': batch(99)[0]}


def save(directory, case, name, plan):
    net, path = new_net(plan), '%s/%s' % (directory, name)
    net.load_parameters(directory + '/start.params')
    trainer = new_trainer(net, case)
    fit(net, trainer, range(BEFORE))
    net.save_parameters(path + '.params')
    net.export(path, epoch=2)
    checkpoint.save(path, net, trainer, BEFORE)
    outputs = infer(net)
    go_on(net, trainer, path + '-end')
    # And back again, into the same objects.
    assert checkpoint.load(path, net, trainer).step == BEFORE
    go_on(net, trainer, path + '-again')
    return {'outputs': outputs, 'samples': [net.samples.start, net.samples.stop]}


def resume(directory, case, source, plan, label):
    """Load a file into a network with other values."""
    net, path = new_net(plan), '%s/%s' % (directory, source)
    trainer = new_trainer(net, case)
    restored = checkpoint.load(path, net, trainer)
    assert restored.step == BEFORE, restored
    go_on(net, trainer, '%s-%s' % (path, label))
    # Loaded values replace all others.
    net.load_parameters(path + '.params')
    samples = getattr(net, 'samples', slice(None))
    return {'outputs': infer(net), 'samples': [samples.start, samples.stop]}


def faults(directory, store):
    """Return the error of each worker, and whether weights have not changed."""
    net, path = new_net(plans(store.num_workers)['layers']), os.path.join(directory, 'faults')
    net.save_parameters(path + '.params')
    saved_arrays = mx.nd.load(path + '.params')
    files = {
        'missing': {name: array for name, array in saved_arrays.items() if name != 'output.bias'},
        'extra': dict(saved_arrays, **{'output.more': mx.nd.zeros(2)}),
        'shape': dict(saved_arrays, **{'features.0.weight': mx.nd.zeros((4, 3, 3, 3), dtype='float64')}),
        'dtype': {name: array.astype('float32') for name, array in saved_arrays.items()},
        'around': {'0.' + name: array for name, array in saved_arrays.items()}}
    trainer, errors = new_trainer(net, 'sgd'), {}
    outer = nn.Sequential()
    outer.add(net)

    def attempt(label, call, *args, **keywords):
        try:
            call(*args, **keywords)
            errors[label] = ''
        except Exception as error:
            errors[label] = [isinstance(error, kind) for kind in (AssertionError, ValueError, CheckpointError)] + [
                str(error)]
    for what, arrays in files.items():
        if store.rank == 0:
            mx.nd.save('%s-%s.params' % (path, what), arrays)
    for what in ('missing', 'extra', 'shape', 'dtype'):
        attempt(what, net.load_parameters, '%s-%s.params' % (path, what))
    attempt('none', net.load_parameters, path + '-none.params')
    attempt('no file', net.load_parameters, os.path.abspath(__file__))
    attempt('folder', net.save_parameters, os.path.join(path, 'none', 'x.params'))
    attempt('exported folder', net.export, os.path.join(path, 'none', 'x'))
    attempt('states', trainer.save_states, path + '.states')
    attempt('states back', trainer.load_states, path + '.states')
    attempt('around', outer.save_parameters, path + '-never.params')
    attempt('around back', outer.load_parameters, path + '-around.params')
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    fit(net, trainer, range(1))
    checkpoint.save(path, net, trainer, 1)
    if store.rank == 0:  # for the memory that workers share, too: they have made it by now
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, whole[1]))
    attempt('full', net.save_parameters, path + '.params')
    attempt('full checkpoint', checkpoint.save, path, net, trainer, 2)
    if store.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    # They are all still in step.
    attempt('allowed', net.load_parameters, path + '-missing.params', allow_missing=True)
    attempt('ignored', net.load_parameters, path + '-extra.params', ignore_extra=True)
    attempt('cast', net.load_parameters, path + '-dtype.params', cast_dtype=True)
    net.load_parameters(path + '.params')
    net.save_parameters(path + '-again.params', deduplicate=True)
    again = mx.nd.load(path + '-again.params')
    # A worker that updates nothing counts updates all the same.
    small_net = mxhybrid.parallelize(initialised(nn.Dense(2, in_units=3, prefix='one_')),
                                     parallel.by_name({'*': {'ranks': [1], 'samples': 1}}), (4, 3))
    trainer = trainer_of(small_net, lr_scheduler=mx.lr_scheduler.FactorScheduler(step=1, factor=0.5))
    for _ in range(4):
        step(trainer, lambda: small_net(mx.nd.ones((4, 3))[small_net.samples]), 4)
    return {'errors': errors, 'kept': sorted(saved_arrays), 'again': sorted(again),
            'files': sorted(os.listdir(directory)),
            'same': all(np.array_equal(saved_arrays[name].asnumpy(), array.asnumpy()) for name, array in again.items()),
            'checkpoints': os.listdir(path), 'updates': trainer.optimizer.num_update}, net


def main():
    part, folder, *rest = sys.argv[1:]
    store, results = mxhybrid.create(), {}
    if part == 'faults':
        results, net = faults(folder, store)
        report(store.rank, outcomes=results)
        if store.rank == 0:
            net.save_parameters(folder + '/alone.params')  # the other one has ended
        return
    known = plans(store.num_workers) if store.num_workers > 1 else {'': None}
    for case in rest[0].split(','):
        directory = '%s/%s' % (folder, case.replace('/', '-'))
        Path(directory).mkdir(exist_ok=True)
        if part == 'alone':
            results[case] = alone(directory, case)
        for name in rest[1:] if part == 'save' else ():
            mx.random.seed(100 + store.rank)
            results['%s/%s' % (case, name)] = save(directory, case, name, known[name])
        for pair in rest[2:] if part == 'resume' else ():
            source, _, name = pair.partition(':')
            mx.random.seed(100 + store.rank)
            results['%s/%s' % (case, source)] = resume(directory, case, source, known[name], rest[1])
    report(store.rank, outcomes=results)


if __name__ == '__main__':
    main()
