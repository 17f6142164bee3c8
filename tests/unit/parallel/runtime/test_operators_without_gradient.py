"""Split networks with operators without a backward pass train where one process does, and refuse where it fails."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from mxhybrid.parallel.ops.learning import learning_operators
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator, Transport
from mxhybrid.parallel.runtime.rank_program import Program
from mxhybrid.parallel.runtime.untrainable import untrainable_reason

from ....helpers.gluon_nets import Net, backward, initialised
from ....helpers.split_programs import program_spec, whole_splits


def gradients(net, params):
    backward(lambda: net(mx.nd.arange(4).reshape((1, 4)).tile((2, 1))))
    return {name: param.grad().asnumpy() for name, param in params.items()}


@pytest.mark.parametrize('operator', [lambda F, x: F.shuffle(x), lambda F, x: F.all_finite(x).reshape((1, 1))])
@pytest.mark.parametrize('recompute', [None, ['dense']])
def test_the_layer_behind_it_is_trained(operator, recompute):
    """The rows of the data are all equal."""
    net = initialised(Net(lambda: [nn.Dense(3, in_units=4, prefix='dense_')],
                          lambda F, x, dense: dense(F.broadcast_mul(x, operator(F, x)))))
    expected = gradients(net, net.collect_params())
    split = mxhybrid.parallelize(net, parallel.data_parallel(), (2, 4), recompute=recompute)
    actual = gradients(split, split.collect_params())
    assert actual.keys() == expected.keys() and any(values.any() for values in actual.values())
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values)


def behind(operator, reads_layer):
    """Return a network of a layer, and of an operator that reads the layer, or the data."""
    def call(F, x, dense):
        hidden = dense(x)
        return hidden, operator(F, hidden if reads_layer else x)
    return initialised(Net(lambda: [nn.Dense(4, in_units=4, flatten=False, prefix='dense_')], call))


def test_a_gradient_back_through_it_is_refused():
    """The error names it, and not the operator before it, whose gradient is zero."""
    net = behind(lambda F, x: F.broadcast_add(F.round(F.all_finite(x)).reshape((1, 1)), F.shuffle(x, name='mixed')),
                 True)
    split = mxhybrid.parallelize(net, parallel.data_parallel(), (2, 4))
    x = mx.nd.ones((2, 4))
    for expected, actual in zip(net(x), split(x)):
        np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())
    with pytest.raises(mx.base.MXNetError, match='non-differentiable'):
        backward(lambda: net(x))
    with autograd.record(), pytest.raises(mxhybrid.InputError, match=r'through mixed \(_shuffle\), but .*BlockGrad'):
        split(x)


@pytest.mark.parametrize('operator', [lambda F, x: F.round(F.all_finite(x)), lambda F, x: F.BlockGrad(F.shuffle(x)),
                                      lambda F, x: F.floor(F.sqrt(x))])
@pytest.mark.parametrize('reads_layer', [False, True])
def test_a_zero_gradient_is_not_redistributed(operator, reads_layer):
    """MXNet does not know that the gradient of a redistribution is zero, and would multiply it by that of sqrt at 0."""
    network = traced(behind(operator, reads_layer), (2, 4))
    graph, last = network.graph, network.graph.heads[-1][0]
    # Worker 1 computes everything, except that both compute the operator whose gradient is zero.
    splits = {**whole_splits(graph, [1]), last: whole_splits(graph, [1, 0])[last]}
    for rank in range(2):
        spec, asked = program_spec(graph, splits, 2, rank, gradient_inputs={'data'}), []
        assert untrainable_reason(network.symbol, spec.shards, learning_operators(graph, (), ['data'])) == ''

        def make_node(redistribution, differentiable, asked=asked):
            asked.append((redistribution.operator, differentiable))
            return RedistributionOperator(redistribution, Transport(), differentiable, lambda error: None)
        program = Program(spec, rank, make_node, 0)
        assert (graph.operators[last].inputs[0][0], True) not in asked and len(asked) > 1
        mx.nd.CachedOp(program.symbol)  # raises an error if MXNet cannot compile the backward pass


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


def averages(loss, learns, dtype, split):
    """Return running averages and weights after two steps of a layer, a loss and a BatchNorm, in one process."""
    def call(F, data, label, dense, norm):
        output = loss(F, dense(data), label)
        return output, norm(output), label * 1

    net = initialised(Net(lambda: [nn.Dense(3, in_units=3, use_bias=False),
                                   nn.BatchNorm(in_channels=3, center=learns, scale=learns)], call),
                      mx.init.Constant(0.625), dtype=dtype)
    if split:
        net = mxhybrid.parallelize(net, parallel.data_parallel(), [(2, 3), (2,)], dtype=dtype)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=None)
    data, label = mx.nd.array([[1, 2, 3], [0, 4, 1]], dtype=dtype), mx.nd.array([0, 2], dtype=dtype)
    for _ in range(2):
        backward(lambda: list(net(data, label)[:2]))
        trainer.step(1)
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('learns', [False, True])
@pytest.mark.parametrize('loss', sorted(LOSSES))
def test_averages_behind_a_loss_are_those_of_mxnet(loss, learns, dtype):
    """A BatchNorm that reads a loss has no backward pass, so its averages stay."""
    expected = averages(LOSSES[loss], learns, dtype, False)
    for name, values in averages(LOSSES[loss], learns, dtype, True).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert (expected['net_batchnorm0_running_mean'] != 0).any() == (learns or loss == 'tanh, which is no loss')
