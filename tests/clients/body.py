"""Networks of packages that use Gluon, split in two ways: outputs and updated weights are those of one process.

Reports by network and plan the largest differences, and the operators that are computed for the joint batch.

args: names of networks, separated by commas
"""
import sys
import tempfile
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.parallel import data_parallel
from tests.clients.networks import CLIENTS

STEPS = 2


def prepared(client):
    """The network with values, without dropout."""
    mx.random.seed(7)
    net = client.build()

    def keep_all(block):
        if isinstance(block, gluon.nn.Dropout):
            block._rate = 0.0
    net.apply(keep_all)
    net.cast(client.dtype)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    with mode(client):
        net(*inputs_of(client, 0))
    return net


def inputs_of(client, step):
    random = np.random.RandomState(step)
    limits = client.limits + (0,) * (len(client.shapes) - len(client.limits))
    return [mx.nd.array(random.randint(1 if len(shape) == 1 else 0, limit, shape) if limit else random.uniform(
        -1, 1, shape), dtype=client.dtype) for shape, limit in zip(client.shapes, limits)]


def mode(client):
    return autograd.train_mode() if client.trains else autograd.predict_mode()


def flat(outputs):
    """All outputs in one list."""
    if not isinstance(outputs, (list, tuple)):
        return [outputs]
    return [one for output in outputs for one in flat(output)]


def own(array, axis, samples):
    return mx.nd.slice_axis(array, axis=axis, begin=samples.start, end=samples.stop)


def computed(client, net, inputs, trainer):
    """Outputs of a step, after which weights are updated if the network is trained."""
    if not client.trains:
        return [one.asnumpy() for one in flat(net(*inputs))]
    with autograd.record():
        outputs = flat(net(*inputs))
        learned = [one for one in outputs if one.dtype != np.int32]
    autograd.backward(learned, [mx.nd.sin(one.detach() * 3 + 1) for one in learned])
    trainer.step(client.shapes[0][client.batch_axis], ignore_stale_grad=True)
    return [one.asnumpy() for one in outputs]


def apart(found, expected):
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max())) if found.size else 0.0


def part_of(whole, shape, samples):
    """Return the elements of a whole output that a worker has, where it has some samples only."""
    axes = [axis for axis, (count, length) in enumerate(zip(whole.shape, shape)) if count != length]
    if not axes:
        return whole
    each = whole.shape[axes[0]] // store_samples
    return whole.take(range(samples.start * each, samples.stop * each), axis=axes[0])


def weights_of(net, folder):
    """The whole weights; none on workers that write no file, all but worker 0."""
    path = folder / 'net.params'
    net.save_parameters(str(path))
    return {name: array.asnumpy() for name, array in mx.nd.load(str(path)).items()} if path.exists() else {}


def compared(client, plan, folder):
    """Train the network alone and by a plan."""
    global store_samples
    store_samples = client.shapes[0][client.batch_axis]
    alone, split = prepared(client), prepared(client)
    for one, other in zip(alone.collect_params().values(), split.collect_params().values()):
        other.set_data(one.data())
    shapes = client.shapes if len(client.shapes) > 1 else client.shapes[0]
    axes = [client.batch_axis if len(shape) > 1 else 0 for shape in client.shapes]
    with mode(client):
        split = mxhybrid.parallelize(split, plan, shapes, batch_axis=axes, dtype=client.dtype)
    options = {'learning_rate': 0.01, 'momentum': 0.9}
    trainers = [gluon.Trainer(net.collect_params(), 'sgd', options, kvstore=kvstore) if client.trains else None
                for net, kvstore in ((alone, None), (split, 'hybrid'))]
    outputs = 0.0
    for step in range(STEPS):
        inputs = inputs_of(client, step)
        expected = computed(client, alone, inputs, trainers[0])
        mine = [own(array, axis, split.samples) for array, axis in zip(inputs, axes)]
        for values, whole in zip(computed(client, split, mine, trainers[1]), expected):
            outputs = max(outputs, apart(values, part_of(whole, values.shape, split.samples)))
    weights = 0.0
    if client.trains:
        found, expected = weights_of(split, folder / 'split'), weights_of(alone, folder / 'alone')
        assert not found or sorted(found) == sorted(expected)
        weights = max((apart(found[name], expected[name]) for name in found), default=0.0)
    joint = [line.strip() for line in split.report().splitlines() if 'joint batch' in line or 'whole on' in line]
    return {'outputs': outputs, 'weights': weights, 'joint': joint}


def main():
    store = mxhybrid.create()
    results = {}
    for name in sys.argv[1].split(','):
        for label, plan in (('data', data_parallel()), ('split', CLIENTS[name].plan)):
            with tempfile.TemporaryDirectory() as folder:
                for part in ('split', 'alone'):
                    (Path(folder) / part).mkdir()
                results['%s: %s' % (name, label)] = compared(CLIENTS[name], plan, Path(folder))
    report(store.rank, found=results)


main()
