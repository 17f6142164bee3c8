"""Compiled operators of a BatchNorm over several workers, compared with NumPy."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.kernels import norm_operators

SHAPES = [((4, 6, 9, 7), 1), ((2, 3, 40, 41), 1), ((3, 5, 4), 1), ((33, 8), 1), ((2, 4, 5, 6), 3), ((1, 2, 1100), 1),
          ((3, 4, 20), 0)]


def run(symbol, arrays, heads, frozen=()):
    """Return outputs and gradients of a graph that is compiled as split networks are."""
    call = mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])
    inputs = {name: mx.nd.array(value) for name, value in arrays.items()}
    for name, array in inputs.items():
        if name not in frozen:
            array.attach_grad()
    for _ in range(2):  # the second time with used memory
        with autograd.record():
            found = call(*[inputs[name] for name in symbol.list_inputs()])
        found = found if isinstance(found, list) else [found]
        autograd.backward(found, [mx.nd.array(head) for head in heads])
    return [one.asnumpy() for one in found], {name: array.grad.asnumpy() for name, array in inputs.items()
                                              if name not in frozen}


def wide(values, shape, axis):
    """Broadcast a value for each channel to an array of a shape."""
    return np.reshape(values, [-1 if at == axis else 1 for at in range(len(shape))])


@pytest.mark.parametrize('shape, axis', SHAPES)
def test_moments(shape, axis):
    draw, others = np.random.RandomState(1), tuple(at for at in range(len(shape)) if at != axis)
    data, head = draw.normal(size=shape) * 3 + 20, draw.normal(size=(1, 2, shape[axis]))
    symbol = norm_operators.moments_of(mx.sym.identity(mx.sym.var('data')), shape, axis, 'moments')
    (moments,), gradients = run(symbol, {'data': data}, [head])
    data = data.astype('float32').astype('float64')
    mean, variance = data.mean(axis=others), data.var(axis=others)
    np.testing.assert_allclose(moments[0], [mean, variance], rtol=2e-6)
    expected = (wide(head[0, 0], shape, axis) + 2 * wide(head[0, 1], shape, axis) * (data - wide(mean, shape, axis))
                ) * shape[axis] / data.size
    np.testing.assert_allclose(gradients['data'], expected, rtol=1e-5, atol=1e-6)


def test_moments_of_data_in_a_onednn_layout():
    draw = np.random.RandomState(3)
    arrays = {'data': draw.normal(size=(2, 3, 8, 8)), 'weight': draw.normal(size=(16, 3, 3, 3))}
    head = draw.normal(size=(1, 2, 16))
    convolved = mx.sym.Convolution(mx.sym.var('data'), mx.sym.var('weight'), kernel=(3, 3), num_filter=16, no_bias=True)
    (moments,), gradients = run(norm_operators.moments_of(convolved, (2, 16, 6, 6), 1, 'moments'), arrays, [head])
    plain = {name: mx.nd.array(value) for name, value in arrays.items()}
    for array in plain.values():
        array.attach_grad()
    with autograd.record():
        convolved = mx.nd.Convolution(plain['data'], plain['weight'], kernel=(3, 3), num_filter=16, no_bias=True)
        mean = convolved.mean(axis=(0, 2, 3))
        variance = (convolved - mean.reshape((1, 16, 1, 1))).square().mean(axis=(0, 2, 3))
    autograd.backward([mean, variance], [mx.nd.array(array) for array in head[0]])
    np.testing.assert_allclose(moments[0], [mean.asnumpy(), variance.asnumpy()], rtol=1e-5, atol=1e-5)
    for name, array in plain.items():
        np.testing.assert_allclose(gradients[name], array.grad.asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('frozen', [(), ('gamma', 'beta')])
def test_joint_statistics(frozen):
    """The gradients are those of MXNet's operators in float64."""
    draw, shares, epsilon = np.random.RandomState(4), np.array([0.5, 0.3, 0.2]), 1e-3
    moments = np.stack([draw.normal(size=(3, 5)) * 2, draw.uniform(0.5, 2, size=(3, 5))], axis=1)
    arrays = {'moments': moments, 'gamma': draw.normal(size=5), 'beta': draw.normal(size=5)}
    heads = [draw.normal(size=5), draw.normal(size=5)]
    given = {name: mx.sym.identity(mx.sym.var(name)) for name in arrays}
    found = norm_operators.joint_of(given['moments'], given['gamma'], given['beta'], shares, 5, epsilon, 'joint')
    symbol = mx.sym.Group([mx.sym.identity(one) for one in found[:2]] + [mx.sym.BlockGrad(one) for one in found[2:]])
    outputs, gradients = run(symbol, arrays, heads + [np.ones(5)] * 2, frozen)
    plain = {name: mx.nd.array(value, dtype='float64') for name, value in arrays.items()}
    for one in plain.values():
        one.attach_grad()
    with autograd.record():
        weights = mx.nd.array(shares.reshape(1, 3), dtype='float64')
        means, variances = plain['moments'][:, 0], plain['moments'][:, 1]
        mean = mx.nd.dot(weights, means)
        variance = mx.nd.dot(weights, variances + mx.nd.broadcast_sub(means, mean) ** 2).reshape(-1)
        mean = mean.reshape(-1)
        scale = plain['gamma'] / mx.nd.sqrt(variance + epsilon)
        shift = plain['beta'] - mean * scale
    autograd.backward([scale, shift], [mx.nd.array(head, dtype='float64') for head in heads])
    for mine, expected in zip(outputs, [scale, shift, mean, variance]):
        np.testing.assert_allclose(mine, expected.asnumpy(), rtol=2e-6, atol=1e-6)
    for name in set(arrays) - set(frozen):
        np.testing.assert_allclose(gradients[name], plain[name].grad.asnumpy(), rtol=1e-5, atol=1e-6)


def test_averages_are_updated_by_the_backward_pass_alone():
    draw = np.random.RandomState(5)
    factors = {4: (0.81, 0.1, 0.09), 3: (0.7, 0.3)}
    names, arrays, every, averages = [], {}, [], {}
    for count, of in factors.items():
        input_names = ['%s%d' % (name, count) for name in ('following', 'average', 'one', 'other')[:len(of) + 1]]
        arrays.update({name: mx.nd.array(draw.normal(size=count)) for name in input_names})
        following, average, *values = map(mx.sym.var, input_names)
        values = [mx.sym.BlockGrad(one) for one in values]
        both = mx.sym.concat(*values, dim=0)
        # Statistics of one array, at different positions, and of arrays of their own.
        parts = [norm_operators.Statistics(both, 2 * count, count * at) for at in range(len(values))] if count == 4 \
            else [norm_operators.Statistics(value, count) for value in values]
        every.append(norm_operators.NextAverage(following, average, parts, of, count))
        averages[count] = arrays[input_names[1]]
        autograd.mark_variables([arrays[input_names[0]]], [averages[count]], 'write')
        names.append(input_names)
    symbol = norm_operators.next_averages(every)
    call = mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])
    expected = {count: average.asnumpy() for count, average in averages.items()}
    for _ in range(3):
        with autograd.record():
            found = call(*[arrays[name] for name in symbol.list_inputs()])
        for count, average in averages.items():
            np.testing.assert_allclose(average.asnumpy(), expected[count], rtol=1e-6)
        found.backward(mx.nd.zeros(1))
        for input_names, (count, (kept, *others)) in zip(names, factors.items()):
            expected[count] = kept * expected[count] + sum(
                factor * arrays[name].asnumpy() for factor, name in zip(others, input_names[2:]))
            np.testing.assert_allclose(averages[count].asnumpy(), expected[count], rtol=1e-6)
