"""The softmax along a split axis: the operators that compute it."""
import json

import mxnet as mx
import pytest

from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import Program
from mxhybrid.parallel.sharding.split import Split


class NoTransport:
    """A redistribution that does not run: a rank receives the array that it sends, as an input of the program.
    """

    def __init__(self, redistribution, differentiable):
        self._name = 'received%d' % id(redistribution)

    def symbol(self, token, local, plain=False):
        return token, mx.sym.concat(mx.sym.var(self._name), *([] if local is None else [local]))

    def ending(self, token):
        return token


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('op', ['softmax', 'log_softmax'])
def test_operators_of_a_split_axis(op, dtype):
    data = mx.sym.var('data', dtype=dtype)
    words = mx.sym.FullyConnected(data, num_hidden=8, name='words')
    graph = Graph(getattr(mx.sym, op)(words, axis=1, name='split'), {'data': (4, 3)},
                  dict.fromkeys(('data', 'words_weight', 'words_bias'), dtype))
    shards = NetworkShards(graph, {operator.number: Split([1, 2], [0, 1]) for operator in graph.computing})
    input_shards = InputShards(graph, {'data': 0}, Dimensions(graph, {'data': 0}), 2, 0, set())
    program = Program(shards, 0, input_shards.inputs, input_shards.outputs, collectives(), NoTransport, 0,
                      input_shards.gradient_inputs)
    used = [node['op'] for node in json.loads(program.symbol.tojson())['nodes']]
    assert used.count('_NDArray') == (2 if dtype == 'float32' else 0)
    assert ('exp' in used) == (dtype == 'float64')
