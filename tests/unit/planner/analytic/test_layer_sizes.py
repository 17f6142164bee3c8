"""The sizes of layers that the analytic formulas use."""
import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxhybrid import InputError
from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.planner.analytic.layer_sizes import ALEXNET, LayerSizes, convolution_sizes, dense_sizes, layer_sizes
from tests.helpers.gluon_nets import Net, initialised


def graph_of(net, shape):
    """The graph of a network that takes one input."""
    return Graph(initialised(net)(mx.sym.var('data')), {'data': shape}, {'data': 'float32'}, {net.prefix: ''})


def test_alexnet_from_a_list():
    assert [layer.name for layer in ALEXNET if layer.kind == 'dense'] == ['fc6', 'fc7', 'fc8']
    assert ALEXNET[0] == LayerSizes('conv1', 'convolution', 96 * (3 * 121 + 1), 3 * 227 * 227, 96 * 55 * 55, 96, 227,
                                    55, 5, True)
    assert ALEXNET[5] == LayerSizes('fc6', 'dense', 4096 * 9217, 9216, 4096, 4096)
    assert sum(layer.weights for layer in ALEXNET) == 62_378_344


def test_costs_of_a_network_as_by_hand():
    net = Net(lambda: [nn.Conv2D(8, 5, strides=2, padding=2, in_channels=3), nn.BatchNorm(in_channels=8),
                       nn.MaxPool2D(2), nn.Conv2D(4, 1, in_channels=8), nn.Dense(10, in_units=4 * 8 * 8)])
    conv, one_by_one, dense, others = layer_sizes(graph_of(net, (6, 3, 32, 32)), 6)
    assert conv == convolution_sizes(conv.name, (3, 32, 32), 8, 5, stride=2, pad=2, first=True)
    assert one_by_one == convolution_sizes(one_by_one.name, (8, 8, 8), 4, 1) and one_by_one.halo == 0
    assert dense == dense_sizes(dense.name, 256, 10)
    assert (others.name, others.kind, others.weights) == ('2 others', 'other', 16)  # running averages are not learned


def test_more_dimensions_and_dilation():
    net = Net(lambda: [nn.Conv1D(4, 3, dilation=4, padding=4, in_channels=2),
                       nn.Dense(6, flatten=False, in_units=10)])
    conv, dense = layer_sizes(graph_of(net, (5, 2, 10)), 5)
    assert (conv.halo, conv.cut, conv.rows_in, conv.inputs, conv.outputs) == (4, 'width', 10, 20, 40)
    assert (dense.inputs, dense.outputs, dense.channels, dense.weights) == (40, 24, 6, 66)


def test_shared_weights_are_summed_once():
    data, weight = mx.sym.var('data'), mx.sym.var('weight')
    once = mx.sym.FullyConnected(data, weight, num_hidden=7, no_bias=True, name='once')
    twice = mx.sym.FullyConnected(once, weight, num_hidden=7, no_bias=True, name='twice')
    first, second = layer_sizes(Graph(twice, {'data': (3, 7)}, {'data': 'float32'}), 3)
    assert (first.weights, second.weights, first.first, second.first) == (49, 0, True, False)


def test_frozen_weights_are_not_summed():
    net = Net(lambda: [nn.Dense(6, in_units=4), nn.LayerNorm(in_channels=6), nn.Dense(5, in_units=6)])
    first, second = layer_sizes(graph_of(net, (2, 4)), 2, {
        'net_dense0_weight', 'net_dense0_bias', 'net_layernorm0_gamma', 'net_layernorm0_beta'})
    assert (first.weights, first.first) == (0, True) and second == dense_sizes(second.name, 6, 5, first=True)
    with pytest.raises(InputError, match='no trained parameters'):
        layer_sizes(graph_of(nn.LayerNorm(in_channels=4, prefix='norm_'), (2, 4)), 2, {'norm_gamma', 'norm_beta'})


def test_large_parameters_of_no_layer_are_named():
    net = Net(lambda: [nn.Embedding(100, 8), nn.LayerNorm(in_channels=8), nn.Dense(5, in_units=24)])
    dense, embedding, others = layer_sizes(graph_of(net, (2, 3)), 2)
    assert not dense.first and (embedding.kind, embedding.weights) == ('other', 800)
    assert embedding.name.endswith('_weight') and (others.name, others.weights) == ('2 others', 16)


def test_layers_without_sizes_are_refused():
    with pytest.raises(InputError, match='no trained parameters'):
        layer_sizes(Graph(mx.sym.relu(mx.sym.var('data')), {'data': (2, 3)}, {'data': 'float32'}), 2)
    with pytest.raises(InputError, match='batch=0'):
        layer_sizes(graph_of(nn.Dense(2, in_units=3), (2, 3)), 0)
    with pytest.raises(InputError, match='conv: the layer has no output'):
        convolution_sizes('conv', (3, 4, 4), 8, 7)
