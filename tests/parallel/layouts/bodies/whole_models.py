"""Networks that are split: their files equal those of the whole network, and are loaded under any other plan and
without one.

``--part alone`` trains in one process, and saves what it begins with, and a checkpoint; ``--part save`` begins
with that under each plan, saves everything on the way, and goes on; ``--part resume`` goes on from what any wrote;
``--part faults`` tells errors.
"""
import argparse
import os
import resource

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import CheckpointError, checkpoint, parallel

BATCH, SHAPE, BEFORE, AFTER = 8, (3, 8, 8), 3, 3

OPTIMIZERS = {'sgd': {'learning_rate': 0.05, 'momentum': 0.9, 'wd': 1e-3},
              'adam': {'learning_rate': 0.01, 'epsilon': 1e-3},
              'ftml': {'learning_rate': 0.01, 'epsilon': 1e-3}}

#: Optimizer, options of the Trainer.
CASES = {'sgd': {}, 'adam': {}, 'ftml': {}, 'sgd/on-store': {'update_on_kvstore': True}}


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
    """Return arrays by name."""
    return {
        'data': parallel.data_parallel(),
        'trick': parallel.one_weird_trick(),
        'grid': parallel.grid(model=2, batch=ranks // 2),
        'domain': parallel.grid(domain=(ranks,)),
        'layers': parallel.by_name({'*conv0_fwd': {'channels': ranks}, '*batchnorm0_fwd': {'channels': 2},
                                   '*features_dense0_fwd': {'partials': ranks},
                                   '*output_fwd': {'ranks': [1], 'samples': 1}})}


def make(dtype):
    """The network, not yet split."""
    net = Net()
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    net.collect_params('.*bias').setattr('lr_mult', 2.0)
    return net


def split(plan, dtype):
    """The network, split by a plan, or not at all for None."""
    net = make(dtype)
    return net if plan is None else mxhybrid.parallelize(net, plan, (BATCH,) + SHAPE, dtype=dtype)


def trainer_of(net, case):
    name = case.split('/')[0]
    return gluon.Trainer(net.collect_params(), name, OPTIMIZERS[name], kvstore='hybrid', **CASES[case])


def samples_of(net):
    return net.samples if hasattr(net, 'samples') else slice(None)


def batch(step, dtype):
    random = np.random.RandomState(step)
    return (mx.nd.array(random.uniform(-1, 1, (BATCH,) + SHAPE), dtype=dtype),
            mx.nd.array(random.randint(0, 10, BATCH), dtype=dtype))


def fit(net, trainer, steps, dtype):
    """Train through some steps of the joint batches."""
    loss_of, mine = gluon.loss.SoftmaxCrossEntropyLoss(), samples_of(net)
    for step in steps:
        data, labels = (array[mine] for array in batch(step, dtype))
        with autograd.record():
            loss = loss_of(net(data), labels)
        loss.backward()
        trainer.step(BATCH)


def infer(net, dtype):
    """Outputs for this worker's samples of a batch."""
    return net(batch(99, dtype)[0][samples_of(net)])


def alone(directory, case, dtype):
    net = make(dtype)
    infer(net, dtype)
    net.save_parameters(os.path.join(directory, 'start.params'))
    trainer = trainer_of(net, case)
    fit(net, trainer, range(BEFORE), dtype)
    net.save_parameters(os.path.join(directory, 'alone.params'))
    net.hybridize()
    outputs = infer(net, dtype)
    net.export(os.path.join(directory, 'alone'), epoch=2)
    checkpoint.save(os.path.join(directory, 'alone'), net, trainer, BEFORE)
    fit(net, trainer, range(BEFORE, BEFORE + AFTER), dtype)
    net.save_parameters(os.path.join(directory, 'end.params'))
    return {'outputs': outputs}


def save(directory, case, dtype, name, plan):
    net = split(plan, dtype)
    net.load_parameters(os.path.join(directory, 'start.params'))
    trainer = trainer_of(net, case)
    fit(net, trainer, range(BEFORE), dtype)
    net.save_parameters(os.path.join(directory, name + '.params'))
    net.export(os.path.join(directory, name), epoch=2)
    checkpoint.save(os.path.join(directory, name), net, trainer, BEFORE)
    outputs = infer(net, dtype)
    fit(net, trainer, range(BEFORE, BEFORE + AFTER), dtype)
    net.save_parameters(os.path.join(directory, name + '-end.params'))
    # And back again, into the same objects.
    assert checkpoint.load(os.path.join(directory, name), net, trainer).step == BEFORE
    fit(net, trainer, range(BEFORE, BEFORE + AFTER), dtype)
    net.save_parameters(os.path.join(directory, name + '-again.params'))
    return {'outputs': outputs, 'samples': [net.samples.start, net.samples.stop]}


def resume(directory, case, dtype, source, plan, label):
    """Load a file into a network with other values."""
    net = split(plan, dtype)
    trainer = trainer_of(net, case)
    found = checkpoint.load(os.path.join(directory, source), net, trainer)
    assert found.step == BEFORE, found
    fit(net, trainer, range(BEFORE, BEFORE + AFTER), dtype)
    net.save_parameters(os.path.join(directory, '%s-%s.params' % (source, label)))
    # Loaded values replace all others.
    net.load_parameters(os.path.join(directory, source + '.params'))
    mine = samples_of(net)
    return {'outputs': infer(net, dtype), 'samples': [mine.start, mine.stop]}


def faults(directory, dtype, store):
    """Return the error of each worker, and whether weights have not changed."""
    net, path = split(plans(store.num_workers)['layers'], dtype), os.path.join(directory, 'faults')
    net.save_parameters(path + '.params')
    saved_arrays = mx.nd.load(path + '.params')
    files = {
        'missing': {name: array for name, array in saved_arrays.items() if name != 'output.bias'},
        'extra': dict(saved_arrays, **{'output.more': mx.nd.zeros(2)}),
        'shape': dict(saved_arrays, **{'features.0.weight': mx.nd.zeros((4, 3, 3, 3), dtype=dtype)}),
        'dtype': {name: array.astype('float32') for name, array in saved_arrays.items()},
        'around': {'0.' + name: array for name, array in saved_arrays.items()}}
    trainer, errors = trainer_of(net, 'sgd'), {}
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
    fit(net, trainer, range(1), dtype)
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
    small_net = nn.Dense(2, in_units=3, prefix='one_')
    small_net.initialize()
    small_net = mxhybrid.parallelize(small_net, parallel.by_name({'*': {'ranks': [1], 'samples': 1}}), (4, 3))
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)
    trainer = gluon.Trainer(small_net.collect_params(), 'sgd', {'lr_scheduler': schedule}, kvstore='hybrid')
    for _ in range(4):
        with autograd.record():
            loss = small_net(mx.nd.ones((4, 3))[small_net.samples]).sum()
        loss.backward()
        trainer.step(4)
    return {'errors': errors, 'kept': sorted(saved_arrays), 'again': sorted(again),
            'files': sorted(os.listdir(directory)),
            'same': all(np.array_equal(saved_arrays[name].asnumpy(), array.asnumpy()) for name, array in again.items()),
            'checkpoints': os.listdir(path), 'updates': trainer.optimizer.num_update}, net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--part', required=True)
    parser.add_argument('--directory', required=True)
    parser.add_argument('--cases', default=','.join(CASES))
    parser.add_argument('--plans', default='')
    parser.add_argument('--label', default='')
    parser.add_argument('--sources', default='')
    arguments = parser.parse_args()
    dtype, results = 'float64', {}
    store = mxhybrid.create()
    if arguments.part == 'faults':
        results, net = faults(arguments.directory, dtype, store)
        report(store.rank, outcomes=results)
        if store.rank == 0:
            net.save_parameters(os.path.join(arguments.directory, 'alone.params'))  # the other one has ended
        return
    known = dict(plans(store.num_workers)) if store.num_workers > 1 else {'': None}
    for case in arguments.cases.split(','):
        directory = os.path.join(arguments.directory, case.replace('/', '-'))
        os.makedirs(directory, exist_ok=True)
        if arguments.part == 'alone':
            results[case] = alone(directory, case, dtype)
            continue
        for at, name in enumerate(arguments.plans.split(',')):
            mx.random.seed(100 + store.rank)
            if arguments.part == 'save':
                results['%s/%s' % (case, name)] = save(directory, case, dtype, name, known[name])
            else:
                source = arguments.sources.split(',')[at]
                results['%s/%s' % (case, source)] = resume(directory, case, dtype, source, known[name], arguments.label)
    report(store.rank, outcomes=results)


if __name__ == '__main__':
    main()
