"""A BatchNorm that reads a loss, or an operator whose gradient is zero, has no backward pass: its averages stay."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid

LOSSES = {
    'MakeLoss': lambda F, x, label: F.MakeLoss(x), 'make_loss': lambda F, x, label: F.make_loss(x),
    'SoftmaxOutput': lambda F, x, label: F.SoftmaxOutput(x, label),
    'SoftmaxOutput with the gradient of its output': lambda F, x, label: F.SoftmaxOutput(x, label, out_grad=True),
    'SVMOutput': lambda F, x, label: F.SVMOutput(x, label),
    'LinearRegressionOutput': lambda F, x, label: F.LinearRegressionOutput(x, F.zeros_like(x)),
    'BlockGrad': lambda F, x, label: F.BlockGrad(x), 'floor': lambda F, x, label: F.floor(x),
    'fix': lambda F, x, label: F.fix(x), 'ones_like': lambda F, x, label: F.ones_like(x),
    'a comparison': lambda F, x, label: x > 0.5,
    'argmax': lambda F, x, label: F.broadcast_axis(1 + F.argmax(x, axis=1, keepdims=True), axis=1, size=3),
    'tanh, which is no loss': lambda F, x, label: F.tanh(x)}


class Net(gluon.HybridBlock):
    """A dense layer, a loss and a BatchNorm, whose parameters learn if `learns`."""

    def __init__(self, loss, learns):
        super().__init__(prefix='net_')
        self._loss = loss
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=3, use_bias=False)
            self.norm = nn.BatchNorm(in_channels=3, center=learns, scale=learns)

    def hybrid_forward(self, F, data, label):
        loss = self._loss(F, self.dense(data), label)
        return loss, self.norm(loss), label * 1


def averages(loss, learns, dtype, split):
    """Return running averages and weights after two steps, in one process."""
    net = Net(loss, learns)
    net.cast(dtype)
    net.initialize(mx.init.Constant(0.625))
    plan = mxhybrid.parallel.data_parallel()
    trained = mxhybrid.parallelize(net, plan, [(2, 3), (2,)], dtype=dtype) if split else net
    trainer = gluon.Trainer(trained.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=None)
    data, label = mx.nd.array([[1, 2, 3], [0, 4, 1]], dtype=dtype), mx.nd.array([0, 2], dtype=dtype)
    for _ in range(2):
        with autograd.record():
            outputs = trained(data, label)[:2]
        autograd.backward(list(outputs))
        trainer.step(1)
    return {name: param.data().asnumpy() for name, param in trained.collect_params().items()}


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('learns', [False, True])
@pytest.mark.parametrize('loss', sorted(LOSSES))
def test_averages_are_those_of_mxnet(loss, learns, dtype):
    expected = averages(LOSSES[loss], learns, dtype, False)
    for name, values in averages(LOSSES[loss], learns, dtype, True).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert (expected['net_batchnorm0_running_mean'] != 0).any() == (learns or loss == 'tanh, which is no loss')
