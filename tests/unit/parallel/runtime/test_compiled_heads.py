"""The second step of a compiled part whose output passes a weight on: its gradients are right."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import COMPILED, Program, ProgramSpec
from mxhybrid.parallel.sharding.split import whole_on

BUILDERS = {
    'sum': lambda F, x, w: x + w, 'sum of sums': lambda F, x, w: (x + w) + x, 'difference': lambda F, x, w: x - w,
    'add_n': lambda F, x, w: F.add_n(x, w), 'broadcast_add': lambda F, x, w: F.broadcast_add(x, w),
    'weight twice': lambda F, x, w: w + w * 2.0, 'identity': lambda F, x, w: F.identity(x) + F.identity(w),
    'shape': lambda F, x, w: F.reshape(x + w, shape=(3, 4)),
    'shape of a loss': lambda F, x, w: F.reshape_like(x * w, F.MAERegressionOutput(x, F.BlockGrad(w), grad_scale=0.5))}


@pytest.mark.parametrize('name', sorted(BUILDERS))
def test_second_steps(name):
    build, shape = BUILDERS[name], (4, 3)
    x, w = (mx.sym.var(name, shape=shape, dtype='float64') for name in ('data', 'w'))
    graph = Graph(mx.sym.Group([build(mx.sym, x, w), mx.sym.sin(x)]), {'data': shape},
                  {'data': 'float64', 'w': 'float64'})
    shards = NetworkShards(graph, {one.number: whole_on(2, [0]) for one in graph.computing})
    input_shards = InputShards(graph, {'data': 0}, Dimensions(graph, {'data': 0}), 1, 0, {'data'})
    spec = ProgramSpec(shards, input_shards.inputs, input_shards.outputs, collectives(), input_shards.gradient_inputs)
    program = Program(spec, 0, None, 0)
    names = program.symbol.list_inputs()
    compiled = mx.nd.CachedOp(program.symbol, COMPILED + [('data_indices', [names.index('data')]),
                                                          ('param_indices', [names.index('w')])])
    arrays = {each: mx.nd.array(np.random.RandomState(number).uniform(-1, 1, shape), dtype='float64')
              for number, each in enumerate(names)}
    for array in arrays.values():
        array.attach_grad()
    for step in range(3):
        def gradients(outputs, step=step):
            weights = [mx.nd.ones_like(output) * (1 + number + 10 * step) for number, output in enumerate(outputs)]
            mx.autograd.backward(outputs, weights)
            return {each: array.grad.asnumpy() for each, array in arrays.items()}
        with mx.autograd.record():
            outputs = [build(mx.nd, arrays['data'], arrays['w']), mx.nd.sin(arrays['data'])]
            outputs = [output.reshape(output.shape) for output in outputs]
        expected = gradients(outputs)
        for array in arrays.values():
            array.grad[:] = np.nan
        with mx.autograd.record():
            outputs = compiled(*[arrays[each] for each in names])[:program.outputs]
        for each, gradient in gradients(outputs).items():
            np.testing.assert_allclose(gradient, expected[each], rtol=1e-12, err_msg='%s, step %d' % (each, step))
