"""Blocks whose activations are computed again in the backward pass: the same bits as without, on every rank."""
import numpy as np
import pytest
from lab.jobs import run_job
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.plan import Plan
from mxhybrid.parallel.plans.recompute import recomputed_segments
from mxhybrid.parallel.plans.strategies import by_name, grid

from ...helpers.gluon_nets import Net, in_turn, initialised
from ...helpers.split_networks import assert_equal_to_whole, run_whole, weights_of
from . import BODIES

UNITS, HEADS, TIMES, SAMPLES, WORDS = 8, 4, 6, 4, 14


def dense(units, in_units=UNITS):
    return nn.Dense(units, flatten=False, in_units=in_units)


def layer(number):
    """Return a layer of a Transformer."""
    def call(F, x, query, key, value, out, attention_norm, wide_norm, wide, narrow):
        normed = attention_norm(x)
        queries, keys, values = (F.transpose(F.reshape(part(normed), shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
                                 for part in (query, key, value))
        scores = F.softmax(F.linalg.gemm2(queries, keys, transpose_b=True, alpha=0.5))
        context = F.linalg.gemm2(F.Dropout(scores, p=0.0), values)
        context = F.reshape(F.transpose(context, axes=(0, 2, 1, 3)), shape=(0, 0, -1))
        x = x + F.Dropout(out(context), p=0.0)
        return x + F.Dropout(narrow(F.tanh(wide(wide_norm(x)))), p=0.0)
    return Net(lambda: [*(dense(UNITS) for _ in range(4)), *(nn.LayerNorm(in_channels=UNITS) for _ in range(2)),
                        dense(4 * UNITS), dense(UNITS, 4 * UNITS)], call, 'layer%d_' % number)


def transformer():
    """Return a language model with its loss; the output layer has the weight of the embedding."""
    def make():
        words = nn.Embedding(WORDS, UNITS, prefix='words_')
        decoder = nn.Dense(WORDS, flatten=False, use_bias=False, in_units=UNITS, prefix='words_', params=words.params)
        return [words, nn.LayerNorm(in_channels=UNITS), decoder, *map(layer, range(3))]

    def call(F, ids, labels, words, norm, decoder, *layers):
        return F.mean(-F.pick(F.log_softmax(decoder(norm(in_turn(F, words(ids), *layers)))), labels), axis=1)
    return Net(make, call)


def images():
    """Return a network of two blocks of convolutions and BatchNorm, with residual sums; it calls one block twice."""
    def block(number, channels):
        return Net(lambda: [nn.Conv2D(4, 3, padding=1, in_channels=channels), nn.BatchNorm(in_channels=4),
                            nn.Activation('tanh')], prefix='part%d_' % number)

    def call(F, x, first, second, last):
        x = first(x)
        x = x + second(x)
        return last(F.sin(x) + second(x))
    return Net(lambda: [block(0, 3), block(1, 4), nn.Dense(5)], call)


def ready(net, shapes, dtype='float64'):
    """Return a traced network, data and weights."""
    network = traced(initialised(net, dtype=dtype), shapes, dtype=dtype)
    rng = np.random.RandomState(0)
    data = {name: (rng.randint(0, WORDS, shape) if len(shape) == 2 else rng.uniform(-1, 1, shape)).astype(dtype)
            for name, shape in network.graph.data.items()}
    weights = {name: array.astype(dtype) for name, array in weights_of(network.symbol, data, 1).items()}
    return network, data, weights


def segments_of(network, *patterns):
    """Return the segments of blocks."""
    return recomputed_segments(network.graph, network.blocks, patterns, {}, set(), True)


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
def test_a_transformer_has_the_same_bits(ranks_of, count, plan, dtype):
    network, data, weights = ready(transformer(), [(SAMPLES, TIMES)] * 2, dtype)
    (outputs, gradients, before), (again, gradients_again, redistributions) = run_twice(
        ranks_of(count), network, data, weights, plan, 'layer*')
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
def test_a_network_with_joint_statistics(ranks_of, count, plan):
    network, data, weights = ready(images(), (4, 3, 6, 6))
    _, outcome = run_twice(ranks_of(count), network, data, weights, plan, 'part*')
    assert_equal_to_whole(outcome, run_whole(network.symbol, data, weights), 1e-10)


@pytest.mark.parametrize('training', [True, False])
def test_both_passes_drop_the_same(ranks_of, training):
    """The gradient of the data is that of the elements that the forward pass kept."""
    net = Net(lambda: [Net(lambda: [nn.Dense(400, flatten=False, use_bias=False, in_units=300), nn.Dropout(0.4)],
                           prefix='inner_')])
    network, data, weights = ready(net, (4, 3, 300))
    splits = Plan().resolve(network.graph, network.dimensions, 2).splits
    outputs, gradients, _ = ranks_of(2).run(network.symbol, data, weights, splits, training,
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
    stored, recomputed = (run_job(BODIES / 'recompute_memory.py', 'none', workers=1, args=patterns,
                                  timeout=60).ok().results[0] for patterns in ([], ['part*']))
    assert recomputed['gradient'] == stored['gradient'] != 0
    assert stored['grown'] > 90 * stored['array']
    assert recomputed['grown'] < 0.6 * stored['grown'], (recomputed, stored)
