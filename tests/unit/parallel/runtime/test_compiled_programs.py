"""Compiled programs of one rank have the right gradients where MXNet 1.9.1 has a fault, and in later steps."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.runtime.rank_program import COMPILED, Program
from mxhybrid.parallel.sharding.split import OutputShard

from ....helpers.split_programs import program_spec, whole_splits


def with_gradients(arrays, dtype='float64'):
    """Return arrays of MXNet that get gradients."""
    made = {name: mx.nd.array(array, dtype=dtype) for name, array in arrays.items()}
    for array in made.values():
        array.attach_grad()
    return made


def compiled(symbol, dtype='float64', **arrays):
    """Return a function that runs a network of one rank for gradients of outputs, and returns outputs and gradients.

    The first input is data, and others are weights.
    """
    data, *weights = arrays
    graph = Graph(symbol, {data: arrays[data].shape}, dict.fromkeys(arrays, dtype))
    program = Program(program_spec(graph, whole_splits(graph, [0]), 1, gradient_inputs={data}), 0, None, 0)
    names = program.symbol.list_inputs()
    operator = mx.nd.CachedOp(program.symbol, COMPILED + [('data_indices', [names.index(data)]), (
        'param_indices', [names.index(name) for name in weights])])
    inputs = with_gradients(arrays, dtype)

    def step(*factors):
        for array in inputs.values():
            array.grad[:] = np.nan
        with autograd.record():
            outputs = operator(*[inputs[name] for name in names])
        outputs = (outputs if isinstance(outputs, list) else [outputs])[:program.outputs]
        autograd.backward(outputs, scaled(outputs, factors))
        return [output.asnumpy() for output in outputs], {name: array.grad.asnumpy() for name, array in inputs.items()}
    return step


def scaled(outputs, factors):
    """Return gradients of outputs."""
    return [mx.nd.ones_like(output) * factor for output, factor in zip(outputs, factors)]


def trained(symbol, dtype='float64', **arrays):
    """Return the output and the gradients of the second step, for an output's gradient of 2."""
    step = compiled(symbol, dtype, **arrays)
    step(2)
    (output,), gradients = step(2)
    return output, gradients


BUILDERS = {
    'sum': lambda F, x, w: x + w, 'sum of sums': lambda F, x, w: (x + w) + x, 'difference': lambda F, x, w: x - w,
    'add_n': lambda F, x, w: F.add_n(x, w), 'broadcast_add': lambda F, x, w: F.broadcast_add(x, w),
    'weight twice': lambda F, x, w: w + w * 2.0, 'identity': lambda F, x, w: F.identity(x) + F.identity(w),
    'shape': lambda F, x, w: F.reshape(x + w, shape=(3, 4)),
    'shape of a loss': lambda F, x, w: F.reshape_like(x * w, F.MAERegressionOutput(x, F.BlockGrad(w), grad_scale=0.5))}


@pytest.mark.parametrize('name', sorted(BUILDERS))
def test_an_output_that_passes_a_weight_on(name):
    build, values = BUILDERS[name], dict(zip(('data', 'w'), np.random.RandomState(0).uniform(-1, 1, (2, 4, 3))))
    x, w = (mx.sym.var(each, shape=(4, 3), dtype='float64') for each in values)
    step = compiled(mx.sym.Group([build(mx.sym, x, w), mx.sym.sin(x)]), **values)
    for factors in ((1, 2), (11, 12), (21, 22)):
        arrays = with_gradients(values)
        with autograd.record():
            outputs = [build(mx.nd, arrays['data'], arrays['w']), mx.nd.sin(arrays['data'])]
            outputs = [output.reshape(output.shape) for output in outputs]
        autograd.backward(outputs, scaled(outputs, factors))
        for each, gradient in step(*factors)[1].items():
            np.testing.assert_allclose(gradient, arrays[each].grad.asnumpy(), rtol=1e-12, err_msg=each)


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
    built = shard.build([mx.sym.var('x', dtype='float64')], 'last', {}).eval(
        ctx=mx.cpu(), x=mx.nd.array(array, dtype='float64'))[0]
    np.testing.assert_array_equal(built.asnumpy(), last(array, axis)[0])


@pytest.mark.parametrize('lengths', ['', 'label', 'data', 'data label'])
@pytest.mark.parametrize('blank', ['first', 'last'])
def test_labels_that_do_not_fit_into_the_times(lengths, blank):
    """MXNet leaves the gradients of such samples as the memory was."""
    data, padding = np.random.RandomState(0).uniform(-1, 1, (4, 5, 6)), 0 if blank == 'first' else -1
    labels = np.array([[1, 2, 3, 4], [1, 1, 2, padding], [1, 1, 2, 2], [3, padding, 3, 3], [2, 2, 2, padding]], 'f4')
    fits = [True, True, False, True, False] if 'data' not in lengths else [False, False, False, True, False]
    counts = {'data': np.array([3, 3, 4, 2, 4], 'f4'), 'label': np.array([4, 3, 4, 1, 3], 'f4')}
    constants = {}

    def loss(F, x, constant, samples):
        return F.CTCLoss(x, constant(labels[samples]), blank_label=blank, **{
            '%s_lengths' % key: constant(counts[key][samples]) for key in lengths.split()}, **{
            'use_%s_lengths' % key: True for key in lengths.split()})

    def constant(values):
        name = 'constant%d' % len(constants)
        constants[name] = values
        return mx.sym.var(name, shape=values.shape, dtype='float32')
    symbol = loss(mx.sym, mx.sym.identity(mx.sym.var('x', shape=data.shape, dtype='float32')), constant,
                  slice(None))
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
    arrays = with_gradients(values)
    with autograd.record():
        expected = build(mx.nd, **arrays)
    expected.backward(mx.nd.ones_like(expected) * 2)
    np.testing.assert_array_equal(output, expected.asnumpy())
    for name, array in arrays.items():
        np.testing.assert_allclose(gradients[name], array.grad.asnumpy(), rtol=1e-12, err_msg=name)
