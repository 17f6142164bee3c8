"""Operators with a fault in MXNet 1.9.1, which split networks compute by others."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import collectives, rule_of
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import COMPILED, Program, ProgramSpec
from mxhybrid.parallel.sharding.split import OutputShard, whole_on


def trained(symbol, dtype='float64', **arrays):
    """Train a network of one rank, whose first input is data and others are weights, without changing weights; return
    its output, and the gradients of the inputs for an output's gradient of 2.
    """
    data, *weights = arrays
    graph = Graph(symbol, {data: arrays[data].shape}, dict.fromkeys(arrays, dtype))
    shards = NetworkShards(graph, {one.number: whole_on(len(graph.shape(one)), [0]) for one in graph.computing})
    input_shards = InputShards(graph, {data: 0}, Dimensions(graph, {data: 0}), 1, 0, {data})
    spec = ProgramSpec(shards, input_shards.inputs, input_shards.outputs, collectives(), input_shards.gradient_inputs)
    program = Program(spec, 0, None, 0)
    names = program.symbol.list_inputs()
    compiled = mx.nd.CachedOp(program.symbol, COMPILED + [('data_indices', [names.index(data)]), (
        'param_indices', [names.index(name) for name in weights])])
    input_arrays = {name: mx.nd.array(array, dtype=dtype) for name, array in arrays.items()}
    for array in input_arrays.values():
        array.attach_grad()
    for _ in range(2):
        for array in input_arrays.values():
            array.grad[:] = np.nan
        with autograd.record():
            outputs = compiled(*[input_arrays[name] for name in names])
        output = (outputs if isinstance(outputs, list) else [outputs])[0]
        output.backward(mx.nd.ones_like(output) * 2)
    return output.asnumpy(), {name: array.grad.asnumpy() for name, array in input_arrays.items()}


def last(array, axis):
    """Return the last time of an array, and its gradient for an output's gradient of 2."""
    gradient = np.zeros_like(array)
    gradient[(slice(None),) * axis + (-1,)] = 2
    return np.take(array, -1, axis), gradient


@pytest.mark.parametrize('axis', [0, 1])
def test_the_last_time_without_lengths(axis):
    """MXNet writes outside of its memory."""
    data, weight = np.random.RandomState(0).uniform(-1, 1, (2, 4, 3, 5))
    x, w = (mx.sym.var(name, shape=data.shape, dtype='float64') for name in ('x', 'w'))
    output, gradients = trained(mx.sym.SequenceLast(mx.sym.identity(x), axis=axis) + mx.sym.SequenceLast(w, axis=axis),
                                x=data, w=weight)
    for name, array in (('x', data), ('w', weight)):
        np.testing.assert_array_equal(gradients[name], last(array, axis)[1])
    np.testing.assert_array_equal(output, last(data, axis)[0] + last(weight, axis)[0])


@pytest.mark.parametrize('axis', [0, 1])
def test_a_shard_of_the_last_time(axis):
    graph = Graph(mx.sym.SequenceLast(mx.sym.var('x'), axis=axis), {'x': (4, 3, 5)}, {'x': 'float64'})
    operator = graph.computing[0]
    shard = rule_of(operator).shard(graph, operator, OutputShard(((1, 2), (2, 5))))
    assert shard.inputs == [((0, 4), (1, 2), (2, 5)) if axis == 0 else ((1, 2), (0, 3), (2, 5))]
    array = np.random.RandomState(0).uniform(-1, 1, [high - low for low, high in shard.inputs[0]])
    input_arrays = mx.nd.array(array, dtype='float64')
    built = shard.build([mx.sym.var('x', dtype='float64')], 'last', {}).eval(ctx=mx.cpu(), x=input_arrays)[0]
    np.testing.assert_array_equal(built.asnumpy(), last(array, axis)[0])


@pytest.mark.parametrize('lengths', ['', 'label', 'data', 'data label'])
@pytest.mark.parametrize('blank', ['first', 'last'])
def test_labels_that_do_not_fit_into_the_times(lengths, blank):
    """MXNet leaves the gradients of such samples as the memory was."""
    data, padding = np.random.RandomState(0).uniform(-1, 1, (4, 5, 6)), 0 if blank == 'first' else -1
    labels = np.array([[1, 2, 3, 4], [1, 1, 2, padding], [1, 1, 2, 2], [3, padding, 3, 3], [2, 2, 2, padding]], 'f4')
    label_lengths = [4, 3, 4, 1, 3]
    data_lengths = [4, 4, 4, 4, 4] if 'data' not in lengths else [3, 3, 4, 2, 4]
    fits = [True, True, False, True, False] if 'data' not in lengths else [False, False, False, True, False]
    input_arrays = {'data': data_lengths, 'label': label_lengths}
    words = {key: np.array(input_arrays[key], 'f4') for key in lengths.split()}

    def loss(F, x, constant, samples):
        return F.CTCLoss(x, constant(labels[samples]), blank_label=blank, **{
            '%s_lengths' % key: constant(value[samples]) for key, value in words.items()}, **{
            'use_%s_lengths' % key: True for key in words})
    everything = slice(None)
    constants = {}

    def constant(values):
        name = 'constant%d' % len(constants)
        constants[name] = values
        return mx.sym.var(name, shape=values.shape, dtype='float32')
    symbol = loss(mx.sym, mx.sym.identity(mx.sym.var('x', shape=data.shape, dtype='float32')), constant, everything)
    output, gradients = trained(symbol, 'float32', x=data, **constants)
    for sample, is_fitting in enumerate(fits):
        expected = mx.nd.array(data[:, sample:sample + 1], dtype='float32')
        expected.attach_grad()
        if is_fitting:
            with autograd.record():
                value = loss(mx.nd, expected, lambda values: mx.nd.array(values, dtype='float32'),
                             slice(sample, sample + 1))
            value.backward(mx.nd.array([2], dtype='float32'))
            np.testing.assert_allclose(output[sample], value.asscalar(), rtol=1e-5)
        assert is_fitting == bool(gradients['x'][:, sample].any())
        np.testing.assert_allclose(gradients['x'][:, sample], expected.grad.asnumpy()[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('keepdims', [False, True])
@pytest.mark.parametrize('axes', [(0,), (1,), (0, 1)])
def test_a_variance_without_its_mean(axes, keepdims):
    """MXNet computes the variance from memory that holds no mean."""
    data, weight = np.random.RandomState(0).uniform(-1, 1, (2, 4, 3, 5))
    x, w = (mx.sym.var(name, shape=data.shape, dtype='float64') for name in ('x', 'w'))
    symbol = (mx.sym.moments(mx.sym.identity(x), axes=axes, keepdims=keepdims)[1] * 1
              + mx.sym.moments(w, axes=axes, keepdims=keepdims)[1] * 1)
    output, gradients = trained(symbol, x=data, w=weight)
    np.testing.assert_allclose(output, sum(array.var(axes, keepdims=keepdims) for array in (data, weight)), rtol=1e-12)
    for name, array in (('x', data), ('w', weight)):
        count = np.prod([array.shape[axis] for axis in axes])
        np.testing.assert_allclose(gradients[name], 4 * (array - array.mean(axes, keepdims=True)) / count, rtol=1e-12,
                                   atol=1e-15)


@pytest.mark.parametrize('terms', [
    lambda F, x, y: F.softsign(x) + F.hard_sigmoid(y), lambda F, x, y: x + F.hard_sigmoid(y, alpha=0.3),
    lambda F, x, y: F.add_n(F.tanh(x), F.hard_sigmoid(y), F.sin(x))], ids=range(3))
@pytest.mark.parametrize('of_weights', [False, True])
def test_terms_of_a_sum_besides_hard_sigmoid(terms, of_weights):
    """MXNet overwrites the gradient of the sum if it compiles the graph."""
    def build(F, data, weight):
        return F.sin(terms(F, data, weight if of_weights else data * 0.5 + F.BlockGrad(weight)))

    values = dict(zip(('data', 'weight'), np.random.RandomState(0).uniform(-4, 4, (2, 3, 4))))
    output, gradients = trained(build(mx.sym, *[mx.sym.var(name, shape=(3, 4)) for name in values]), **values)
    arrays = {name: mx.nd.array(array, dtype='float64') for name, array in values.items()}
    for array in arrays.values():
        array.attach_grad()
    with autograd.record():
        expected = build(mx.nd, **arrays)
    expected.backward(mx.nd.ones_like(expected) * 2)
    np.testing.assert_array_equal(output, expected.asnumpy())
    for name, array in arrays.items():
        np.testing.assert_allclose(gradients[name], array.grad.asnumpy(), rtol=1e-12, err_msg=name)
