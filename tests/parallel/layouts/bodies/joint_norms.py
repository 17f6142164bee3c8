"""BatchNorms with joint statistics, split in many ways, compared with the same network in one process.

Reports for each case and type how far outputs, weights and running averages are from those of one process, the
number of its compiled operators, and the error of a split that cannot be.
"""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.kernels.operators import JointNormOperator
from mxhybrid.parallel import data_parallel, grid
from tests.helpers.outcomes import error_of

STEPS = 2
store = mxhybrid.create()
WORKERS = store.num_workers
STRIPS, DATA = grid(domain=(WORKERS,)), data_parallel()


class Layers(gluon.HybridBlock):
    """A convolution, a BatchNorm and what `after` says, between layers that are trained."""

    def __init__(self, norm, act=True, first=True):
        super().__init__(prefix='net_')
        self._act, self._first = act, first
        with self.name_scope():
            if first:
                self.first = nn.Conv2D(6, 3, padding=1, in_channels=3)
            self.norm = norm(6 if first else 3)
            self.last = nn.Conv2D(4, 3, in_channels=6 if first else 3)

    def hybrid_forward(self, F, data):
        normalized = self.norm(self.first(data) if self._first else data)
        return self.last(F.relu(normalized) if self._act else normalized)


class Pooled(gluon.HybridBlock):
    """A BatchNorm and a pooling, with a relu between them if it says so; the pooling is the output if it is `last`."""

    def __init__(self, act=True, last=False):
        super().__init__(prefix='net_')
        self._act, self._is_last = act, last
        with self.name_scope():
            self.first, self.norm = nn.Conv2D(6, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=6)
            self.pool = nn.MaxPool2D(2, 2)
            if not last:
                self.last = nn.Conv2D(4, 3, padding=1, in_channels=6)

    def hybrid_forward(self, F, data):
        normalized = self.norm(self.first(data))
        pooled = self.pool(F.relu(normalized) if self._act else normalized)
        return pooled if self._is_last else self.last(pooled)


class Residual(gluon.HybridBlock):
    """A BatchNorm whose input and output have other readers, too."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first = nn.Conv2D(6, 3, padding=1, in_channels=3)
            self.norms = nn.HybridSequential()
            with self.norms.name_scope():
                self.norms.add(nn.BatchNorm(in_channels=6), nn.BatchNorm(in_channels=6))
            self.last = nn.Conv2D(4, 3, in_channels=6)

    def hybrid_forward(self, F, data):
        data = self.first(data)
        one, other = self.norms[0](data), self.norms[1](data)
        return self.last(F.relu(one) + other * one + data)


class Last(gluon.HybridBlock):
    """A BatchNorm that is the output of the network, or is read by a relu that is."""

    def __init__(self, act):
        super().__init__(prefix='net_')
        self._act = act
        with self.name_scope():
            self.first, self.norm = nn.Conv2D(6, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=6)

    def hybrid_forward(self, F, data):
        normalized = self.norm(self.first(data))
        return F.relu(normalized) if self._act else normalized


class Dense(gluon.HybridBlock):
    """A BatchNorm of vectors."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first, self.last = nn.Dense(8, in_units=5), nn.Dense(4, in_units=8)
            self.norm = nn.BatchNorm(in_channels=8)

    def hybrid_forward(self, F, data):
        return self.last(F.relu(self.norm(self.first(data))))


class Shared(gluon.HybridBlock):
    """A convolution and a BatchNorm on images of several sizes, whose outputs are read in an `order`."""

    def __init__(self, order):
        super().__init__(prefix='net_')
        self._order = order
        with self.name_scope():
            self.first, self.norm = nn.Conv2D(4, 1, in_channels=3), nn.BatchNorm(in_channels=4)
            self.last = nn.Dense(4, in_units=12)

    def hybrid_forward(self, F, *images):
        made = [F.mean(F.tanh(self.norm(self.first(data))), axis=(2, 3)) for data in images]
        return self.last(F.concat(*[made[at] for at in self._order], dim=1))


class OnItself(gluon.HybridBlock):
    """A BatchNorm that is called on its own output."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first, self.norm = nn.Conv2D(4, 1, in_channels=3), nn.BatchNorm(in_channels=4)
            self.last = nn.Conv2D(4, 3, in_channels=4)

    def hybrid_forward(self, F, data):
        return self.last(self.norm(F.tanh(self.norm(self.first(data) * 3 + 1)) * 2 - 0.5))


class OfAllSamples(gluon.HybridBlock):
    """A BatchNorm of samples, and of an array that one worker computes for all."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first, self.last, self.norm = nn.Dense(7, in_units=5), nn.Dense(4, in_units=7), nn.BatchNorm(
                in_channels=7)

    def hybrid_forward(self, F, data):
        normalized = self.norm(self.first(data))
        products = F.dot(F.tanh(normalized), normalized, transpose_b=True)
        return F.broadcast_add(self.last(normalized), F.reshape(F.mean(F.sin(self.norm(products))), shape=(1, 1)))


def norm(**settings):
    return lambda channels: nn.BatchNorm(in_channels=channels, **settings)


def frozen(channels):
    made = nn.BatchNorm(in_channels=channels)
    made.collect_params('.*(gamma|beta)').setattr('grad_req', 'null')
    return made


IMAGES, EVEN, SIZES = (7, 3, 9, 6), (7, 3, 12, 8), [(7, 3, 9, 6), (7, 3, 5, 4), (7, 3, 3, 3)]
CASES = {
    'samples': (lambda: Layers(norm()), IMAGES, DATA), 'height': (lambda: Layers(norm()), IMAGES, STRIPS),
    'samples, no activation': (lambda: Layers(norm(), act=False), IMAGES, DATA),
    'channels': (lambda: Layers(norm()), IMAGES, {'conv0_fwd': {'channels': WORKERS}}),
    'no scale': (lambda: Layers(norm(scale=False)), IMAGES, DATA),
    'no center': (lambda: Layers(norm(center=False, momentum=0.3)), IMAGES, STRIPS),
    'another axis': (lambda: Layers(lambda channels: nn.BatchNorm(axis=3, in_channels=6)), IMAGES, DATA),
    'global statistics': (lambda: Layers(norm(use_global_stats=True)), IMAGES, DATA),
    'frozen': (lambda: Layers(frozen), IMAGES, STRIPS), 'of data': (lambda: Layers(norm(), first=False), IMAGES, DATA),
    'of data, frozen': (lambda: Layers(frozen, first=False), IMAGES, DATA),
    'of data with gradients': (lambda: Layers(norm(), first=False), IMAGES, DATA),
    'data with gradients': (lambda: Layers(norm()), IMAGES, DATA),
    'last': (lambda: Last(False), IMAGES, DATA), 'last, activation': (lambda: Last(True), IMAGES, STRIPS),
    'pooled': (Pooled, EVEN, DATA), 'pooled, height': (Pooled, EVEN, STRIPS),
    'pooled, no activation': (lambda: Pooled(act=False), EVEN, DATA),
    'pooled, last': (lambda: Pooled(last=True), EVEN, STRIPS),
    'pooled, odd': (Pooled, IMAGES, DATA), 'pooled, odd height': (Pooled, IMAGES, STRIPS),
    'several readers': (Residual, IMAGES, DATA), 'several readers, height': (Residual, IMAGES, STRIPS),
    'dense': (Dense, (7, 5), DATA),
    'shared': (lambda: Shared((0, 1, 2)), SIZES, DATA), 'shared, height': (lambda: Shared((0, 1, 2)), SIZES, STRIPS),
    'shared, another order': (lambda: Shared((2, 0, 1)), SIZES, STRIPS),
    'on one worker': (OfAllSamples, (7, 5), DATA),
    'on itself': (OnItself, IMAGES, DATA), 'on itself, height': (OnItself, IMAGES, STRIPS)}


#: Cases in which the data has gradients: then the first call's averages are updated first.
OF_DATA = ('of data with gradients', 'data with gradients')


def train(net, shapes, dtype, kvstore, input_grad=False):
    """Outputs of a network while it is trained, twice in each step, and of inference."""
    samples = getattr(net, 'samples', slice(None))
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.0002, 'momentum': 0.9}, kvstore=kvstore)
    draw, all_outputs = np.random.RandomState(1), []
    for _ in range(STEPS):
        data = [[mx.nd.array((draw.normal(size=shape) * (1 + at) + at)[samples], dtype=dtype) for shape in shapes]
                for at in range(2)]
        for array in sum(data, []) if input_grad else []:
            array.attach_grad()
        with autograd.record():
            outputs = [net(*arrays) for arrays in data]
            loss = sum((output ** 2).sum() for output in outputs)
        loss.backward()
        trainer.step(shapes[0][0])
        all_outputs += outputs
    with autograd.record():
        net(*data[0])  # and no backward pass
    return [output.asnumpy() for output in all_outputs + [net(*data[0])]], samples


def apart(name, dtype):
    """Return the largest differences of outputs, weights and averages from those of one process, relative to the
    largest value.
    """
    build, data, plan = CASES[name]
    shapes = data if isinstance(data, list) else [data]
    nets = []
    for _ in range(2):
        mx.random.seed(3)
        net = build()
        net.cast(dtype)
        net.initialize(mx.init.Xavier())
        nets.append(net)
    input_grad = name in OF_DATA
    expected, _ = train(nets[0], shapes, dtype, None, input_grad)
    net = mxhybrid.parallelize(nets[1], plan, data, dtype=dtype, input_grad=input_grad)
    found, samples = train(net, shapes, dtype, mxhybrid.create(), input_grad)
    outputs = max(float(np.abs(mine - whole[samples]).max() / np.abs(whole).max()) for mine, whole in
                  zip(found, expected))
    values = 0.0
    for key, param in nets[0].collect_params().items():
        whole = param.data().asnumpy()
        mine = net.collect_params()[key].data().asnumpy()
        if mine.shape == whole.shape:
            # The gradient of a bias before a BatchNorm is rounding alone.
            values = max(values, float(np.abs(mine - whole).max() / max(np.abs(whole).max(), 1.0)))
    return outputs, values


def after_a_small_batch(dtype):
    """Return the largest difference of running averages from those of one process, after a step on a batch with fewer
    samples than there are workers.
    """
    nets, shape = [], (WORKERS - 1, 3, 9, 6)
    for _ in range(2):
        mx.random.seed(3)
        net = Layers(norm())
        net.cast(dtype)
        net.initialize(mx.init.Xavier())
        nets.append(net)
    split = mxhybrid.parallelize(nets[1], DATA, IMAGES, dtype=dtype)
    batch = np.random.RandomState(1).normal(size=shape)
    for net in (nets[0], split.for_data(shape)):
        with autograd.record():
            loss = (net(mx.nd.array(batch[getattr(net, 'samples', slice(None))], dtype=dtype)) ** 2).sum()
        loss.backward()
    averages = [(param, nets[0].collect_params()[key]) for key, param in split.collect_params().items()
                if 'running' in key]
    return max(float(np.abs(mine.data().asnumpy() - whole.data().asnumpy()).max()) for mine, whole in averages)


def refusal():
    """Return the error for calls of one BatchNorm whose channels are split differently."""
    net = Shared((0, 1, 2))
    net.initialize()
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
