"""Compiled moments and scaling of channels, against NumPy."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.lane import norm_operators

SHAPES = [((4, 6, 9, 7), 1), ((2, 3, 40, 41), 1), ((3, 5, 4), 1), ((33, 8), 1), ((2, 4, 5, 6), 3), ((1, 2, 1100), 1),
          ((3, 4, 20), 0)]


def run(symbol, arrays, heads):
    """Outputs and gradients of a graph, compiled as programs are."""
    call = mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])
    given = {name: mx.nd.array(value) for name, value in arrays.items()}
    for array in given.values():
        array.attach_grad()
    for _ in range(2):  # the second time with memory that has been used
        with autograd.record():
            found = call(*[given[name] for name in symbol.list_inputs()])
        found = found if isinstance(found, list) else [found]
        autograd.backward(found, [mx.nd.array(head) for head in heads])
    return [one.asnumpy() for one in found], {name: array.grad.asnumpy() for name, array in given.items()}


def wide(values, shape, axis):
    """A value for each channel, beside an array of a shape."""
    return np.reshape(values, [-1 if at == axis else 1 for at in range(len(shape))])


@pytest.mark.parametrize('shape, axis', SHAPES)
def test_moments(shape, axis):
    draw, others = np.random.RandomState(1), tuple(at for at in range(len(shape)) if at != axis)
    data = draw.normal(size=shape) * 3 + 20
    heads = [draw.normal(size=shape), draw.normal(size=(1, 2, shape[axis]))]
    symbol = mx.sym.Group([mx.sym.identity(one) for one in norm_operators.copy_with_moments(
        mx.sym.identity(mx.sym.var('data')), shape, axis)])
    (copied, moments), gradients = run(symbol, {'data': data}, heads)
    data = data.astype('float32').astype('float64')
    mean, variance = data.mean(axis=others), data.var(axis=others)
    np.testing.assert_array_equal(copied, data)
    np.testing.assert_allclose(moments[0], [mean, variance], rtol=2e-6)
    count = data.size / shape[axis]
    expected = heads[0] + wide(heads[1][0, 0], shape, axis) / count + 2 / count * wide(
        heads[1][0, 1], shape, axis) * (data - wide(mean, shape, axis))
    np.testing.assert_allclose(gradients['data'], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('shape, axis', SHAPES)
def test_scaling(shape, axis):
    draw, others = np.random.RandomState(2), tuple(at for at in range(len(shape)) if at != axis)
    arrays = {'data': draw.normal(size=shape), **{name: draw.normal(size=shape[axis])
                                                  for name in ('center', 'scale', 'shift')}}
    head = draw.normal(size=shape)
    given = {name: mx.sym.identity(mx.sym.var(name)) for name in arrays}
    symbol = mx.sym.identity(norm_operators.scale_channels(given['data'], mx.sym.BlockGrad(given['center']),
                                                           given['scale'], given['shift'], shape, axis))
    (scaled,), gradients = run(symbol, arrays, [head])
    center, scale, shift = (wide(arrays[name], shape, axis) for name in ('center', 'scale', 'shift'))
    np.testing.assert_allclose(scaled, (arrays['data'] - center) * scale + shift, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients['data'], head * scale, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients['shift'], head.sum(axis=others), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gradients['scale'], (head * (arrays['data'] - center)).sum(axis=others), rtol=1e-5,
                               atol=1e-4)
    assert not gradients['center'].any()


def test_data_in_a_layout_of_one_dnn():
    draw = np.random.RandomState(3)
    data, weight = draw.normal(size=(2, 3, 8, 8)), draw.normal(size=(16, 3, 3, 3))
    made = mx.sym.Convolution(mx.sym.var('data'), mx.sym.var('weight'), kernel=(3, 3), num_filter=16, no_bias=True)
    heads = [draw.normal(size=(2, 16, 6, 6)), draw.normal(size=(1, 2, 16))]
    symbol = mx.sym.Group([mx.sym.identity(one) for one in norm_operators.copy_with_moments(made, (2, 16, 6, 6), 1)])
    (copied, moments), gradients = run(symbol, {'data': data, 'weight': weight}, heads)
    with autograd.record():
        plain = [mx.nd.array(data), mx.nd.array(weight)]
        for one in plain:
            one.attach_grad()
        expected = mx.nd.Convolution(*plain, kernel=(3, 3), num_filter=16, no_bias=True)
        mean = expected.mean(axis=(0, 2, 3))
        variance = (expected - mean.reshape((1, 16, 1, 1))).square().mean(axis=(0, 2, 3))
    autograd.backward([expected, mean, variance], [mx.nd.array(heads[0]), mx.nd.array(heads[1][0, 0]),
                                                   mx.nd.array(heads[1][0, 1])])
    np.testing.assert_allclose(copied, expected.asnumpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moments[0], [mean.asnumpy(), variance.asnumpy()], rtol=1e-5, atol=1e-5)
    for name, one in zip(('data', 'weight'), plain):
        np.testing.assert_allclose(gradients[name], one.grad.asnumpy(), rtol=1e-4, atol=1e-4)
