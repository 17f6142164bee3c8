"""Megatron on attention with few heads of keys, in windows, and on mixtures of experts: parts of weights, and notes."""
import math

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.strategies import by_name
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.sharding.box import size_of

from ....helpers.transformer_variants import EXPERTS, HEADS, VARIANTS, variant

#: Weights that all workers hold: LayerNorm, biases after sums, gates of which some need those of all experts.
WHOLE = ('norm_gamma', 'norm_beta', 'out_bias', 'o_bias', 'router_weight', 'router_bias', 'positions')
#: The largest number of parts of keys' and values' projections, whose only head has two features.
FEW_PARTS = 2


def resolved(name, model, sequence=False):
    """Return the graph of a network and its plan."""
    graph, dimensions = variant(name).graph()
    return graph, dimensions, megatron(model, sequence=sequence).resolve(graph, dimensions, model)


def parts_of(graph, splits):
    """Return the number of workers by which a weight is divided, by its name, for the largest part."""
    shards = NetworkShards(graph, splits)
    return {name: math.prod(shape) / max(map(size_of, shards.weights.boxes(name).values()))
            for name, shape in graph.parameters.items()}


@pytest.mark.parametrize('name', sorted(set(VARIANTS) - {'swin', 'moe of 2', 'moe of 6'}))
@pytest.mark.parametrize('model', [2, 4])
@pytest.mark.parametrize('sequence', [False, True])
def test_a_worker_has_its_part_of_each_matrix(name, model, sequence):
    graph, _, plan = resolved(name, model, sequence)
    for weight, parts in parts_of(graph, plan.splits).items():
        if not weight.endswith(WHOLE):
            most = FEW_PARTS if name.startswith('mqa') and weight.startswith(('key', 'value')) else model
            assert parts == min(most, model), weight


@pytest.mark.parametrize('name, parts, words', [
    ('moe of 2', 2, 'its weight is in 2 parts; 2 experts are fewer than the 4 workers of a group, so several workers '
     'have each'), ('moe of 6', 3, None)])
def test_experts_need_not_be_as_many_as_workers(name, parts, words):
    graph, _, plan = resolved(name, 4)
    found = parts_of(graph, plan.splits)
    assert {found[weight] for weight in ('up', 'up_bias', 'down', 'down_bias')} == {parts}
    assert {graph.label(graph.operators[number]): note for number, note in plan.notes.items()} == (
        {'batch_dot0': words, 'batch_dot1': words} if words else {})


@pytest.mark.parametrize('name, words', [
    ('gqa repeat', 'its weight is in 4 parts; 2 heads are fewer than the 4 workers of a group'),
    ('gqa grouped', 'its weight is in 4 parts; 2 heads are fewer than the 4 workers of a group'),
    ('mqa heads first', 'its weight is in 2 parts; no worker has whole heads of its output')])
def test_projections_that_workers_share_are_named(name, words):
    graph, _, plan = resolved(name, 4)
    notes = {graph.label(graph.operators[number]): note for number, note in plan.notes.items()}
    assert sorted(notes) == ['key', 'value'] and all(note.startswith(words) for note in notes.values()), notes


def test_groups_and_their_heads_are_both_divided():
    """Two groups of heads on four workers: each has half of the heads of a group."""
    graph, dimensions, plan = resolved('gqa grouped', 4)
    operator, = (operator for operator in graph.computing if graph.label(operator) == 'batch_dot0')
    assert plan.splits[operator.number].degrees == (1, 2, 2, 1) and plan.splits[operator.number].copies == 1
    assert dimensions.names(operator)[:2] == ('samples', 'heads')
    query, key = (operator for operator in graph.computing if graph.label(operator) in ('reshape0', 'reshape2'))
    assert dimensions.names(query)[2:4] == ('heads', 'queries')
    assert plan.splits[key.number].copies == 2


def test_three_workers_share_no_heads_in_groups():
    with pytest.raises(InputError, match='cannot split the %d heads of query: model=3 does not divide them: give model '
                                         'as one of 1, 2, 4, 8' % HEADS):
        resolved('gqa grouped', 3)


@pytest.mark.parametrize('name', ['swin', 'swin shifted', 'swin of positions'])
def test_windows_are_no_heads(name):
    graph, _ = variant(name).graph()
    heads = 2 if name == 'swin' else 4
    assert {found.total for all_heads in graph.heads_of.values() for found in all_heads} == {heads}
    if heads == 2:
        with pytest.raises(InputError, match='cannot split the 2 heads of qkv'):
            resolved(name, 4)


def test_gates_of_all_experts_are_computed_by_all():
    graph, _, plan = resolved('moe top', 2)
    splits = {graph.label(operator): plan.splits[operator.number] for operator in graph.computing}
    for label in ('router', 'softmax0', 'topk0', 'sum1', 'transpose0'):
        assert splits[label].copies == 2, label
    assert splits['broadcast_axis0'].degrees == splits['batch_dot1'].degrees == splits['broadcast_mul0'].degrees == (
        2, 1, 1)
    assert splits['sum2'].partials == 2


def test_experts_are_a_dimension_of_patterns():
    graph, dimensions = variant('moe').graph()
    splits = by_name({'broadcast_axis*': {'experts': EXPERTS}, 'batch_dot*': {'experts': EXPERTS},
                     'sum*': {'partials': EXPERTS}}).resolve(graph, dimensions, 4).splits
    assert parts_of(graph, splits)['up'] == 4
