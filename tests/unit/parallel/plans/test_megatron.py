"""Megatron: the operators of Transformers that are split over heads, channels, words and times, and refused networks.
"""
import math

import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.registry import rule_of
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.plan_json import from_json, load, save
from mxhybrid.parallel.plans.strategies import by_name, grid
from mxhybrid.parallel.runtime.joint_work import joint_operators
from mxhybrid.parallel.runtime.network_shards import NetworkShards
from mxhybrid.parallel.sharding.box import size_of

from ....helpers.transformers import HEADS, NAMES, network


def resolved_splits(plan, name, ranks):
    """Return the graph of a network, its dimensions, and its splits by label."""
    graph, dimensions = network(name).graph()
    splits = plan.resolve(graph, dimensions, ranks).splits
    return graph, dimensions, {graph.label(operator): splits[operator.number] for operator in graph.computing}


def words_of(graph, dimensions, splits, label):
    """Return the degrees above 1 by name, with partial sums and copies."""
    operator, = (operator for operator in graph.computing if graph.label(operator) == label)
    split = splits[label]
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
    graph, dimensions = network(name).graph()
    splits = megatron(2, 2, sequence).resolve(graph, dimensions, 4).splits
    shards = NetworkShards(graph, splits)
    for operator in graph.computing:
        axis = dimensions.sample_axis((operator.number, 0))
        if axis is None or axis.rounds > 1:  # samples follow each other at each time
            continue
        half = graph.shape(operator)[axis.axis] // 2
        for rank, shard in shards.output_shards[operator.number].items():
            low, high = shard.box[axis.axis]
            assert rank // 2 * half <= low < high <= (rank // 2 + 1) * half, graph.label(operator)
        assert splits[operator.number].copies == 1 or not rule_of(operator).not_replicable


@pytest.mark.parametrize('sequence', [False, True])
def test_a_rank_has_its_part_of_weights_and_state(sequence):
    graph, dimensions = network('gpt with many words').graph()
    shards = NetworkShards(graph, megatron(4, sequence=sequence).resolve(graph, dimensions, 4).splits)
    held = [0] * 4
    for name in graph.parameters:
        for rank, box in shards.weights.boxes(name).items():
            held[rank] += size_of(box)  # an optimizer's state has the shapes of its weights' shards
    assert max(held) <= 0.27 * sum(map(math.prod, graph.parameters.values()))


@pytest.mark.parametrize('name, weight', [('gpt of one projection', 'layer0_qkv_weight'), ('gluonnlp', 'query_weight'),
                                          ('sockeye decoder', 'self_in_weight')])
def test_no_rank_has_part_of_a_projection(name, weight):
    """Each rank has a quarter: of one projection for queries, keys and values, of weights that are woven together, and
    of a projection after which `split` and `concat` do not keep the features of a head together.
    """
    graph, dimensions = network(name).graph()
    shards = NetworkShards(graph, megatron(4).resolve(graph, dimensions, 4).splits)
    sizes = {size_of(box) for box in shards.weights.boxes(weight).values()}
    assert sizes == {math.prod(graph.parameters[weight]) // 4}


@pytest.mark.parametrize('samples, expected', [(1, (0, 1)), (2, (0, 1, 4, 5))])
def test_with_fewer_samples_than_groups_some_groups_have_them(samples, expected):
    graph, dimensions = network('gpt', samples).graph()
    splits = megatron(2, 3).resolve(graph, dimensions, 6).splits
    by_label = {graph.label(operator): splits[operator.number] for operator in graph.computing}
    assert by_label['layer0_out'].ranks == expected
    assert set(by_label['layer0_norm1'].ranks) >= set(expected)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('samples', [1, 2, 3])
def test_batches_of_other_sizes_need_no_other_weights(name, samples):
    plan, shards = megatron(2, 2, sequence=True), {}
    for count in (4, samples):
        graph, dimensions = network(name, count).graph()
        shards[count] = NetworkShards(graph, plan.resolve(graph, dimensions, 4).splits)
    assert shards[samples].weights.adopt(shards[4].weights) == ''


def test_an_odd_vocabulary_is_tied_to_its_rows():
    graph, dimensions = network('gpt').graph()
    shards = NetworkShards(graph, megatron(4).resolve(graph, dimensions, 4).splits)
    assert [shards.weights.boxes('words_weight')[rank][0] for rank in range(4)] == [(0, 3), (3, 7), (7, 10), (10, 14)]


def test_copies_are_reported_as_a_choice_of_the_plan():
    graph, dimensions = network('gpt').graph()
    splits = megatron(2).resolve(graph, dimensions, 2).splits
    notes = joint_operators(graph, dimensions, splits, 2)
    reasons = {graph.label(graph.operators[number]): note for number, note in notes.items()}
    assert reasons['layer0_norm1'].endswith(': the plan has copies of it') and 'layer0_query' not in reasons


def test_another_number_of_workers_is_refused():
    with pytest.raises(InputError, match=r'plan: megatron of model 2 x batch 2 is for 4 workers, but the job has 6: '
                                         r'choose model and batch whose product is 6'):
        resolved_splits(megatron(2, 2), 'gpt', 6)


def test_heads_that_are_not_divided_are_refused():
    with pytest.raises(InputError, match='cannot split the 4 heads of layer0_query: model=3 does not divide them: give '
                                         'model as one of 1, 2, 4'):
        resolved_splits(megatron(3), 'gpt', 3)


def dense_network():
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Dense(8, in_units=4, activation='relu'), nn.Dense(3, in_units=8))
    net.initialize()
    return traced(net, (4, 4))


def test_a_network_without_attention_and_pairs_is_refused():
    found = dense_network()
    with pytest.raises(InputError, match=r'in the network: give another plan, such as grid\(model=2, batch=1'):
        megatron(2).resolve(found.graph, found.dimensions, 2)
    assert megatron(1, 2).resolve(found.graph, found.dimensions, 2).splits


@pytest.mark.parametrize('values, words', [
    ({'model': 0}, 'megatron: model=0: give a whole number'), ({'model': True}, 'megatron: model=True'),
    ({'model': '2'}, "megatron: model='2'"), ({'model': 2, 'batch': 1.0}, 'megatron: batch=1.0'),
    ({'model': 2, 'sequence': 1}, 'megatron: sequence=1: give True or False'), ({}, "'megatron' has no model"),
    ({'model': 2, 'heads': 2}, 'heads is not a key of a plan')], ids=str)
def test_bad_values_are_refused(values, words):
    with pytest.raises(InputError) as raised:
        from_json({'plan': 'megatron', **values})
    assert words in str(raised.value)


def test_a_file_keeps_the_plan(tmp_path):
    path = str(tmp_path / 'plan.json')
    save(path, megatron(2, 3, sequence=True))
    assert load(path).as_json() == megatron(2, 3, sequence=True).as_json()


# -- heads by pattern ----------------------------------------------------------------------------------------------


def test_heads_by_pattern():
    """Heads are a dimension, channels or partial sums; layers without heads follow."""
    resolved = resolved_splits(by_name({'layer0_*': {'heads': 2}, 'gemm2*': {'heads': 4}}), 'gpt', 4)
    graph, _, _ = resolved
    assert words_of(*resolved, 'layer0_query') == {'channels': 2}
    assert words_of(*resolved, 'layer0_out') == {'partials': 2}
    assert words_of(*resolved, 'gemm20') == words_of(*resolved, 'gemm21') == {'heads': 4}
    assert words_of(*resolved, 'layer0_norm1') == {'samples': 4}
    assert any(graph.label(operator) == 'layer0_norm1' for operator in graph.computing)


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


@pytest.mark.parametrize('values, words', [
    ({'sequence': 0}, 'grid: sequence=0'), ({'sequence': 2, 'domain': [2]}, 'grid: domain=[2] and sequence=2: give')],
    ids=str)
def test_grids_that_are_refused(values, words):
    with pytest.raises(InputError) as raised:
        from_json({'plan': 'grid', **values})
    assert words in str(raised.value)


def test_a_file_keeps_a_grid_over_times(tmp_path):
    path = str(tmp_path / 'plan.json')
    save(path, grid(2, 3, sequence=4))
    assert load(path).as_json() == grid(2, 3, sequence=4).as_json()
    with pytest.raises(InputError, match='for 24 workers, but the job has 8'):
        load(path).check(8)
    assert 'sequence' not in grid(2).as_json()
