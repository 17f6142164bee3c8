"""Operators without a backward pass in front of layers that learn: one process trains such a network, too."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel


class Net(gluon.HybridBlock):
    """A layer that reads the result of an operator on rows that are all equal."""

    def __init__(self, operator):
        super().__init__(prefix='net_')
        self._operator = operator
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=4, prefix='dense_')

    def hybrid_forward(self, F, x):
        return self.dense(F.broadcast_mul(x, self._operator(F, x)))


def gradients(net, params):
    with autograd.record():
        output = net(mx.nd.arange(4).reshape((1, 4)).tile((2, 1)))
    output.backward()
    return {name: param.grad().asnumpy() for name, param in params.items()}


@pytest.mark.parametrize('operator', [lambda F, x: F.shuffle(x), lambda F, x: F.all_finite(x).reshape((1, 1))])
@pytest.mark.parametrize('recompute', [None, ['dense']])
def test_the_layer_behind_it_is_trained(operator, recompute):
    net = Net(operator)
    net.initialize()
    expected = gradients(net, net.collect_params())
    split = mxhybrid.parallelize(net, parallel.data_parallel(), (2, 4), recompute=recompute)
    actual = gradients(split, split.collect_params())
    assert actual.keys() == expected.keys() and any(values.any() for values in actual.values())
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)
