"""Blocks whose activations are computed again in the backward pass: the same bits as without, on every rank."""
import numpy as np
import pytest
from lab.jobs import run_job
from mxnet import gluon
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.plan import Plan
from mxhybrid.parallel.plans.recompute import recomputed_segments
from mxhybrid.parallel.plans.strategies import by_name, grid

from ...helpers.split_networks import Ranks, run_whole, weights_of
from . import BODIES

UNITS, HEADS, TIMES, SAMPLES, WORDS = 8, 4, 6, 4, 14


class Layer(gluon.HybridBlock):
    """A layer of a Transformer."""

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self._dropout = dropout
        with self.name_scope():
            self.query, self.key, self.value, self.out = (nn.Dense(UNITS, flatten=False, in_units=UNITS, prefix=name)
                                                          for name in ('query_', 'key_', 'value_', 'out_'))
            self.norm1, self.norm2 = (nn.LayerNorm(in_channels=UNITS, prefix=name) for name in ('norm1_', 'norm2_'))
            self.wide = nn.Dense(4 * UNITS, flatten=False, in_units=UNITS, prefix='ffn1_')
            self.narrow = nn.Dense(UNITS, flatten=False, in_units=4 * UNITS, prefix='ffn2_')

    def hybrid_forward(self, F, x):
        normed = self.norm1(x)
        query, key, value = (F.transpose(F.reshape(dense(normed), shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
                             for dense in (self.query, self.key, self.value))
        scores = F.softmax(F.linalg.gemm2(query, key, transpose_b=True, alpha=0.5))
        context = F.linalg.gemm2(F.Dropout(scores, p=self._dropout), value)
        context = F.reshape(F.transpose(context, axes=(0, 2, 1, 3)), shape=(0, 0, -1))
        x = x + F.Dropout(self.out(context), p=self._dropout)
        return x + F.Dropout(self.narrow(F.tanh(self.wide(self.norm2(x)))), p=self._dropout)


class Transformer(gluon.HybridBlock):
    """A language model with its loss; the output layer has the weight of the embedding."""

    def __init__(self, dropout=0.0):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words = nn.Embedding(WORDS, UNITS, prefix='words_')
            self.layers = [Layer(dropout, prefix='layer%d_' % number) for number in range(3)]
            for layer in self.layers:
                self.register_child(layer)
            self.norm = nn.LayerNorm(in_channels=UNITS, prefix='norm_')
            self.decoder = nn.Dense(WORDS, flatten=False, use_bias=False, in_units=UNITS, prefix='words_',
                                    params=self.words.params)

    def hybrid_forward(self, F, words, labels):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return F.mean(-F.pick(F.log_softmax(self.decoder(self.norm(x))), labels), axis=1)


class Images(gluon.HybridBlock):
    """Blocks of convolutions and BatchNorm, with residual sums, of which one block is called twice."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.first = nn.HybridSequential(prefix='part0_')
            self.second = nn.HybridSequential(prefix='part1_')
            for part, inner in ((self.first, 3), (self.second, 4)):
                with part.name_scope():
                    part.add(nn.Conv2D(4, 3, padding=1, in_channels=inner), nn.BatchNorm(in_channels=4),
                             nn.Activation('tanh'))
            self.dense = nn.Dense(5)

    def hybrid_forward(self, F, x):
        x = self.first(x)
        x = x + self.second(x)
        return self.dense(F.sin(x) + self.second(x))


def ready(net, shapes, dtype='float64'):
    """Return a traced network, data and weights."""
    net.cast(dtype)
    net.initialize()
    network = traced(net, shapes, dtype=dtype)
    rng = np.random.RandomState(0)
    data = {name: (rng.randint(0, WORDS, shape) if len(shape) == 2 else rng.uniform(-1, 1, shape)).astype(dtype)
            for name, shape in network.graph.data.items()}
    weights = {name: array.astype(dtype) for name, array in weights_of(network.symbol, data, 1).items()}
    return network, data, weights


def segments_of(network, *patterns):
    """Return the segments of blocks."""
    return recomputed_segments(network.graph, network.blocks, patterns, {}, set(), True)


@pytest.fixture(scope='module')
def rank_groups():
    groups = {count: Ranks(count) for count in (1, 2, 4)}
    yield groups
    for ranks in groups.values():
        ranks.close()


def run_twice(ranks, network, data, weights, plan, *patterns):
    """Return outputs and gradients without and with recomputation, and the numbers of redistributions."""
    splits = plan.resolve(network.graph, network.dimensions, ranks.count).splits
    arguments = network.symbol, data, weights, splits
    return (ranks.run(*arguments, axes=network.axes),
            ranks.run(*arguments, axes=network.axes, segments=segments_of(network, *patterns)))


PLANS = [(1, Plan()), (2, Plan()), (2, megatron(2)), (2, megatron(2, sequence=True)), (4, megatron(4)),
         (4, megatron(2, 2, True)), (4, grid(2, sequence=2)), (4, grid(2, 2)),
         (4, by_name({'layer0_*': {'ranks': [1]}, 'layer1_*': {'ranks': [3]}, 'layer2_*': {'samples': 2}}))]


@pytest.mark.parametrize('count, plan', PLANS, ids=lambda value: getattr(value, 'name', None))
@pytest.mark.parametrize('dtype', ['float64', 'float32'])
def test_a_transformer_has_the_same_bits(rank_groups, count, plan, dtype):
    network, data, weights = ready(Transformer(), [(SAMPLES, TIMES)] * 2, dtype)
    (outputs, gradients, before), (again, gradients_again, redistributions) = run_twice(
        rank_groups[count], network, data, weights, plan, 'layer*')
    for output, output_again in zip(outputs, again):
        np.testing.assert_array_equal(output_again, output)
    assert gradients.keys() == gradients_again.keys()
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradients_again[name], gradient, name)
        assert np.abs(gradient).max() > 0 or not weights[name].ndim, name
    assert redistributions >= before
    assert redistributions > before or plan.name not in ('megatron of model 2', 'by layers')


@pytest.mark.parametrize('count, plan', [(2, Plan()), (4, grid(domain=(2, 2))), (2, by_name({'*': {'channels': 2}}))],
                         ids=['samples', 'height and width', 'channels'])
def test_a_network_with_joint_statistics(rank_groups, count, plan):
    network, data, weights = ready(Images(), (4, 3, 6, 6))
    whole, whole_gradients = run_whole(network.symbol, data, weights)
    _, (outputs, gradients, _) = run_twice(rank_groups[count], network, data, weights, plan, 'part*')
    np.testing.assert_allclose(outputs[0], whole[0], rtol=1e-10, atol=1e-10)
    for name, gradient in whole_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9, atol=1e-9, err_msg=name)


class Dropped(gluon.HybridBlock):
    """Two layers with Dropout; outputs are zero where the first one drops."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.inner = nn.HybridSequential(prefix='inner_')
            with self.inner.name_scope():
                self.inner.add(nn.Dense(400, flatten=False, use_bias=False, in_units=300), nn.Dropout(0.4))

    def hybrid_forward(self, F, x):
        return self.inner(x)


@pytest.mark.parametrize('training', [True, False])
def test_both_passes_drop_the_same(rank_groups, training):
    """The gradient of the data is that of the elements that the forward pass kept."""
    network, data, weights = ready(Dropped(), (4, 3, 300))
    splits = Plan().resolve(network.graph, network.dimensions, 2).splits
    outputs, gradients, _ = rank_groups[2].run(network.symbol, data, weights, splits, training,
                                               segments=segments_of(network, 'inner'))
    weight, plain = weights['net_inner_dense0_weight'], data['data'] @ weights['net_inner_dense0_weight'].T
    factor = 1 / 0.6 if training else 1.0
    kept = outputs[0] != 0
    assert 0.5 < kept.mean() < 0.7 if training else kept.all()
    np.testing.assert_allclose(outputs[0], kept * plain * factor, rtol=1e-6)
    gradient = np.sin(outputs[0] * 3 + 1) * kept * factor
    np.testing.assert_allclose(gradients['data'], gradient @ weight, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradients['net_inner_dense0_weight'],
                               np.einsum('sto,sti->oi', gradient, data['data']), rtol=1e-6, atol=1e-6)


def test_activations_inside_of_blocks_are_not_kept():
    """Keep 16 arrays between blocks, and 6 of one block, in place of 96; each needs gradients of the same size."""
    stored, recomputed = (run_job(BODIES / 'recompute_memory.py', 'none', workers=1, args=patterns, timeout=60).ok()
                        for patterns in ([], ['part*']))
    stored, recomputed = stored.results[0], recomputed.results[0]
    assert recomputed['gradient'] == stored['gradient'] != 0
    assert stored['grown'] > 90 * stored['array']
    assert recomputed['grown'] < 0.6 * stored['grown'], (recomputed, stored)
