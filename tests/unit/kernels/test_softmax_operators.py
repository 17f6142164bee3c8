"""Compiled operators of a softmax over several workers, compared with MXNet's softmax of the whole axis."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.kernels import operators

#: The shape, the axis, and the lengths of its parts.
CASES = [((5, 30), 1, (30,)), ((4, 7), 1, (3, 4)), ((3, 2, 1000), -1, (1, 8, 16, 475, 500)), ((6, 5, 3), 1, (2, 3)),
         ((9, 40), 0, (4, 5)), ((2, 3000), 1, (1500, 1500)), ((1, 12, 33), 1, (7, 5))]


def in_parts(op, shape, axis, lengths):
    """Return the symbol of the whole softmax, computed in parts that are joined by a concat."""
    data, axis = mx.sym.identity(mx.sym.var('data')), axis % len(shape)
    starts = np.cumsum((0,) + lengths)
    shards = [mx.sym.slice_axis(data, axis=axis, begin=int(start), end=int(start + length))
              for start, length in zip(starts, lengths)]
    shapes = [shape[:axis] + (length,) + shape[axis + 1:] for length in lengths]
    parts = [operators.softmax_parts(shard, part_shape, axis, 'parts%d' % number)
             for number, (shard, part_shape) in enumerate(zip(shards, shapes))]
    joined = mx.sym.concat(*[totals for _, totals in parts], dim=1 + axis)
    return mx.sym.concat(*[operators.softmax_of(
        copy, mx.sym.identity(joined), part_shape, axis, len(lengths), op == 'log_softmax', 'softmax%d' % number)
        for number, ((copy, _), part_shape) in enumerate(zip(parts, shapes))], dim=axis)


def outputs_and_gradients(symbol, data, head):
    call = mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])
    array = mx.nd.array(data, dtype=data.dtype)
    array.attach_grad()
    for _ in range(2):  # the second time with used memory
        with autograd.record():
            output = call(array)
        output.backward(mx.nd.array(head, dtype=data.dtype))
    return output.asnumpy(), array.grad.asnumpy()


def whole(op, data, head, axis):
    """Return the results of MXNet in float64."""
    symbol = getattr(mx.sym, op)(mx.sym.var('data'), axis=axis)
    return outputs_and_gradients(symbol, data.astype('float64'), head)


def check(op, data, axis, lengths, scale=1.0):
    head = np.random.RandomState(5).normal(size=data.shape)
    output, gradient = outputs_and_gradients(in_parts(op, data.shape, axis, lengths), data.astype('float32'), head)
    expected, expected_gradient = whole(op, data.astype('float32'), head.astype('float32'), axis)
    np.testing.assert_allclose(output, expected, rtol=2e-6, atol=2e-6 * scale)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
@pytest.mark.parametrize('shape, axis, lengths', CASES)
def test_parts(op, shape, axis, lengths):
    check(op, np.random.RandomState(1).normal(size=shape) * 3, axis, lengths)


@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
def test_large_values_and_ties(op):
    data = np.random.RandomState(2).choice([-3e4, -200.0, -88.0, -1.0, 0.0, 0.5, 300.0], size=(40, 50))
    check(op, data, 1, (17, 33), scale=1e4)
    check(op, np.full((3, 20), 1e30), 1, (3, 17))
    check(op, np.random.RandomState(3).uniform(-100, 0, (8, 999)), 1, (500, 499), scale=100)


def test_masked_elements():
    data = np.random.RandomState(4).normal(size=(6, 24))
    data[0, :12] = -np.inf  # a whole part
    data[1, 12:] = -np.inf
    data[2, 1:] = -np.inf
    data[3, ::2] = -np.inf
    check('softmax', data, 1, (12, 12))
    check('softmax', data.T, 0, (12, 4, 8))
    output, _ = outputs_and_gradients(in_parts('log_softmax', data.shape, 1, (12, 12)), data.astype('float32'),
                                      np.zeros(data.shape))
    expected, _ = whole('log_softmax', data.astype('float32'), np.zeros(data.shape), 1)
    np.testing.assert_allclose(output, expected, rtol=2e-6, atol=2e-6)
    assert np.isneginf(output).sum() == np.isneginf(data).sum()


@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
def test_values_that_are_no_numbers_do_not_vanish(op):
    data = np.zeros((3, 20), 'float32')
    data[0, 4], data[1, 13] = np.nan, np.inf
    output, _ = outputs_and_gradients(in_parts(op, data.shape, 1, (10, 10)), data, np.ones(data.shape))
    assert np.isnan(output[0]).all() and np.isnan(output[1, 13]) and np.isfinite(output[2]).all()


def test_exponentials_are_those_of_float32():
    data = np.concatenate([[0.0], -np.geomspace(1e-8, 87.3, 5000), [-87.5, -1e3, -3e38]])[None]
    output, _ = outputs_and_gradients(in_parts('softmax', data.shape, 1, (2000, 3004)), data.astype('float32'),
                                      np.ones(data.shape))
    exact = np.exp(data.astype('float32').astype('float64'))
    np.testing.assert_allclose(output / output[0, 0], exact, rtol=6e-7, atol=1.2e-38)
