"""Networks of packages that use Gluon, split in several ways: outputs and updated weights are those of one process.

Reports by network and plan: the largest difference of the first outputs, that of all outputs and weights, the one that
weights with other last bits make in one process, and the operators that are computed for the joint batch.

args: names of networks, separated by commas
"""
import sys
import tempfile
import warnings
from pathlib import Path

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.parallel import data_parallel, megatron
from tests.clients.networks import CLIENTS

STEPS = 2
#: A part of a number that sums in another order may change, in units of its last bit.
LAST_BITS = 64


def prepared(client):
    """Return the network with values, without dropout."""
    mx.random.seed(7)
    net = client.build()

    def keep_all(block):
        if isinstance(block, gluon.nn.Dropout):
            block._rate = 0.0
    net.apply(keep_all)
    net.cast(client.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='.*is already initialized')
        net.initialize(getattr(mx.init, client.initializer)())
    net.hybridize()
    with autograd.record():
        net(*inputs_of(client, 0))
    return net


def inputs_of(client, step, last_bits=0.0):
    """Return the inputs of all samples; real numbers are changed by up to the given part of them."""
    random = np.random.RandomState(step)
    limits = client.limits + (0,) * (len(client.shapes) - len(client.limits))
    inputs = []
    for shape, limit in zip(client.shapes, limits):
        if limit:
            values = random.randint(1 if len(shape) == 1 else 0, limit, shape)
        else:
            values = random.uniform(-1, 1, shape)
        if len(shape) == 4:
            # Images that differ in color and contrast, or a BatchNorm after a global pooling would divide by the
            # small differences between their means.
            values = values * random.uniform(0.2, 2, shape[:2] + (1, 1)) + random.uniform(-1, 1, shape[:2] + (1, 1))
        if not limit:
            values = values * (1 + last_bits * random.uniform(-1, 1, shape))
        inputs.append(mx.nd.array(values, dtype=client.dtype))
    return inputs


def flat(outputs):
    """Return all outputs in one list."""
    if not isinstance(outputs, (list, tuple)):
        return [outputs]
    return [array for output in outputs for array in flat(output)]


def share_of(array, axis, samples):
    return mx.nd.slice_axis(array, axis=axis, begin=samples.start, end=samples.stop)


def outputs_of_step(net, inputs, trainer, batch_size, sizes=None):
    """Return the outputs of a step, after which weights are updated.

    `sizes` are the sizes of the whole outputs, by which gradients are divided: weights that a step changes too much
    make the next step sensitive to rounding errors.
    """
    with autograd.record():
        outputs = flat(net(*inputs))
        learned = [(array, size) for array, size in zip(outputs, sizes or [array.size for array in outputs])
                   if array.dtype != np.int32]
    autograd.backward([array for array, _ in learned],
                      [mx.nd.softsign(array.detach() * 3 + 1) * (batch_size / size) for array, size in learned])
    trainer.step(batch_size, ignore_stale_grad=True)
    return [array.asnumpy() for array in outputs]


def relative_difference(values, expected):
    """Return the largest difference, relative to the largest value."""
    if not values.size:
        return 0.0
    return float(np.abs(values - expected).max() / max(1.0, np.abs(expected).max()))


def part_of(whole, shape, samples, batch_size):
    """Return the elements of a whole output that a worker has, if it has some of the samples."""
    axes = [axis for axis, (count, length) in enumerate(zip(whole.shape, shape)) if count != length]
    if not axes:
        return whole
    each = whole.shape[axes[0]] // batch_size
    return whole.take(range(samples.start * each, samples.stop * each), axis=axes[0])


def weights_of(net, folder):
    """Return the whole weights; none on workers that write no file, which are all but worker 0."""
    path = folder / 'net.params'
    net.save_parameters(str(path))
    return {name: array.asnumpy() for name, array in mx.nd.load(str(path)).items()} if path.exists() else {}


def trainer_of(client, net, kvstore=None):
    return gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': client.learning_rate, 'momentum': 0.9},
                         kvstore=kvstore)


def values_of(net):
    return [param.data().asnumpy() for param in net.collect_params().values()]


def trained_alone(client, net, last_bits=0.0):
    """Train the network in this process; return the outputs of each step."""
    trainer = trainer_of(client, net)
    return [outputs_of_step(net, inputs_of(client, step, last_bits), trainer, client.shapes[0][client.batch_axis])
            for step in range(STEPS)]


def compared(client, plan, folder):
    """Train the network alone and by a plan; return the largest differences, and the operators that every worker
    computes whole.
    """
    batch_size = client.shapes[0][client.batch_axis]
    alone, split, changed = (prepared(client) for _ in range(3))
    random, last_bits = np.random.RandomState(0), LAST_BITS * np.finfo(client.dtype).eps
    for param, copied, moved in zip(*(net.collect_params().values() for net in (alone, split, changed))):
        copied.set_data(param.data())
        values = param.data().asnumpy()
        moved.set_data(mx.nd.array(values * (1 + last_bits * random.uniform(-1, 1, values.shape)), dtype=values.dtype))
    expected = trained_alone(client, alone)
    pairs = list(zip(sum(trained_alone(client, changed, last_bits), []) + values_of(changed),
                     sum(expected, []) + values_of(alone)))
    axes = [client.batch_axis if len(shape) > 1 else 0 for shape in client.shapes]
    with autograd.record():  # some networks return losses if they are recorded
        split = mxhybrid.parallelize(split, plan, client.data, batch_axis=axes, dtype=client.dtype)
    trainer, outputs = trainer_of(client, split, 'hybrid'), []
    for step, wholes in enumerate(expected):
        inputs = [share_of(array, axis, split.samples) for array, axis in zip(inputs_of(client, step), axes)]
        values = outputs_of_step(split, inputs, trainer, batch_size, [whole.size for whole in wholes])
        assert len(values) == len(wholes)
        outputs.append(max(relative_difference(array, part_of(whole, array.shape, split.samples, batch_size))
                           for array, whole in zip(values, wholes)))
    saved, whole_weights = weights_of(split, folder / 'split'), weights_of(alone, folder / 'alone')
    assert not saved or sorted(saved) == sorted(whole_weights)
    weights = max((relative_difference(saved[name], whole_weights[name]) for name in saved), default=0.0)
    joint = [line.strip() for line in split.report().splitlines() if 'joint batch' in line or 'whole on' in line]
    return {'first': outputs[0], 'all': max(outputs + [weights]), 'joint': joint,
            'rounding': max(relative_difference(*pair) for pair in pairs)}


def main():
    store = mxhybrid.create()
    results = {}
    for name in sys.argv[1].split(','):
        plans = {'data': data_parallel(), 'split': CLIENTS[name].plan}
        if CLIENTS[name].whole_weights is not None:
            plans['megatron'] = megatron(2, sequence=True)
        for label, plan in plans.items():
            with tempfile.TemporaryDirectory() as folder:
                for part in ('split', 'alone'):
                    (Path(folder) / part).mkdir()
                results['%s: %s' % (name, label)] = compared(CLIENTS[name], plan, Path(folder))
    report(store.rank, outcomes=results)


main()
