"""Operators without a backward pass: split networks train where one process does, and refuse where it fails."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid import parallel
from mxhybrid.parallel.ops.learning import learning_operators
from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.redistribution.redistribution_operator import RedistributionOperator, Transport
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import Program, ProgramSpec
from mxhybrid.parallel.runtime.untrainable import untrainable_reason
from mxhybrid.parallel.sharding.split import Split


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


class Behind(gluon.HybridBlock):
    """An operator that reads a layer, or the data."""

    def __init__(self, operator, reads_layer):
        super().__init__(prefix='net_')
        self._operator, self._reads_layer = operator, reads_layer
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=4, flatten=False, prefix='dense_')

    def hybrid_forward(self, F, x):
        hidden = self.dense(x)
        return hidden, self._operator(F, hidden if self._reads_layer else x)


def test_a_gradient_back_through_it_is_refused():
    """The error names it, and not the operator before it, whose gradient is zero."""
    net = Behind(lambda F, x: F.broadcast_add(F.round(F.all_finite(x)).reshape((1, 1)), F.shuffle(x, name='mixed')),
                 True)
    net.initialize()
    split = mxhybrid.parallelize(net, parallel.data_parallel(), (2, 4))
    x = mx.nd.ones((2, 4))
    for expected, actual in zip(net(x), split(x)):
        np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())
    with autograd.record():
        outputs = net(x)
    with pytest.raises(mx.base.MXNetError, match='non-differentiable'):
        autograd.backward(outputs)
    with pytest.raises(mxhybrid.InputError, match=r'through mixed \(_shuffle\), but .*BlockGrad'):
        with autograd.record():
            split(x)


@pytest.mark.parametrize('operator', [lambda F, x: F.round(F.all_finite(x)), lambda F, x: F.BlockGrad(F.shuffle(x)),
                                      lambda F, x: F.floor(F.sqrt(x))])
@pytest.mark.parametrize('reads_layer', [False, True])
def test_a_zero_gradient_is_not_redistributed(operator, reads_layer):
    """MXNet does not know that the gradient of a redistribution is zero, and would multiply it by that of sqrt at 0."""
    net = Behind(operator, reads_layer)
    net.initialize()
    network = traced(net, (2, 4))
    graph, last = network.graph, network.graph.heads[-1][0]
    # Worker 1 computes everything, except that both compute the operator whose gradient is zero.
    shards = NetworkShards(graph, {each.number: Split((1,) * len(graph.shape(each)), (1, 0), 1, 2)
                                   if each.number == last else Split((1,) * len(graph.shape(each)), (1,))
                                   for each in graph.computing})
    assert untrainable_reason(network.symbol, shards, learning_operators(graph, (), ['data'])) == ''
    for rank in range(2):
        inputs = InputShards(graph, network.axes, network.dimensions, 2, rank, {'data'})
        asked = []

        def make_node(redistribution, differentiable, asked=asked):
            asked.append((redistribution.operator, differentiable))
            return RedistributionOperator(redistribution, Transport(), differentiable, lambda error: None)
        spec = ProgramSpec(shards, inputs.inputs, inputs.outputs, collectives(), inputs.gradient_inputs)
        program = Program(spec, rank, make_node, 0)
        assert (graph.operators[last].inputs[0][0], True) not in asked and len(asked) > 1
        mx.nd.CachedOp(program.symbol)  # raises an error if MXNet cannot compile the backward pass
