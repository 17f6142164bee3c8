"""Networks whose operators are timed."""
import mxnet as mx
from mxnet.gluon import nn

from mxhybrid.parallel.ops.registry import collectives
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.runtime.input_shards import InputShards
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.runtime.rank_program import ProgramSpec
from mxhybrid.parallel.sharding.split import OutputShard
from mxhybrid.planner.profiling.local_program import local_program
from tests.helpers.gluon_nets import Net, in_turn, initialised


def images_net():
    """Return a network of convolutions and a dense layer, with a loss."""
    return Net(lambda: [nn.Conv2D(8, 3, padding=1, in_channels=4), nn.BatchNorm(in_channels=8), nn.Activation('relu'),
                        nn.Conv2D(8, 3, padding=1, in_channels=8), nn.Activation('relu'),
                        nn.Conv2D(8, 3, padding=1, in_channels=8), nn.Dense(12, in_units=8 * 64),
                        mx.gluon.loss.SoftmaxCrossEntropyLoss()],
               lambda F, images, labels, *layers: layers[-1](in_turn(F, images, *layers[:-1]), labels))


def words_net():
    """Return an embedding before a recurrent layer."""
    return Net(lambda: [nn.Embedding(30, 6), mx.gluon.rnn.LSTM(5, input_size=6)])


def positions_net():
    """Return embeddings of positions, as in BERT of GluonNLP: the ids come from an array that has gradients."""
    def call(F, data, first, position):
        hidden = first(data)
        chosen = F.pick(hidden, F.argmax(hidden, axis=-1), axis=-1, keepdims=True)
        places = position(F.contrib.arange_like(hidden, axis=1))
        return F.broadcast_add(F.broadcast_mul(hidden, chosen), F.expand_dims(places, axis=0))
    return Net(lambda: [nn.Dense(8, flatten=False, in_units=6), nn.Embedding(20, 8)], call)


def graph_of(net, data, batch_axis=0):
    return traced(initialised(net), data, batch_axis)


def operators(network, op):
    return [one for one in network.graph.computing if one.op == op]


def place(graph, operator, **cut):
    """A place with other ranges in some dimensions, by d0=, d1= and so on."""
    box = [(0, count) for count in graph.shape(operator)]
    for key, value in cut.items():
        box[int(key[1:])] = value
    return OutputShard(tuple(box))


def local_of(network, plan, ranks, rank=0):
    parts = NetworkShards(network.graph, plan.resolve(network.graph, network.dimensions, ranks).splits)
    shares = InputShards(network.graph, network.axes, network.dimensions, ranks, rank, set())
    return parts, shares, local_program(ProgramSpec(parts, shares.inputs, shares.outputs, collectives()), rank)
