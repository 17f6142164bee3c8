"""Networks with convolutions on both sides of redistributions, split by height, compared with one process."""
import json

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet.gluon import nn

import mxhybrid
from tests.helpers.gluon_nets import Net, backward, initialised


def convolution(channels=16, kernel=3, **settings):
    return nn.Conv2D(16, kernel, in_channels=channels, **{'padding': kernel // 2, **settings})


def residual():
    """Return a network in which two convolutions read an output, and need other rows of it."""
    def call(F, data, first, norm, long, short):
        normed = F.relu(norm(first(data)))
        return long(normed) + short(normed)
    return Net(lambda: [convolution(3, use_bias=False), nn.BatchNorm(in_channels=16), convolution(strides=2),
                        convolution(kernel=1, strides=2)], call)


def frozen():
    """Return such a network of which no layer before the first BatchNorm is trained."""
    net = residual()
    net.layers[0].collect_params().setattr('grad_req', 'null')
    return net


def crowd():
    """Return a network with an output of many readers, whose gradients MXNet adds up in place."""
    def call(F, data, first, *readers):
        data = first(data)
        return F.add_n(*[reader(data) for reader in readers])
    return Net(lambda: [convolution(3)] + [convolution(kernel=3 if at % 2 else 5) for at in range(9)], call)


def chain():
    """Return a network whose redistributions get gradients in a layout of oneDNN from the convolutions after them."""
    return Net(lambda: [convolution(channels, activation='relu') for channels in (3, 16, 16)])


def doubled(F, data):
    """Return a sum, which has one gradient array with the data."""
    return data + F.BlockGrad(data)


#: Functions that make networks, the channels of the data, and whether it has gradients; in the last two, which read the
#: sum of `doubled` in a BatchNorm and in a softmax over the height, the gradients of two passes add up.
NETWORKS = {
    'Residual False': (residual, 3, False), 'Residual True': (residual, 3, True), 'Frozen False': (frozen, 3, False),
    'Freezing True': (residual, 3, True), 'Crowd True': (crowd, 3, True), 'Chain False': (chain, 3, False),
    'Chain True': (chain, 3, True),
    'Doubled True': (lambda: Net(lambda: [nn.HybridLambda(doubled), convolution()]), 16, True),
    'Added True': (lambda: Net(lambda: [nn.HybridLambda(doubled), nn.BatchNorm(in_channels=16), convolution()]), 16,
                   True),
    'AddedSoftmax True': (lambda: Net(lambda: [nn.HybridLambda(lambda F, data: F.softmax(doubled(F, data), axis=2)),
                                               convolution()]), 16, True)}


def compute(net, data, head, flows, adds):
    """Return outputs, gradients by name, and that of data if it `flows`; with `adds`, that of two passes."""
    data = data.copy()
    if flows:
        data.attach_grad(grad_req='add' if adds else 'write')

    def output():
        if adds:
            return net(data)
        # The input has a layout of oneDNN's, like the output of another network.
        channels = data.shape[1]
        weight = mx.nd.array(np.eye(channels).reshape(channels, channels, 1, 1))
        input_array = mx.nd.Convolution(data, weight, kernel=(1, 1), num_filter=channels, no_bias=True)
        return net(input_array if flows else mx.nd.BlockGrad(input_array))
    for _ in range(1 + adds):
        result = backward(output, head)
    return result.asnumpy(), {name: param.grad().asnumpy() for name, param in net.collect_params().items()
                              if param.grad_req != 'null'}, data.grad.asnumpy() if flows else None


def main():
    store = mxhybrid.create()
    draw = np.random.RandomState(1)
    for name, (build, channels, flows) in NETWORKS.items():
        nets, shape = [], (4, channels, 12, 10)
        for _ in range(2):
            mx.random.seed(3)
            nets.append(initialised(build(), mx.init.Xavier()))
        whole_net, net = nets
        data = mx.nd.array(draw.normal(size=shape))
        head = mx.nd.array(draw.normal(size=whole_net(data).shape))
        net = mxhybrid.parallelize(net, mxhybrid.parallel.grid(domain=(store.num_workers,)), shape, input_grad=flows)
        adds, steps = name.startswith('Added'), []
        for _ in range(3):
            expected = compute(whole_net, data, head, flows, adds)
            actual = compute(net, data[net.samples], head[net.samples], flows, adds)
            own = [(actual[0], expected[0][net.samples])] + ([(actual[2], expected[2][net.samples])] if flows else [])
            steps.append({'own': own, 'gradients': actual[1], 'sums': expected[1]})
            if name == 'Freezing True':
                for each in (whole_net, net):
                    each.collect_params('.*(conv0|batchnorm0).*').setattr('grad_req', 'null')
        ops = [node['op'] for node in json.loads(net._programs[True].symbol.tojson())['nodes']
               if node['name'].startswith(('redistribution', 'joint_norm'))]
        report(store.rank, **{name: {'compiled': ops.count('_NDArray'), 'in_python': ops.count('Custom'),
                                     'steps': steps}})


main()
