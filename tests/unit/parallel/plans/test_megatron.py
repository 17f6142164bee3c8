"""Megatron splits Transformers over heads, channels, words, times and experts, and refuses other networks."""
import math

import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.strategies import by_name, grid
from mxhybrid.parallel.runtime.joint_work import joint_operators
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.sharding.box import size_of

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import labelled
from ....helpers.transformer_variants import EXPERTS, VARIANTS, variant
from ....helpers.transformers import HEADS, NAMES, network


def resolved(case, plan, ranks):
    """Return the graph of a network, its dimensions, and the plan for it."""
    graph, dimensions = case.graph()
    return graph, dimensions, plan.resolve(graph, dimensions, ranks)


def shards_of(case, plan, ranks):
    """Return the graph of a network, and its shards."""
    graph, _, plan = resolved(case, plan, ranks)
    return graph, NetworkShards(graph, plan.splits)


def resolved_splits(plan, name, ranks):
    """Return the graph of a network, its dimensions, and its splits by label."""
    graph, dimensions, plan = resolved(network(name), plan, ranks)
    return graph, dimensions, labelled(graph, plan.splits)


def operator_of(graph, label):
    operator, = (operator for operator in graph.computing if graph.label(operator) == label)
    return operator


def words_of(graph, dimensions, splits, label):
    """Return the degrees above 1 by name, with partial sums and copies."""
    operator, split = operator_of(graph, label), splits[label]
    degrees = {name: degree for name, degree in zip(dimensions.names(operator), split.degrees) if degree > 1}
    return {**degrees, **{key: count for key, count in (('partials', split.partials), ('copies', split.copies))
                          if count > 1}}


@pytest.mark.parametrize('sequence', [False, True])
def test_the_layers_of_a_gpt(sequence):
    graph_and_splits = resolved_splits(megatron(2, 2, sequence), 'gpt', 4)
    between = {'samples': 2, 'length': 2} if sequence else {'samples': 2, 'copies': 2}
    expected = {
        'words': {'samples': 2, 'partials': 2}, 'broadcast_add0': between, 'dropout0': {'samples': 2, 'length': 2},
        'layer0_norm1': between, 'layer0_query': {'samples': 2, 'channels': 2},
        'gemm20': {'samples': 2, 'heads': 2}, 'softmax0': {'samples': 2, 'heads': 2},
        'dropout1': {'samples': 2, 'heads': 2}, 'layer0_out': {'samples': 2, 'partials': 2}, '_plus0': between,
        'layer0_ffn1': {'samples': 2, 'channels': 2}, 'erf0': {'samples': 2, 'channels': 2},
        'dropout3': {'samples': 2, 'channels': 2}, 'layer0_ffn2': {'samples': 2, 'partials': 2}, 'norm': between,
        'decoder': {'samples': 2, 'channels': 2}, 'log_softmax0': {'samples': 2, 'channels': 2},
        'pick0': {'samples': 2, 'partials': 2}, 'mean0': {'samples': 2, 'copies': 2}}
    assert {label: words_of(*graph_and_splits, label) for label in expected} == expected


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('sequence', [False, True])
def test_a_group_of_ranks_has_its_samples(name, sequence):
    """Rank b * model + m has the samples of group b, wherever samples and times are."""
    graph, dimensions, plan = resolved(network(name), megatron(2, 2, sequence), 4)
    shards = NetworkShards(graph, plan.splits)
    for operator in graph.computing:
        axis = dimensions.sample_axis((operator.number, 0))
        if axis is None or axis.rounds > 1:  # samples follow each other at each time
            continue
        half = graph.shape(operator)[axis.axis] // 2
        for rank, shard in shards.output_shards[operator.number].items():
            low, high = shard.box[axis.axis]
            assert rank // 2 * half <= low < high <= (rank // 2 + 1) * half, graph.label(operator)
        assert plan.splits[operator.number].copies == 1 or not rule_of(operator).not_replicable


@pytest.mark.parametrize('sequence', [False, True])
def test_a_rank_has_its_part_of_weights_and_state(sequence):
    graph, shards = shards_of(network('gpt with many words'), megatron(4, sequence=sequence), 4)
    held = [0] * 4
    for name in graph.parameters:
        for rank, box in shards.weights.boxes(name).items():
            held[rank] += size_of(box)  # an optimizer's state has the shapes of its weights' shards
    assert max(held) <= 0.27 * sum(map(math.prod, graph.parameters.values()))


@pytest.mark.parametrize('name, weight', [('gpt of one projection', 'layer0_qkv_weight'), ('gluonnlp', 'query_weight'),
                                          ('sockeye decoder', 'self_in_weight')])
def test_each_rank_has_a_quarter_of_a_projection(name, weight):
    """Also of weights that are woven together, and where `split` and `concat` take the features of a head apart."""
    graph, shards = shards_of(network(name), megatron(4), 4)
    sizes = {size_of(box) for box in shards.weights.boxes(weight).values()}
    assert sizes == {math.prod(graph.parameters[weight]) // 4}


@pytest.mark.parametrize('samples, expected', [(1, (0, 1)), (2, (0, 1, 4, 5))])
def test_with_fewer_samples_than_groups_some_groups_have_them(samples, expected):
    graph, _, plan = resolved(network('gpt', samples), megatron(2, 3), 6)
    by_label = labelled(graph, plan.splits)
    assert by_label['layer0_out'].ranks == expected
    assert set(by_label['layer0_norm1'].ranks) >= set(expected)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('samples', [1, 2, 3])
def test_batches_of_other_sizes_need_no_other_weights(name, samples):
    many, few = (shards_of(network(name, count), megatron(2, 2, sequence=True), 4)[1] for count in (4, samples))
    assert few.weights.adopt(many.weights) == ''


def test_an_odd_vocabulary_is_tied_to_its_rows():
    _, shards = shards_of(network('gpt'), megatron(4), 4)
    assert [shards.weights.boxes('words_weight')[rank][0] for rank in range(4)] == [(0, 3), (3, 7), (7, 10), (10, 14)]


def test_copies_are_reported_as_a_choice_of_the_plan():
    graph, dimensions, plan = resolved(network('gpt'), megatron(2), 2)
    reasons = labelled(graph, joint_operators(graph, dimensions, plan.splits, 2))
    assert reasons['layer0_norm1'].endswith(': the plan has copies of it') and 'layer0_query' not in reasons


def test_another_number_of_workers_is_refused():
    with pytest.raises(InputError, match=r'plan: megatron of model 2 x batch 2 is for 4 workers, but the job has 6: '
                                         r'choose model and batch whose product is 6'):
        resolved_splits(megatron(2, 2), 'gpt', 6)


def test_heads_that_are_not_divided_are_refused():
    for case, words in ((network('gpt'), '4 heads of layer0_query: model=3 does not divide them: give model as one of '
                                         '1, 2, 4'),
                        (variant('gqa grouped'), '8 heads of query: model=3 does not divide them: give model as one of '
                                                 '1, 2, 4, 8')):
        with pytest.raises(InputError, match='cannot split the ' + words):
            resolved(case, megatron(3), 3)


def test_a_network_without_attention_and_pairs_is_refused():
    found = traced(initialised(Net(lambda: [nn.Dense(8, in_units=4, activation='relu'), nn.Dense(3, in_units=8)])),
                   (4, 4))
    with pytest.raises(InputError, match=r'in the network: give another plan, such as grid\(model=2, batch=1'):
        megatron(2).resolve(found.graph, found.dimensions, 2)
    assert megatron(1, 2).resolve(found.graph, found.dimensions, 2).splits


@pytest.mark.parametrize('values, words', [
    ({'model': 0}, 'megatron: model=0: give a whole number'), ({'model': True}, 'megatron: model=True'),
    ({'model': '2'}, "megatron: model='2'"), ({'model': 2, 'batch': 1.0}, 'megatron: batch=1.0'),
    ({'model': 2, 'sequence': 1}, 'megatron: sequence=1: give True or False'), ({}, "'megatron' has no model"),
    ({'model': 2, 'heads': 2}, 'heads is not a key of a plan'), ({'plan': 'grid', 'sequence': 0}, 'grid: sequence=0'),
    ({'plan': 'grid', 'sequence': 2, 'domain': [2]}, 'grid: domain=[2] and sequence=2: give')], ids=str)
def test_bad_values_are_refused(values, words):
    with pytest.raises(InputError) as raised:
        from_json({'plan': 'megatron', **values})
    assert words in str(raised.value)


# -- heads by pattern ----------------------------------------------------------------------------------------------


def test_heads_by_pattern():
    """Heads are a dimension, channels or partial sums; layers without heads follow."""
    found = resolved_splits(by_name({'layer0_*': {'heads': 2}, 'gemm2*': {'heads': 4}}), 'gpt', 4)
    assert words_of(*found, 'layer0_query') == {'channels': 2}
    assert words_of(*found, 'layer0_out') == {'partials': 2}
    assert words_of(*found, 'gemm20') == words_of(*found, 'gemm21') == {'heads': 4}
    assert words_of(*found, 'layer0_norm1') == {'samples': 4}


def test_heads_with_samples_and_ranks():
    found = resolved_splits(by_name({'interleaved*': {'heads': 2, 'samples': 2, 'ranks': [3, 2, 1, 0]}}), 'sockeye', 4)
    assert words_of(*found, 'interleaved_matmul_selfatt_qk0') == {'samples': 2, 'heads': 2}
    assert words_of(*found, 'interleaved_matmul_selfatt_valatt0') == {'samples': 2, 'channels': 2}
    assert found[2]['interleaved_matmul_encdec_qk0'].ranks == (3, 2, 1, 0)


@pytest.mark.parametrize('by_pattern, words', [
    ({'*ffn*': {'heads': 2}}, "plan: '*ffn*' has heads=2, but none of the operators that it matches has heads of "
                              'attention: it matches layer0_ffn1, layer0_ffn2, layer1_ffn1, layer1_ffn2'),
    ({'*query': {'heads': 3}}, 'plan: layer0_query has %d heads, which heads=3 does not divide: give one of 1, 2, 4'
     % HEADS),
    ({'*query': {'heads': 0}}, "plan: '*query' has heads=0: give a whole number of at least 1"),
    ({'*query': {'heads': 2, 'channels': 2}}, "plan: '*query' has heads and channels: give heads alone"),
    ({'*query': {'heads': 2, 'partials': 2}}, "plan: '*query' has heads and partials: give heads alone")], ids=str)
def test_heads_that_cannot_be_split_are_refused(by_pattern, words):
    with pytest.raises(InputError) as raised:
        resolved_splits(by_name(by_pattern), 'gpt', 4)
    assert words in str(raised.value)


# -- grids over times ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name, score', [('gpt', 'gemm20'), ('sockeye', 'interleaved_matmul_encdec_qk0')])
def test_a_grid_over_times(name, score):
    found = resolved_splits(grid(2, 1, sequence=3), name, 6)
    dense_layer = 'layer0_query' if name == 'gpt' else 'self_in'
    assert words_of(*found, dense_layer) == {'length': 3, 'channels': 2}
    assert words_of(*found, 'softmax0') == {'length': 6}
    batched = resolved_splits(grid(1, 2, sequence=2), name, 4)
    assert words_of(*batched, score) == {'samples': 2, 'length': 2}
    norm = 'layer0_norm1' if name == 'gpt' else 'norm1'
    assert batched[2][norm].ranks == ((0, 1, 2, 3) if name == 'gpt' else (0, 2, 1, 3))


def test_the_times_of_a_grid_are_a_factor():
    with pytest.raises(InputError, match='for 24 workers, but the job has 8'):
        grid(2, 3, sequence=4).check(8)
    assert 'sequence' not in grid(2).as_json()


# -- few heads of keys, windows, and mixtures of experts -----------------------------------------------------------

#: Weights that all workers hold: LayerNorm, biases after sums, gates of which some need those of all experts.
WHOLE = ('norm_gamma', 'norm_beta', 'out_bias', 'o_bias', 'router_weight', 'router_bias', 'positions')
#: The largest number of parts of keys' and values' projections, whose only head has two features.
FEW_PARTS = 2


def parts_of(graph, splits):
    """Return the number of workers by which a weight is divided, by its name, for the largest part."""
    shards = NetworkShards(graph, splits)
    return {name: math.prod(shape) / max(map(size_of, shards.weights.boxes(name).values()))
            for name, shape in graph.parameters.items()}


@pytest.mark.parametrize('name', sorted(set(VARIANTS) - {'swin', 'moe of 2', 'moe of 6'}))
@pytest.mark.parametrize('model', [2, 4])
@pytest.mark.parametrize('sequence', [False, True])
def test_a_worker_has_its_part_of_each_matrix(name, model, sequence):
    graph, _, plan = resolved(variant(name), megatron(model, sequence=sequence), model)
    for weight, parts in parts_of(graph, plan.splits).items():
        if not weight.endswith(WHOLE):
            most = FEW_PARTS if name.startswith('mqa') and weight.startswith(('key', 'value')) else model
            assert parts == min(most, model), weight


@pytest.mark.parametrize('name, parts, words', [
    ('moe of 2', 2, 'its weight is in 2 parts; 2 experts are fewer than the 4 workers of a group, so several workers '
     'have each'), ('moe of 6', 3, None)])
def test_experts_need_not_be_as_many_as_workers(name, parts, words):
    graph, _, plan = resolved(variant(name), megatron(4), 4)
    found = parts_of(graph, plan.splits)
    assert {found[weight] for weight in ('up', 'up_bias', 'down', 'down_bias')} == {parts}
    assert labelled(graph, plan.notes) == ({'batch_dot0': words, 'batch_dot1': words} if words else {})


@pytest.mark.parametrize('name, words', [
    ('gqa repeat', 'its weight is in 4 parts; 2 heads are fewer than the 4 workers of a group'),
    ('gqa grouped', 'its weight is in 4 parts; 2 heads are fewer than the 4 workers of a group'),
    ('mqa heads first', 'its weight is in 2 parts; no worker has whole heads of its output')])
def test_projections_that_workers_share_are_named(name, words):
    graph, _, plan = resolved(variant(name), megatron(4), 4)
    notes = labelled(graph, plan.notes)
    assert sorted(notes) == ['key', 'value'] and all(note.startswith(words) for note in notes.values()), notes


def test_groups_and_their_heads_are_both_divided():
    """Two groups of heads on four workers: each has half of the heads of a group."""
    graph, dimensions, plan = resolved(variant('gqa grouped'), megatron(4), 4)
    splits = labelled(graph, plan.splits)
    assert splits['batch_dot0'].degrees == (1, 2, 2, 1) and splits['batch_dot0'].copies == 1
    assert dimensions.names(operator_of(graph, 'batch_dot0'))[:2] == ('samples', 'heads')
    assert dimensions.names(operator_of(graph, 'reshape0'))[2:4] == ('heads', 'queries')  # of queries
    assert splits['reshape2'].copies == 2  # of keys


@pytest.mark.parametrize('name', ['swin', 'swin shifted', 'swin of positions'])
def test_windows_are_no_heads(name):
    graph, _ = variant(name).graph()
    heads = 2 if name == 'swin' else 4
    assert {found.total for all_heads in graph.heads_of.values() for found in all_heads} == {heads}
    if heads == 2:
        with pytest.raises(InputError, match='cannot split the 2 heads of qkv'):
            resolved(variant(name), megatron(4), 4)


def test_gates_of_all_experts_are_computed_by_all():
    graph, _, plan = resolved(variant('moe top'), megatron(2), 2)
    splits = labelled(graph, plan.splits)
    for label in ('router', 'softmax0', 'topk0', 'sum1', 'transpose0'):
        assert splits[label].copies == 2, label
    assert splits['broadcast_axis0'].degrees == splits['batch_dot1'].degrees == splits['broadcast_mul0'].degrees == (
        2, 1, 1)
    assert splits['sum2'].partials == 2


def test_experts_are_a_dimension_of_patterns():
    graph, _, plan = resolved(variant('moe'), by_name({
        'broadcast_axis*': {'experts': EXPERTS}, 'batch_dot*': {'experts': EXPERTS}, 'sum*': {'partials': EXPERTS}}), 4)
    assert parts_of(graph, plan.splits)['up'] == 4
