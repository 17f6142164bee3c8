"""Small networks and clusters to plan, and operator times without a measurement."""
import numpy as np
from lab.benchmark.transformers import Gpt
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.parallel.sharding.box import size_of
from mxhybrid.planner.cluster.cluster_spec import COST_KINDS, Cluster, Host, TransferCost
from mxhybrid.planner.planner import Planner
from mxhybrid.planner.simulator.resource_groups import TokenBucket

from .gluon_nets import Net, in_turn, initialised

BATCH = 8
#: Two hosts of two cores, which have four fifths of their speed while both are busy.
SLOWED = tuple(Host('host%d' % number, 2, 2.0, 0.0, 0.8, None, (1.0, 0.8)) for number in range(2))


def network():
    """Return a network of convolutions with statistics and a shortcut, then dense layers."""
    def shortcut():
        return Net(lambda: [nn.Conv2D(8, 3, padding=1, in_channels=8), nn.BatchNorm(), nn.Activation('relu')],
                   prefix='shortcut0_')

    def call(F, data, first, shortcut, *layers):
        data = first(data)
        return in_turn(F, shortcut(data) + data, *layers)
    return initialised(Net(lambda: [nn.Conv2D(8, 3, padding=1, in_channels=3), shortcut(), nn.MaxPool2D(2),
                                    nn.Flatten(), nn.Dense(64, activation='relu'), nn.Dense(16)], call))


def recommender(users=5000, items=40):
    """Return a network with a large table and a small one; a sample names few rows."""
    def call(F, ids, users, items, deep):
        return deep(F.concat(users(ids.slice_axis(axis=1, begin=0, end=4)).flatten(),
                             items(ids.slice_axis(axis=1, begin=4, end=20)).flatten()))
    return initialised(Net(lambda: [nn.Embedding(users, 16, sparse_grad=True),
                                    nn.Embedding(items, 4, sparse_grad=True), nn.Dense(8, in_units=128)], call))


def transformer(units=16, heads=2, words=50, positions=20):
    """Return a block of BERT as in GluonNLP 0.10: it reads words, types of segments, and counts of valid words."""

    class Block(gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix='net_')
            with self.name_scope():
                self.word, self.segment = nn.Embedding(words, units), nn.Embedding(2, units)
                self.position = nn.Embedding(positions, units)
                self.query_key_value = nn.Dense(3 * units, flatten=False, in_units=units)
                self.projection = nn.Dense(units, flatten=False, in_units=units)
                self.wide = nn.Dense(2 * units, flatten=False, in_units=units)
                self.narrow = nn.Dense(units, flatten=False, in_units=2 * units)
                self.gelu = nn.GELU()
                self.norms = nn.HybridSequential()
                with self.norms.name_scope():
                    self.norms.add(*(nn.LayerNorm(in_channels=units) for _ in range(3)))
                self.dropout = nn.Dropout(0.1)
                self.pooler = nn.Dense(units, activation='tanh', flatten=False, in_units=units)

        def hybrid_forward(self, F, ids, segments, valid):
            norms = list(self.norms._children.values())
            hidden = self.word(ids) + self.segment(segments)
            positions = F.contrib.arange_like(hidden, axis=1)
            hidden = F.broadcast_add(hidden, F.expand_dims(self.position(positions), axis=0))
            hidden = self.dropout(norms[0](hidden)).transpose((1, 0, 2))
            projected = self.query_key_value(hidden)
            scores = F.contrib.interleaved_matmul_selfatt_qk(projected, heads=heads)
            mask = F.broadcast_lesser(F.reshape(positions, shape=(1, -1)), F.reshape(valid, shape=(-1, 1)))
            mask = F.repeat(F.expand_dims(mask, axis=1), repeats=heads, axis=0)
            weights = F.softmax(F.broadcast_add(scores, 1e4 * (mask - 1)), axis=-1)
            attended = F.contrib.interleaved_matmul_selfatt_valatt(projected, self.dropout(weights), heads=heads)
            hidden = norms[1](hidden + self.projection(attended))
            hidden = norms[2](hidden + self.narrow(self.gelu(self.wide(hidden))))
            hidden = F.SequenceMask(hidden, sequence_length=valid, use_sequence_length=True)
            return self.pooler(F.reshape(F.slice_axis(hidden, axis=0, begin=0, end=1), shape=(-3, 0)))

    return initialised(Block())


def gpt(layers=2, units=16, heads=2, words=40, times=8):
    """Return a language model of layers of attention, which returns the loss of each sample."""
    return initialised(Gpt(layers, units, heads, words, times))


def mixture(units=64, hidden=256, experts=4):
    """Return a network with a mixture of experts, which have most of its weights, and gates for all of them."""
    def call(F, x, first, router, up, down):
        rows = first(x)
        spread = F.broadcast_axis(F.expand_dims(rows, axis=0), axis=0, size=experts)
        outputs = F.batch_dot(F.relu(F.batch_dot(spread, up)), down)
        gates = F.expand_dims(F.transpose(F.softmax(router(rows))), axis=2)
        return F.mean((rows + F.sum(F.broadcast_mul(outputs, gates), axis=0)) ** 2, axis=1)
    return initialised(Net(
        lambda: [nn.Dense(units, in_units=units), nn.Dense(experts, in_units=units)], call, 'experts_',
        up={'shape': (experts, units, hidden)}, down={'shape': (experts, hidden, units)}))


def cluster(hosts=4, ranks=1, rate=1e7, cost=None, **keys):
    """Return a cluster of one core for each rank."""
    cost = cost or TransferCost(1e-4, 1e-5, 1e-9)
    link = TokenBucket(rate, **keys)
    specs = tuple(Host('host%d' % number, ranks, float(ranks)) for number in range(hosts))
    costs = dict.fromkeys(COST_KINDS, cost)
    return Cluster(specs, link, 1e-4, TokenBucket(4e9), 1e-5, costs)


class Times:
    """Operator times from the size of a shard's output, instead of measured ones."""

    def shard_seconds(self, graph, operator, shard, **_):
        """Return times as :meth:`mxhybrid.planner.profiling.operator_profiler.OperatorProfiler.shard_seconds`."""
        element_s = {'Convolution': 1e-7, 'FullyConnected': 1e-6}.get(operator.op, 1e-9)
        seconds = size_of(shard.box) * element_s / shard.partials
        return seconds, 2 * seconds

    def conversion_seconds(self, shape, measure=True):
        """Return the time of a conversion between layouts, from the number of elements."""
        return 1e-8 * np.prod(shape)

    def program_seconds(self, *_, **__):
        """Return None: no program is timed as a whole."""

    def measure(self, graph, shards, **_):
        """Measure nothing."""
        return 0

    def save(self):
        """Save nothing."""


def make_planner(on=None, net=None, data=(BATCH, 3, 8, 8), **keys):
    """Return a planner, by default of the small network."""
    return Planner(net or network(), data, on or cluster(), Times(), **keys)
