"""Compiled operators: parts of a softmax, a BatchNorm over workers, and running averages equal MXNet's and NumPy's."""
import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxhybrid.kernels import operators
from mxhybrid.kernels.operators import JointNorm, local_joint_norm


def compiled(symbol):
    return mx.nd.CachedOp(symbol, [('static_alloc', True), ('static_shape', True)])


def results(symbol, arrays, head):
    """Return the outputs of a graph, and the gradients of arrays; all other inputs are zeros.

    The first output has the gradient `head`, whose type all arrays get.
    """
    call = compiled(symbol)
    inputs = {name: mx.nd.array(arrays.get(name, np.zeros(len(arrays.get('gamma', ())))), dtype=head.dtype)
              for name in symbol.list_inputs()}
    for name in arrays:
        inputs[name].attach_grad()
    for _ in range(2):  # the second time with used memory
        with autograd.record():
            outputs = call(*inputs.values())
        outputs = outputs if isinstance(outputs, list) else [outputs]
        outputs[0].backward(mx.nd.array(head, dtype=head.dtype))
    return [output.asnumpy() for output in outputs], {name: inputs[name].grad.asnumpy() for name in arrays}


# -- softmax ---------------------------------------------------------------------------------------------------------

#: The shape, the axis, and the lengths of its parts.
SOFTMAXES = [
    ((5, 30), 1, (30,)), ((4, 7), 1, (3, 4)), ((3, 2, 1000), -1, (1, 8, 16, 475, 500)), ((6, 5, 3), 1, (2, 3)),
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


def computed(op, data, axis, lengths, head):
    """Return output and gradient of a softmax in parts in float32, and those of the whole one in float64."""
    data, head = data.astype('float32'), head.astype('float32')
    whole = getattr(mx.sym, op)(mx.sym.var('data'), axis=axis)
    (output,), gradients = results(in_parts(op, data.shape, axis, lengths), {'data': data}, head)
    (expected,), exact = results(whole, {'data': data}, head.astype('float64'))
    return output, gradients['data'], expected, exact['data']


def check_softmax(op, data, axis, lengths, scale=1.0):
    head = np.random.RandomState(5).normal(size=data.shape)
    output, gradient, expected, expected_gradient = computed(op, data, axis, lengths, head)
    np.testing.assert_allclose(output, expected, rtol=2e-6, atol=2e-6 * scale)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
@pytest.mark.parametrize('shape, axis, lengths', SOFTMAXES)
def test_parts_equal_the_whole_softmax(op, shape, axis, lengths):
    check_softmax(op, np.random.RandomState(1).normal(size=shape) * 3, axis, lengths)


@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
def test_a_softmax_of_large_values_and_ties(op):
    data = np.random.RandomState(2).choice([-3e4, -200.0, -88.0, -1.0, 0.0, 0.5, 300.0], size=(40, 50))
    check_softmax(op, data, 1, (17, 33), scale=1e4)
    check_softmax(op, np.full((3, 20), 1e30), 1, (3, 17))
    check_softmax(op, np.random.RandomState(3).uniform(-100, 0, (8, 999)), 1, (500, 499), scale=100)


def test_a_softmax_of_masked_elements():
    data = np.random.RandomState(4).normal(size=(6, 24))
    data[0, :12] = -np.inf  # a whole part
    data[1, 12:] = -np.inf
    data[2, 1:] = -np.inf
    data[3, ::2] = -np.inf
    check_softmax('softmax', data, 1, (12, 12))
    check_softmax('softmax', data.T, 0, (12, 4, 8))
    output, _, expected, _ = computed('log_softmax', data, 1, (12, 12), np.zeros(data.shape))
    np.testing.assert_allclose(output, expected, rtol=2e-6, atol=2e-6)
    assert np.isneginf(output).sum() == np.isneginf(data).sum()


@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
def test_values_that_are_no_numbers_do_not_vanish(op):
    data = np.zeros((3, 20))
    data[0, 4], data[1, 13] = np.nan, np.inf
    output, *_ = computed(op, data, 1, (10, 10), np.ones(data.shape))
    assert np.isnan(output[0]).all() and np.isnan(output[1, 13]) and np.isfinite(output[2]).all()


def test_exponentials_are_those_of_float32():
    data = np.concatenate([[0.0], -np.geomspace(1e-8, 87.3, 5000), [-87.5, -1e3, -3e38]])[None]
    output, *_ = computed('softmax', data, 1, (2000, 3004), np.ones(data.shape))
    exact = np.exp(data.astype('float32').astype('float64'))
    np.testing.assert_allclose(output / output[0, 0], exact, rtol=6e-7, atol=1.2e-38)


# -- BatchNorm -------------------------------------------------------------------------------------------------------

SHAPES = [((4, 6, 9, 7), 1), ((2, 3, 40, 41), 1), ((3, 5, 4), 1), ((33, 8), 1), ((2, 4, 5, 6), 3), ((1, 2, 1100), 1),
          ((3, 4, 20), 0)]
#: Shares of the elements that each worker has, the position of this worker, fix_gamma, and whether a relu follows.
NORMS = [((1.0,), 0, False, False), ((0.5, 0.3, 0.2), 1, True, True), ((0.25, 0.75), 1, False, True)]


def drawn(shape, axis):
    """Return data, gamma and beta."""
    draw, channels = np.random.RandomState(1), shape[axis]
    return {'data': (draw.normal(size=shape) * 3 + 20).astype('float32'),
            'gamma': draw.uniform(0.5, 2, size=channels).astype('float32'),
            'beta': draw.normal(size=channels).astype('float32')}


@pytest.mark.parametrize('shares, position, fixes_gamma, rectifies', NORMS)
@pytest.mark.parametrize('shape, axis', SHAPES)
def test_a_joint_norm_equals_batch_norm(shape, axis, shares, position, fixes_gamma, rectifies):
    check_norm(JointNorm(shape, axis, shares, position, 1e-3, fixes_gamma, rectifies), drawn(shape, axis))


@pytest.mark.parametrize('shares, position, fixes_gamma, rectifies', NORMS)
@pytest.mark.parametrize('shape', [(4, 6, 10, 8), (2, 3, 2, 2), (3, 5, 4, 42), (1, 2, 64, 36)])
def test_a_joint_norm_equals_batch_norm_and_pooling(shape, shares, position, fixes_gamma, rectifies):
    arrays = drawn(shape, 1)
    arrays['gamma'][::2] *= -1  # the largest normalized value belongs to the smallest element
    check_norm(JointNorm(shape, 1, shares, position, 1e-3, fixes_gamma, rectifies, True), arrays)


@pytest.mark.parametrize('rectifies', [False, True])
@pytest.mark.parametrize('columns', [6, 16])
def test_the_first_of_equal_values_has_the_gradient(columns, rectifies):
    arrays = drawn((2, 4, 8, columns), 1)
    arrays['data'] = np.random.RandomState(2).randint(0, 3, arrays['data'].shape).astype('float32')
    arrays['gamma'][:] = 1, -1, 0, 0  # with 0, all normalized values are equal
    arrays['beta'][2:] = 0.5, -0.5
    check_norm(JointNorm((2, 4, 8, columns), 1, (1.0,), 0, 1e-3, False, rectifies, True), arrays)


@pytest.mark.parametrize('shape, axis', [((2, 3, 5, 4), 1), ((2, 3, 4, 5), 1), ((2, 4, 4), 1), ((2, 4, 4, 6), 3)])
def test_pooling_needs_whole_windows(shape, axis):
    with pytest.raises(Exception, match='an even number of rows and of columns'):
        local_joint_norm(JointNorm(shape, axis, (1.0,), 0, 1e-3, False, True, True))


def batch_norm(norm, data, gamma, beta):
    """Return the output of MXNet's operators, the mean, and the reciprocal of the standard deviation."""
    output, *statistics = mx.sym.BatchNorm(data, gamma, beta, axis=norm.axis, eps=norm.epsilon,
                                           fix_gamma=norm.fixes_gamma, output_mean_var=True)
    output = mx.sym.relu(output) if norm.rectifies else output
    if norm.pools:
        output = mx.sym.Pooling(output, kernel=(2, 2), stride=(2, 2), pool_type='max')
    return [output, *statistics]


def joint_norm(norm, data, gamma, beta):
    """Return the output of the compiled operator, the statistics, and the token."""
    parameters = beta if norm.fixes_gamma else mx.sym.concat(gamma, beta, dim=0)
    token, normalized, statistics = local_joint_norm(norm).symbol('norm', mx.sym.zeros((1,)), data, parameters)
    return [normalized, mx.sym.BlockGrad(statistics), token]


def check_norm(norm, arrays):
    shape = norm.shape if not norm.pools else norm.shape[:2] + tuple(length // 2 for length in norm.shape[2:])
    head = np.random.RandomState(3).normal(size=shape).astype('float32')
    copies = [mx.sym.identity(mx.sym.var(name)) for name in ('data', 'gamma', 'beta')]
    trained = {name: array for name, array in arrays.items() if name != 'gamma' or not norm.fixes_gamma}
    joint = mx.sym.Group([mx.sym.identity(output) for output in joint_norm(norm, *copies)])
    (output, statistics, _), gradients = results(joint, trained, head)
    whole = mx.sym.Group(batch_norm(norm, *copies))
    (expected, mean, reciprocal), exact = results(whole, arrays, head.astype('float64'))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    assert statistics.size == norm.statistics_size
    for part in statistics.reshape(1 + len(norm.shares), 2, norm.channels):
        np.testing.assert_allclose(part, [mean, 1 / reciprocal ** 2 - norm.epsilon], rtol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, exact[name], rtol=1e-4, atol=2e-6 * np.abs(exact[name]).max())


def test_data_and_gradients_in_layouts_of_onednn():
    """Convolutions before and after the operator have blocked layouts."""
    draw = np.random.RandomState(3)
    arrays = {'data': draw.normal(size=(2, 3, 8, 8)), 'before': draw.normal(size=(16, 3, 3, 3)),
              'gamma': draw.uniform(0.5, 2, size=16), 'beta': draw.normal(size=16),
              'after': draw.normal(size=(16, 16, 3, 3)) / 12}
    inputs = {name: mx.sym.var(name) for name in arrays}
    norm, head = JointNorm((2, 16, 6, 6), 1, (0.5, 0.5), 0, 1e-3, False), draw.normal(size=(2, 16, 4, 4))

    def network(normalize):
        convolved = mx.sym.Convolution(inputs['data'], inputs['before'], kernel=(3, 3), num_filter=16, no_bias=True)
        normalized = mx.sym.relu(normalize(norm, convolved, inputs['gamma'], inputs['beta'])[0])
        return mx.sym.Convolution(normalized, inputs['after'], kernel=(3, 3), num_filter=16, no_bias=True)
    ((output,), gradients), ((expected,), exact) = (
        results(network(normalize), arrays, head.astype('float32')) for normalize in (joint_norm, batch_norm))
    for name, array in {'output': expected, **exact}.items():
        actual = output if name == 'output' else gradients[name]
        np.testing.assert_allclose(actual, array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


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
        parts = [operators.Statistics(both, 2 * count, count * at) for at in range(len(values))] if count == 4 \
            else [operators.Statistics(value, count) for value in values]
        every.append(operators.NextAverage(following, average, parts, of, count))
        averages[count] = arrays[input_names[1]]
        autograd.mark_variables([arrays[input_names[0]]], [averages[count]], 'write')
        names.append(input_names)
    symbol = operators.next_averages(every)
    call = compiled(symbol)
    expected = {count: average.asnumpy() for count, average in averages.items()}
    for _ in range(3):
        with autograd.record():
            output = call(*[arrays[name] for name in symbol.list_inputs()])
        for count, average in averages.items():
            np.testing.assert_allclose(average.asnumpy(), expected[count], rtol=1e-6)
        output.backward(mx.nd.zeros(1))
        for input_names, (count, (kept, *others)) in zip(names, factors.items()):
            expected[count] = kept * expected[count] + sum(
                factor * arrays[name].asnumpy() for factor, name in zip(others, input_names[2:]))
            np.testing.assert_allclose(averages[count].asnumpy(), expected[count], rtol=1e-6)
