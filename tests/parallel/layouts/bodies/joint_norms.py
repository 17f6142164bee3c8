"""BatchNorms with joint statistics, split in many ways, compared with the same network in one process."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.kernels.operators import JointNormOperator
from mxhybrid.parallel import data_parallel, grid
from tests.helpers.gluon_nets import Net, backward, initialised, step, trainer_of
from tests.helpers.outcomes import error_of

STEPS = 2
store = mxhybrid.create()
WORKERS = store.num_workers
STRIPS, DATA = grid(domain=(WORKERS,)), data_parallel()


def norm(channels=6, **settings):
    return lambda: nn.BatchNorm(in_channels=channels, **settings)


def frozen(channels=6):
    def make():
        norm_layer = nn.BatchNorm(in_channels=channels)
        norm_layer.collect_params('.*(gamma|beta)').setattr('grad_req', 'null')
        return norm_layer
    return make


def first():
    return nn.Conv2D(6, 3, padding=1, in_channels=3)


def last(channels=6):
    return nn.Conv2D(4, 3, in_channels=channels)


def relu():
    return nn.HybridLambda('relu')


def pool():
    return nn.MaxPool2D(2, 2)


def layers(*makers):
    """Return a function that makes a network of layers, which are called one after the other."""
    return lambda: Net(lambda: [make() for make in makers])


def around(make_norm):
    """Return a function that makes a network of a BatchNorm and a relu between convolutions."""
    return layers(first, make_norm, relu, last)


def residual():
    """Return a network with two BatchNorms whose inputs and outputs have other readers, too."""
    def call(F, data, first_layer, one_norm, other_norm, last_layer):
        data = first_layer(data)
        one, other = one_norm(data), other_norm(data)
        return last_layer(F.relu(one) + other * one + data)
    return Net(lambda: [first(), norm()(), norm()(), last()], call)


def shared(order):
    """Return a function that makes a network of a BatchNorm on images of three sizes, which are read in an order."""
    def call(F, *inputs):
        *images, convolution, norm_layer, dense = inputs
        means = [F.mean(F.tanh(norm_layer(convolution(data))), axis=(2, 3)) for data in images]
        return dense(F.concat(*[means[at] for at in order], dim=1))
    return lambda: Net(lambda: [nn.Conv2D(4, 1, in_channels=3), norm(4)(), nn.Dense(4, in_units=12)], call)


def on_itself():
    """Return a network with a BatchNorm that is called on its own output."""
    def call(F, data, convolution, norm_layer, last_layer):
        return last_layer(norm_layer(F.tanh(norm_layer(convolution(data) * 3 + 1)) * 2 - 0.5))
    return Net(lambda: [nn.Conv2D(4, 1, in_channels=3), norm(4)(), last(4)], call)


def of_all_samples():
    """Return a network with a BatchNorm of samples, and of an array that one worker computes for all."""
    def call(F, data, first_layer, norm_layer, last_layer):
        normalized = norm_layer(first_layer(data))
        products = F.dot(F.tanh(normalized), normalized, transpose_b=True)
        return F.broadcast_add(last_layer(normalized), F.reshape(F.mean(F.sin(norm_layer(products))), shape=(1, 1)))
    return Net(lambda: [nn.Dense(7, in_units=5), norm(7)(), nn.Dense(4, in_units=7)], call)


IMAGES, EVEN, SIZES = (7, 3, 9, 6), (7, 3, 12, 8), [(7, 3, 9, 6), (7, 3, 5, 4), (7, 3, 3, 3)]
POOLED = layers(first, norm(), relu, pool, lambda: nn.Conv2D(4, 3, padding=1, in_channels=6))
OF_DATA = layers(norm(3), relu, lambda: last(3))
DENSE = layers(lambda: nn.Dense(8, in_units=5), norm(8), relu, lambda: nn.Dense(4, in_units=8))
#: Functions that make networks, the shapes of data, and plans.
CASES = {
    'samples': (around(norm()), IMAGES, DATA), 'height': (around(norm()), IMAGES, STRIPS),
    'samples, no activation': (layers(first, norm(), last), IMAGES, DATA),
    'channels': (around(norm()), IMAGES, {'conv0_fwd': {'channels': WORKERS}}),
    'no scale': (around(norm(scale=False)), IMAGES, DATA),
    'no center': (around(norm(center=False, momentum=0.3)), IMAGES, STRIPS),
    'another axis': (around(norm(axis=3)), IMAGES, DATA),
    'global statistics': (around(norm(use_global_stats=True)), IMAGES, DATA),
    'frozen': (around(frozen()), IMAGES, STRIPS), 'of data': (OF_DATA, IMAGES, DATA),
    'of data, frozen': (layers(frozen(3), relu, lambda: last(3)), IMAGES, DATA),
    'of data with gradients': (OF_DATA, IMAGES, DATA), 'data with gradients': (around(norm()), IMAGES, DATA),
    'last': (layers(first, norm()), IMAGES, DATA), 'last, activation': (layers(first, norm(), relu), IMAGES, STRIPS),
    'pooled': (POOLED, EVEN, DATA), 'pooled, height': (POOLED, EVEN, STRIPS),
    'pooled, no activation': (layers(first, norm(), pool, lambda: nn.Conv2D(4, 3, padding=1, in_channels=6)), EVEN,
                              DATA),
    'pooled, last': (layers(first, norm(), relu, pool), EVEN, STRIPS),
    'pooled, odd': (POOLED, IMAGES, DATA), 'pooled, odd height': (POOLED, IMAGES, STRIPS),
    'several readers': (residual, IMAGES, DATA), 'several readers, height': (residual, IMAGES, STRIPS),
    'dense': (DENSE, (7, 5), DATA),
    'shared': (shared((0, 1, 2)), SIZES, DATA), 'shared, height': (shared((0, 1, 2)), SIZES, STRIPS),
    'shared, another order': (shared((2, 0, 1)), SIZES, STRIPS), 'on one worker': (of_all_samples, (7, 5), DATA),
    'on itself': (on_itself, IMAGES, DATA), 'on itself, height': (on_itself, IMAGES, STRIPS)}


#: Cases in which the data has gradients: then the first call's averages are updated first.
WITH_GRADIENTS = ('of data with gradients', 'data with gradients')


def twins(build, dtype):
    """Return two networks with equal values."""
    nets = []
    for _ in range(2):
        mx.random.seed(3)
        nets.append(initialised(build(), mx.init.Xavier(), dtype=dtype))
    return nets


def train(net, shapes, dtype, kvstore, input_grad=False):
    """Train, with two calls in each step; return outputs, also of inference, and this worker's samples."""
    samples = getattr(net, 'samples', slice(None))
    trainer = trainer_of(net, kvstore=kvstore, learning_rate=0.0002, momentum=0.9)
    draw, outputs = np.random.RandomState(1), []
    for _ in range(STEPS):
        data = [[mx.nd.array((draw.normal(size=shape) * (1 + at) + at)[samples], dtype=dtype) for shape in shapes]
                for at in range(2)]
        for array in sum(data, []) if input_grad else []:
            array.attach_grad()

        def loss(data=data):
            outputs.extend(net(*arrays) for arrays in data)
            return sum((output ** 2).sum() for output in outputs[-2:])
        step(trainer, loss, shapes[0][0])
    with autograd.record():
        net(*data[0])  # and no backward pass
    return [output.asnumpy() for output in outputs + [net(*data[0])]], samples


def apart(name, dtype):
    """Return the largest relative differences of outputs, and of weights and averages, from those of one process."""
    build, data, plan = CASES[name]
    shapes = data if isinstance(data, list) else [data]
    (alone, net), input_grad = twins(build, dtype), name in WITH_GRADIENTS
    expected, _ = train(alone, shapes, dtype, None, input_grad)
    net = mxhybrid.parallelize(net, plan, data, dtype=dtype, input_grad=input_grad)
    found, samples = train(net, shapes, dtype, mxhybrid.create(), input_grad)
    outputs = max(float(np.abs(mine - whole[samples]).max() / np.abs(whole).max()) for mine, whole in
                  zip(found, expected))
    values = 0.0
    for key, param in alone.collect_params().items():
        whole = param.data().asnumpy()
        mine = net.collect_params()[key].data().asnumpy()
        if mine.shape == whole.shape:
            # The gradient of a bias before a BatchNorm is rounding alone.
            values = max(values, float(np.abs(mine - whole).max() / max(np.abs(whole).max(), 1.0)))
    return outputs, values


def after_a_small_batch(dtype):
    """Return the difference of running averages after a step on a batch with fewer samples than workers."""
    (alone, net), shape = twins(around(norm()), dtype), (WORKERS - 1, 3, 9, 6)
    split = mxhybrid.parallelize(net, DATA, IMAGES, dtype=dtype)
    batch = np.random.RandomState(1).normal(size=shape)
    for net in (alone, split.for_data(shape)):
        data = mx.nd.array(batch[getattr(net, 'samples', slice(None))], dtype=dtype)
        backward(lambda net=net, data=data: net(data) ** 2)
    averages = [(param, alone.collect_params()[key]) for key, param in split.collect_params().items()
                if 'running' in key]
    return max(float(np.abs(mine.data().asnumpy() - whole.data().asnumpy()).max()) for mine, whole in averages)


def refusal():
    """Return the error for calls of one BatchNorm whose channels are split differently."""
    net = initialised(shared((0, 1, 2))())
    return error_of(mxhybrid.parallelize, net, {'batchnorm0_fwd#2': {'channels': 2}}, SIZES)


def count_operators():
    """Return a list that gets an element whenever a graph gets a compiled BatchNorm."""
    names, symbol = [], JointNormOperator.symbol

    def counted(self, name, *inputs):
        names.append(name)
        return symbol(self, name, *inputs)

    JointNormOperator.symbol = counted
    return names


differences, operators, in_graphs = {}, {}, count_operators()
for case in CASES:
    for dtype in ('float64', 'float32'):
        del in_graphs[:]
        differences['%s, %s' % (case, dtype)] = apart(case, dtype)
        operators['%s, %s' % (case, dtype)] = len(in_graphs)
report(store.rank, refused=refusal(), apart=differences, operators=operators,
       after_a_small_batch=[after_a_small_batch(dtype) for dtype in ('float64', 'float32')])
