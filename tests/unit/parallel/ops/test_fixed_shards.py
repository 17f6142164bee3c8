"""Operators on weights alone: layers that compute the same from their weights have the same key."""
import mxnet as mx

from mxhybrid.parallel.ops.fixed_shards import structure_of, weight_boxes
from mxhybrid.parallel.ops.graph import Graph

FEATURES, HEADS, LAYERS = 8, 4, 3
PARTS = ['query', 'key', 'value']


def woven(layer, parts):
    """Return a weight whose rows come from several weights, head by head, as GluonNLP 0.10 makes it."""
    weights = [mx.sym.var('layer%d_%s' % (layer, part), shape=(FEATURES, FEATURES)) for part in parts]
    by_head = [mx.sym.reshape(weight, shape=(HEADS, -1, 0), reverse=True) for weight in weights]
    return mx.sym.reshape(mx.sym.concat(*by_head, dim=-2), shape=(-1, 0), reverse=True)


def layers(parts):
    """Return the graph of dense layers with such weights, of the parts of each layer, and their weights."""
    x = mx.sym.var('data')
    for layer, of_layer in enumerate(parts):
        wide = mx.sym.FullyConnected(x, woven(layer, of_layer), num_hidden=len(of_layer) * FEATURES, no_bias=True)
        x = mx.sym.slice_axis(wide, axis=1, begin=0, end=FEATURES)
    graph = Graph(x, {'data': (2, FEATURES)}, dict.fromkeys(x.list_inputs(), 'float32'))
    return graph, [operator.inputs[1] for operator in graph.computing if operator.op == 'FullyConnected']


def test_layers_that_are_alike_read_equal_boxes():
    graph, entries = layers([PARTS] * LAYERS)
    (key,) = {structure_of(graph, entry)[0] for entry in entries}
    rows = len(PARTS) * FEATURES
    for low, high in ((0, rows), (0, rows // 2), (rows // 2, rows), (0, 1)):
        read = []
        for layer, entry in enumerate(entries):
            same_key, names = structure_of(graph, entry)
            assert (same_key, names) == (key, ['layer%d_%s' % (layer, part) for part in PARTS])
            read.append([(names.index(name), box)
                         for name, box in weight_boxes(graph, entry, ((low, high), (0, FEATURES)))])
        assert read[0] and read == [read[0]] * LAYERS


def test_other_operators_on_weights_have_other_keys():
    # A weight that is read twice is not two weights.
    graph, entries = layers([PARTS, PARTS[:2], ['query', 'key', 'query'], ['query', 'query', 'key']])
    assert len({structure_of(graph, entry)[0] for entry in entries}) == len(entries)


def test_a_weight_itself_has_its_own_name():
    graph, _ = layers([PARTS])
    weight = next(operator for operator in graph.operators if operator.name == 'layer0_key')
    assert structure_of(graph, (weight.number, 0)) == (0, ['layer0_key'])
