"""Small networks whose dimensions are equally long, split by samples, compared with one process."""
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd

import mxhybrid
from mxhybrid.parallel import data_parallel
from tests.helpers.gluon_nets import Net, initialised
from tests.helpers.sampled_networks import CALLS, CASES, counts, expected, inputs_of, listed, own

store = mxhybrid.create()


def network(case):
    """Return a case's network, with its first input scaled."""
    return initialised(Net(
        call=lambda F, first, *inputs, scale: case.forward(F, F.broadcast_mul(first, scale), *inputs),
        scale={'shape': (1,) * len(case.shapes[0]), 'dtype': case.dtype, 'init': mx.init.One()}))


def run(net, values, case):
    """Outputs, and gradients of the inputs that have one and of the scale."""
    inputs = [mx.nd.array(value, dtype=case.dtype) for value in values]
    for array, are_counts in zip(inputs, counts(case)):
        if not are_counts:
            array.attach_grad()
    with autograd.record():
        outputs = listed(net(*inputs))
    autograd.backward(outputs, [mx.nd.sin(one.detach() * 3 + 1) for one in outputs])
    scale, = net.collect_params().values()
    return ([one.asnumpy() for one in outputs], [array.grad.asnumpy() for array in inputs if array.grad is not None],
            scale.grad().asnumpy())


def apart(actual, expected):
    """Return the largest difference of arrays, relative to the largest value; infinity for different shapes."""
    if actual.shape != expected.shape:
        return float('inf')
    return float(np.abs(actual - expected).max() / max(1.0, np.abs(expected).max()))


def summed(net, array):
    """The sum of all workers' arrays."""
    return sum(np.array(one) for one in net._workers.allgather(array.tolist(), 'gradient'))


def problems_of(name, axes):
    """Return the problems of a case."""
    case, values = CASES[name], inputs_of(CASES[name])
    _, whole_gradients, whole_scale = run(network(case), values, case)
    shapes = list(case.shapes)
    net = mxhybrid.parallelize(network(case), data_parallel(), shapes, list(axes), case.dtype, input_grad=True)
    mine = [own(value, axis, net.samples) for value, axis in zip(values, axes)]
    outputs, gradients, scale = run(net, mine, case)
    bound, problems = 1e-10 if case.dtype == 'float64' else 1e-5, []
    for position, (result, reference) in enumerate(zip(outputs, expected(case, axes, values, net.samples))):
        if apart(result, reference) > bound:
            problems.append('output %d of shape %s: %g' % (position, result.shape, apart(result, reference)))
    real = [axis for axis, are_counts in zip(axes, counts(case)) if not are_counts]
    for position, (result, whole, axis) in enumerate(zip(gradients, whole_gradients, real)):
        # The gradient of an input without samples is the sum over workers.
        result, reference = (result, own(whole, axis, net.samples)) if axis is not None else (
            summed(net, result), whole)
        if apart(result, reference) > bound:
            problems.append('gradient %d: %g' % (position, apart(result, reference)))
    if apart(summed(net, scale), whole_scale) > bound:
        problems.append('gradient of the scale')
    report_of = net.report()
    net.release()
    return problems, report_of


problems, reports = {}, {}
for name, axes in CALLS:
    key = '%s %s' % (name, axes)
    problems[key], reports[key] = problems_of(name, axes)
report(store.rank, problems={key: found for key, found in problems.items() if found}, cases=len(problems),
       reports={key: reports[key] for key in ('no rule (0,)', 'concat and split (0, 0)', 'reverse (1,)')})
