"""The compiled operator of running averages, compared with NumPy."""
import mxnet as mx
import numpy as np
from mxnet import autograd

from mxhybrid.kernels import operators


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
