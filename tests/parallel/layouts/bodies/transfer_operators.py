"""Networks of float32 split by height, with convolutions on both sides of redistributions, compared with one process.

Reports for each network the numbers of redistributions that MXNet calls without and with Python, and for three steps
this worker's outputs and gradients, and the same arrays of one process.
"""
import json

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid


class Residual(gluon.HybridBlock):
    """Rows of one output are read by two convolutions, which need others."""

    shape = 4, 3, 12, 10

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.Conv2D(16, 3, padding=1, in_channels=3, use_bias=False)
            self.norm = nn.BatchNorm(in_channels=16)
            self.long = nn.Conv2D(16, 3, strides=2, padding=1, in_channels=16)
            self.short = nn.Conv2D(16, 1, strides=2, in_channels=16)

    def hybrid_forward(self, F, data):
        normed = F.relu(self.norm(self.first(data)))
        return self.long(normed) + self.short(normed)


class Frozen(Residual):
    """A network of which no layer before the first BatchNorm is trained."""

    def __init__(self):
        super().__init__()
        self.first.collect_params().setattr('grad_req', 'null')


class Freezing(Residual):
    """A network in which weights before redistributions are frozen after the first step."""


class Crowd(gluon.HybridBlock):
    """An output with many readers, whose gradients MXNet adds up in place."""

    shape = 4, 3, 12, 10

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.Conv2D(16, 3, padding=1, in_channels=3)
            self.readers = nn.HybridSequential()
            for at in range(9):
                self.readers.add(nn.Conv2D(16, 3 if at % 2 else 5, padding=1 if at % 2 else 2, in_channels=16))

    def hybrid_forward(self, F, data):
        data = self.first(data)
        return F.add_n(*[reader(data) for reader in self.readers])


class Chain(gluon.HybridBlock):
    """Every convolution but the first one gives the redistribution before it a gradient in a layout of oneDNN's."""

    shape = 4, 3, 12, 10

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for channels in (3, 16, 16):
                self.layers.add(nn.Conv2D(16, 3, padding=1, in_channels=channels, activation='relu'))

    def hybrid_forward(self, F, data):
        return self.layers(data)


class Doubled(gluon.HybridBlock):
    """The redistribution sends a sum, which has one gradient array with the data."""

    shape = 4, 16, 12, 10

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layer = nn.Conv2D(16, 3, padding=1, in_channels=16)

    def hybrid_forward(self, F, data):
        return self.layer(data + F.BlockGrad(data))


class Added(gluon.HybridBlock):
    """A BatchNorm of a sum, which has one gradient array with the data, to whose gradient others are added."""

    shape, adds = (4, 16, 12, 10), True

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm = nn.BatchNorm(in_channels=16)
            self.layer = nn.Conv2D(16, 3, padding=1, in_channels=16)

    def normalize(self, F, data):
        return self.norm(data)

    def hybrid_forward(self, F, data):
        return self.layer(self.normalize(F, data + F.BlockGrad(data)))


class AddedSoftmax(Added):
    """A softmax over the height of such a sum."""

    def normalize(self, F, data):
        return F.softmax(data, axis=2)


def compute_added(net, data, head):
    """Outputs, gradients by the end of their names, and that of data after two passes."""
    data = data.copy()
    data.attach_grad(grad_req='add')
    for _ in range(2):
        with autograd.record():
            output = net(data)
        output.backward(head)
    return output.asnumpy(), {name.split('_', 1)[1]: param.grad().asnumpy()
                             for name, param in net.collect_params().items()
                             if param.grad_req != 'null'}, data.grad.asnumpy()


def compute(net, data, head, flows):
    """Outputs, gradients by the end of their names, and that of data if it `flows`."""
    if getattr(net, 'adds', False):
        return compute_added(net, data, head)
    data = data.copy()
    if flows:
        data.attach_grad()
    with autograd.record():
        # The input has a layout of oneDNN's, like the output of another network.
        channels = data.shape[1]
        weight = mx.nd.array(np.eye(channels).reshape(channels, channels, 1, 1))
        input_array = mx.nd.Convolution(data, weight, kernel=(1, 1), num_filter=channels, no_bias=True)
        output = net(input_array if flows else mx.nd.BlockGrad(input_array))
    output.backward(head)
    params = net.collect_params()
    return output.asnumpy(), {name.split('_', 1)[1]: param.grad().asnumpy() for name, param in params.items()
                             if param.grad_req != 'null'}, data.grad.asnumpy() if flows else None


def main():
    store = mxhybrid.create()
    draw = np.random.RandomState(1)
    for kind, flows in ((Residual, False), (Residual, True), (Frozen, False), (Freezing, True), (Crowd, True),
                        (Chain, False), (Chain, True), (Doubled, True), (Added, True), (AddedSoftmax, True)):
        mx.random.seed(3)
        whole_net = kind()
        whole_net.initialize(mx.init.Xavier())
        data = mx.nd.array(draw.normal(size=kind.shape))
        head = mx.nd.array(draw.normal(size=whole_net(data).shape))
        mx.random.seed(3)
        net = kind()
        net.initialize(mx.init.Xavier())
        net = mxhybrid.parallelize(net, mxhybrid.parallel.grid(domain=(store.num_workers,)), kind.shape,
                                    input_grad=flows)
        net.adds = getattr(kind, 'adds', False)
        steps = []
        for _ in range(3):
            expected = compute(whole_net, data, head, flows)
            found = compute(net, data[net.samples], head[net.samples], flows)
            own = [(found[0], expected[0][net.samples])] + ([(found[2], expected[2][net.samples])] if flows else [])
            steps.append({'own': own, 'gradients': found[1], 'sums': expected[1]})
            if kind is Freezing:
                for each in (whole_net, net):
                    each.collect_params('.*(conv0|batchnorm0).*').setattr('grad_req', 'null')
        ops = [node['op'] for node in json.loads(net._programs[True].symbol.tojson())['nodes']
               if node['name'].startswith(('redistribution', 'joint_norm'))]
        report(store.rank, **{'%s %s' % (kind.__name__, flows): {
            'compiled': ops.count('_NDArray'), 'in_python': ops.count('Custom'), 'steps': steps}})


main()
