"""A BatchNorm over several workers as one compiled operator, of which all parts are alike, compared with MXNet's."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.kernels.operators import JointNorm, local_joint_norm

SHAPES = [((4, 6, 9, 7), 1), ((2, 3, 40, 41), 1), ((3, 5, 4), 1), ((33, 8), 1), ((2, 4, 5, 6), 3), ((1, 2, 1100), 1),
          ((3, 4, 20), 0)]


def expected_of(arrays, axis, epsilon, fixes_gamma, rectifies, pools, head):
    """Return output, mean, variance and gradients of MXNet's BatchNorm in float64, with a relu if it `rectifies`, and
    with a pooling if it `pools`.
    """
    inputs = {name: mx.nd.array(value, dtype='float64') for name, value in arrays.items()}
    for array in inputs.values():
        array.attach_grad()
    zeros = [mx.nd.zeros_like(inputs['beta']) for _ in range(2)]
    with autograd.record():
        output, mean, reciprocal = mx.nd.BatchNorm(inputs['data'], inputs['gamma'], inputs['beta'], *zeros, axis=axis,
                                                   eps=epsilon, fix_gamma=fixes_gamma, output_mean_var=True)
        output = mx.nd.relu(output) if rectifies else output
        if pools:
            output = mx.nd.Pooling(output, kernel=(2, 2), stride=(2, 2), pool_type='max')
    output.backward(mx.nd.array(head, dtype='float64'))
    return [output.asnumpy(), mean.asnumpy(), 1 / reciprocal.asnumpy() ** 2 - epsilon], {
        name: array.grad.asnumpy() for name, array in inputs.items()}


CASES = [((1.0,), 0, False, False), ((0.5, 0.3, 0.2), 1, True, True), ((0.25, 0.75), 1, False, True)]


def drawn(shape, axis):
    """Return data, gamma and beta."""
    draw, channels = np.random.RandomState(1), shape[axis]
    return {'data': (draw.normal(size=shape) * 3 + 20).astype('float32'),
            'gamma': draw.uniform(0.5, 2, size=channels).astype('float32'),
            'beta': draw.normal(size=channels).astype('float32')}


@pytest.mark.parametrize('shares, position, fixes_gamma, rectifies', CASES)
@pytest.mark.parametrize('shape, axis', SHAPES)
def test_equals_batch_norm(shape, axis, shares, position, fixes_gamma, rectifies):
    check(JointNorm(shape, axis, shares, position, 1e-3, fixes_gamma, rectifies), drawn(shape, axis))


@pytest.mark.parametrize('shares, position, fixes_gamma, rectifies', CASES)
@pytest.mark.parametrize('shape', [(4, 6, 10, 8), (2, 3, 2, 2), (3, 5, 4, 42), (1, 2, 64, 36)])
def test_equals_batch_norm_and_pooling(shape, shares, position, fixes_gamma, rectifies):
    arrays = drawn(shape, 1)
    arrays['gamma'][::2] *= -1  # the largest normalized value belongs to the smallest element
    check(JointNorm(shape, 1, shares, position, 1e-3, fixes_gamma, rectifies, True), arrays)


@pytest.mark.parametrize('rectifies', [False, True])
@pytest.mark.parametrize('columns', [6, 16])
def test_the_first_of_equal_values_has_the_gradient(columns, rectifies):
    arrays = drawn((2, 4, 8, columns), 1)
    arrays['data'] = np.random.RandomState(2).randint(0, 3, arrays['data'].shape).astype('float32')
    arrays['gamma'][:] = 1, -1, 0, 0  # with 0, all normalized values are equal
    arrays['beta'][2:] = 0.5, -0.5
    check(JointNorm((2, 4, 8, columns), 1, (1.0,), 0, 1e-3, False, rectifies, True), arrays)


@pytest.mark.parametrize('shape, axis', [((2, 3, 5, 4), 1), ((2, 3, 4, 5), 1), ((2, 4, 4), 1), ((2, 4, 4, 6), 3)])
def test_pooling_needs_whole_windows(shape, axis):
    with pytest.raises(Exception, match='an even number of rows and of columns'):
        local_joint_norm(JointNorm(shape, axis, (1.0,), 0, 1e-3, False, True, True))


def check(norm, arrays):
    """Compare an operator whose parts are all alike with MXNet's operators."""
    channels, epsilon, shares, fixes_gamma = norm.channels, norm.epsilon, norm.shares, norm.fixes_gamma
    shape = norm.shape if not norm.pools else norm.shape[:2] + tuple(length // 2 for length in norm.shape[2:])
    head = np.random.RandomState(3).normal(size=shape).astype('float32')
    copies = {name: mx.sym.identity(mx.sym.var(name)) for name in ('token', *arrays)}
    parameters = copies['beta'] if fixes_gamma else mx.sym.concat(copies['gamma'], copies['beta'], dim=0)
    token, normalized, statistics = local_joint_norm(norm).symbol('norm', copies['token'], copies['data'], parameters)
    symbol = mx.sym.Group([mx.sym.identity(token), mx.sym.identity(normalized), mx.sym.BlockGrad(statistics)])
    call = mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])
    inputs = {name: mx.nd.array(value) for name, value in {'token': np.zeros(1), **arrays}.items()}
    for array in inputs.values():
        array.attach_grad()
    for _ in range(2):  # the second time with used memory
        with autograd.record():
            _, output, statistics_array = call(*[inputs[name] for name in symbol.list_inputs()])
        output.backward(mx.nd.array(head))
    (expected, mean, variance), gradients = expected_of(arrays, norm.axis, epsilon, fixes_gamma, norm.rectifies,
                                                        norm.pools, head)
    np.testing.assert_allclose(output.asnumpy(), expected, rtol=1e-5, atol=1e-5)
    assert statistics_array.size == norm.statistics_size
    moments = statistics_array.asnumpy().reshape(1 + len(shares), 2, channels)
    for part in moments:
        np.testing.assert_allclose(part, [mean, variance], rtol=1e-5)
    for name in arrays:
        if name != 'gamma' or not fixes_gamma:
            scale = np.abs(gradients[name]).max()
            np.testing.assert_allclose(inputs[name].grad.asnumpy(), gradients[name], rtol=1e-4, atol=2e-6 * scale)


def test_data_and_gradients_in_layouts_of_onednn():
    """Convolutions before and after the operator have blocked layouts."""
    draw = np.random.RandomState(3)
    arrays = {'data': draw.normal(size=(2, 3, 8, 8)), 'before': draw.normal(size=(16, 3, 3, 3)),
              'gamma': draw.uniform(0.5, 2, size=16), 'beta': draw.normal(size=16),
              'after': draw.normal(size=(16, 16, 3, 3)) / 12}

    def network(normalize):
        inputs = {name: mx.sym.var(name) for name in arrays}
        convolved = mx.sym.Convolution(inputs['data'], inputs['before'], kernel=(3, 3), num_filter=16, no_bias=True)
        normalized = mx.sym.relu(normalize(convolved, inputs['gamma'], inputs['beta']))
        return mx.sym.Convolution(normalized, inputs['after'], kernel=(3, 3), num_filter=16, no_bias=True)

    def joint(data, gamma, beta):
        norm = JointNorm((2, 16, 6, 6), 1, (0.5, 0.5), 0, 1e-3, False)
        return local_joint_norm(norm).symbol('norm', mx.sym.zeros((1,)), data, mx.sym.concat(gamma, beta, dim=0))[1]
    results = []
    for normalize in (joint, lambda *inputs: mx.sym.BatchNorm(*inputs, eps=1e-3, fix_gamma=False, name='norm')):
        symbol = network(normalize)
        call = mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])
        inputs = {name: mx.nd.array(arrays.get(name, np.zeros(16))) for name in symbol.list_inputs()}
        for name in arrays:
            inputs[name].attach_grad()
        for _ in range(2):
            with autograd.record():
                output = call(*[inputs[name] for name in symbol.list_inputs()])
            output.backward(output)
        results.append({'output': output.asnumpy(), **{name: inputs[name].grad.asnumpy() for name in arrays}})
    for name, expected in results[1].items():
        np.testing.assert_allclose(results[0][name], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
