"""Heads of attention: where they are found, in each way in which networks write attention, and where there are none."""
import mxnet as mx
import pytest

from mxhybrid.parallel.ops.dimension_names import Dimensions
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import dimensions_of

SAMPLES, TIMES, HEADS, FEATURES = 3, 4, 5, 2
WIDTH = HEADS * FEATURES


def graph_of(symbol, shape=(SAMPLES, TIMES, WIDTH), axis=0):
    graph = Graph(symbol, {'x': shape}, {'x': 'float32'})
    return graph, dimensions_of(graph, {'x': axis})


def named(symbol, shape=(SAMPLES, TIMES, WIDTH), axis=0):
    """Return the names of dimensions by operators' names."""
    graph, dimensions = graph_of(symbol, shape, axis)
    return {operator.name: dict(zip(dimensions.names(operator), graph.shape(operator))) for operator in graph.computing}


def projections(x):
    return [mx.sym.FullyConnected(x, num_hidden=WIDTH, flatten=False, name=name) for name in ('query', 'key', 'value')]


def merged(x):
    apart = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
    return mx.sym.reshape(apart, shape=(-1, 0, 0), reverse=True)


def test_samples_and_heads_of_one_dimension_are_factors():
    query, key, value = map(merged, projections(mx.sym.var('x')))
    scores = mx.sym.softmax(mx.sym.batch_dot(query, key, transpose_b=True), name='weights')
    context = mx.sym.batch_dot(scores, value, name='context')
    names = named(mx.sym.reshape(context, shape=(-1, HEADS, 0, 0), reverse=True, name='apart'))
    assert names['weights'] == {'samples': SAMPLES, 'heads': HEADS, 'length': TIMES, 'channels': TIMES}
    assert names['context'] == {'samples': SAMPLES, 'heads': HEADS, 'length': TIMES, 'channels': FEATURES}
    assert names['query'] == {'samples': SAMPLES, 'length': TIMES, 'channels': WIDTH}
    assert names['apart'] == names['context']


def test_channels_of_projections_hold_heads():
    query, key, _ = map(merged, projections(mx.sym.var('x')))
    graph, _ = graph_of(mx.sym.batch_dot(query, key, transpose_b=True))
    held = {graph.operators[number].name: {one.axis: one.features for one in heads}
            for (number, _), heads in graph.heads_of.items()}
    assert held['query'] == {2: FEATURES} and held['query_weight'] == {0: FEATURES}
    assert 'x' not in held


def test_interleaved_products_say_what_heads_are():
    x = mx.sym.var('x')
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(x, heads=HEADS, name='scores')
    context = mx.sym.contrib.interleaved_matmul_selfatt_valatt(x, mx.sym.softmax(scores), heads=HEADS, name='context')
    shape = (TIMES, SAMPLES, 3 * WIDTH)
    names = named(context, shape, 1)
    assert names['scores'] == {'samples': SAMPLES, 'heads': HEADS, 'length': TIMES, 'channels': TIMES}
    assert names['context'] == {'length': TIMES, 'samples': SAMPLES, 'channels': WIDTH}
    graph, _ = graph_of(context, shape, 1)
    limits = {operator.name: rule_of(operator).limits(graph, operator) for operator in graph.computing}
    assert limits['scores'] == [SAMPLES, HEADS, TIMES, 1] and limits['context'] == [TIMES, SAMPLES, HEADS]


def test_scores_that_are_read_as_keys_have_no_factors():
    """Samples and heads of the first product are times of keys in the second one."""
    queries, keys = (mx.sym.FullyConnected(mx.sym.var('x'), num_hidden=count * FEATURES * HEADS, flatten=False)
                     for count in (1, 2))
    scores = mx.sym.contrib.interleaved_matmul_encdec_qk(queries, keys, heads=HEADS, name='scores')
    other = mx.sym.FullyConnected(scores, num_hidden=2 * WIDTH, flatten=False)
    again = mx.sym.contrib.interleaved_matmul_encdec_qk(queries, other, heads=HEADS, name='again')
    graph, _ = graph_of(again, (TIMES, TIMES, WIDTH), 1)
    shapes = {operator.name: graph.shape(operator) for operator in graph.computing}
    assert shapes['scores'] == (TIMES * HEADS, TIMES, TIMES)
    assert shapes['again'] == (TIMES, HEADS, TIMES, TIMES * HEADS)


def test_two_counts_of_heads_are_no_factors():
    x = mx.sym.var('x')
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(x, heads=2, name='scores')
    context = mx.sym.contrib.interleaved_matmul_selfatt_valatt(x, scores, heads=2, name='context')
    values = mx.sym.reshape(x, shape=(0, -4, -1, 2, 0)).slice_axis(axis=2, begin=0, end=1).reshape((0, -3, -1))
    other = mx.sym.contrib.interleaved_matmul_selfatt_valatt(values, scores, heads=4, name='other')
    graph, _ = graph_of(mx.sym.Group([context, other]), (TIMES, 4, 24), 1)
    assert {operator.name: graph.shape(operator) for operator in graph.computing}['scores'] == (8, TIMES, TIMES)


def test_heads_inside_channels_are_a_weights_dimension():
    joint = mx.sym.FullyConnected(mx.sym.var('x'), num_hidden=3 * WIDTH, flatten=False, name='joint')
    apart = mx.sym.transpose(mx.sym.reshape(joint, shape=(0, 0, 3, HEADS, -1)), axes=(2, 0, 3, 1, 4))
    query, key, _ = mx.sym.split(apart, num_outputs=3, axis=0, squeeze_axis=True)
    graph, dimensions = graph_of(mx.sym.linalg.gemm2(query, key, transpose_b=True))
    dense = next(operator for operator in graph.computing if operator.name == 'joint')
    assert graph.shape(dense) == (SAMPLES, TIMES, 3, HEADS, FEATURES)
    assert 'heads' in dimensions.names(dense)
    assert graph.parameters['joint_weight'] == (3, HEADS, FEATURES, WIDTH)
    assert graph.parameter_arrays['joint_weight'] == (3 * WIDTH, WIDTH)


@pytest.mark.parametrize('build, shape', [
    # Groups of channels that are shuffled, and pixels that are: no attention.
    (lambda x: mx.sym.reshape(mx.sym.SwapAxis(mx.sym.reshape(x, shape=(0, -4, 3, -1, -2)), dim1=1, dim2=2),
                              shape=(0, -3, -2)), (2, 6, 4, 4)),
    (lambda x: mx.sym.reshape(mx.sym.transpose(mx.sym.reshape(x, shape=(0, -4, -1, 4, 0, 0)).reshape(
        (0, 0, -4, 2, 2, 0, 0)), axes=(0, 1, 4, 2, 5, 3)), shape=(0, 0, -3, -3)), (2, 8, 4, 4)),
    (lambda x: mx.sym.FullyConnected(mx.sym.reshape(x, shape=(-3, 0)), num_hidden=4), (3, 4, 6)),
    (lambda x: mx.sym.batch_dot(x, x, transpose_b=True), (3, 4, 6))])
def test_networks_without_heads_stay_as_they_are(build, shape):
    graph, _ = graph_of(build(mx.sym.var('x')), shape)
    plain = Graph(build(mx.sym.var('x')), {'x': shape}, {'x': 'float32'})
    Dimensions(plain, {'x': 0})
    assert not graph.factors and not graph.heads_of and graph.shapes == plain.shapes


def test_heads_of_data_have_no_factors():
    """The array of an input keeps its shape."""
    x = mx.sym.var('x')
    apart = mx.sym.reshape(x, shape=(-4, -1, HEADS, 0, 0))
    context = mx.sym.batch_dot(x, x, transpose_b=True)
    graph, _ = graph_of(mx.sym.Group([context, apart]), (SAMPLES * HEADS, TIMES, FEATURES))
    assert not graph.factors
