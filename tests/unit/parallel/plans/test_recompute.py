"""Patterns of blocks that are computed again in the backward pass, and their segments."""
import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.megatron import megatron
from mxhybrid.parallel.plans.pipeline_plan import pipeline
from mxhybrid.parallel.plans.plan import Plan
from mxhybrid.parallel.plans.plan_json import from_json, load, save
from mxhybrid.parallel.plans.recompute import recompute_patterns, recomputed_segments
from mxhybrid.parallel.runtime.layout_table import recompute_lines
from mxhybrid.parallel.runtime.recomputed_segment import in_order

from ....helpers.gluon_nets import Net, initialised
from ....helpers.split_programs import labelled


def layers():
    return [Net(lambda: [nn.Dense(4, in_units=4), nn.Activation('tanh')], prefix='layer1_'),
            Net(lambda: [nn.Dense(4, in_units=4), nn.Activation('tanh')], prefix='layer10_'),
            nn.BatchNorm(in_channels=4, prefix='norm_'), nn.Dropout(0.5, prefix='drop_'),
            nn.HybridLambda(lambda F, x: F.random.normal_like(x), prefix='shuffled_'),
            nn.HybridSequential(prefix='plain_')]


def two_calls(F, x, layer1, layer10, norm, drop, shuffled, _):
    """Call one of two layers twice, with operators between the calls."""
    first = layer1(F.sin(x))
    x = layer10(F.cos(layer10(first))) + first
    return norm(drop(x)) + shuffled(x)


@pytest.fixture
def network():
    return traced(initialised(Net(layers, two_calls)), (8, 4))


def segments(network, *patterns, joint_statistics=True, stage_of=None):
    return recomputed_segments(network.graph, network.blocks, patterns, stage_of or {}, set(), joint_statistics)


def test_each_call_of_a_block_is_a_segment(network):
    found = {segment.name: list(labelled(network.graph, dict.fromkeys(segment.operators)))
             for segment in segments(network, 'layer*')}
    assert found == {'layer1': ['layer1_dense0_fwd', 'layer1_tanh0_fwd'],
                     'layer10': ['layer10_dense0_fwd', 'layer10_tanh0_fwd'],
                     'layer10#2': ['layer10_dense0_fwd#2', 'layer10_tanh0_fwd#2']}


def test_the_outermost_block_that_matches_counts(network):
    assert [segment.name for segment in segments(network, '*dense*', 'layer1')][0] == 'layer1'
    assert all(len(segment.operators) == 2 for segment in segments(network, 'layer1', '*layer1_dense*'))


def test_a_segment_is_in_one_stage(network):
    operators = network.graph.computing
    stage_of = {operator.number: int(position >= 2) for position, operator in enumerate(operators)}
    assert [len(segment.operators) for segment in segments(network, 'layer1', stage_of=stage_of)] == [1, 1]


def test_blocks_that_read_each_other_are_several_segments():
    def call(F, x, left, right):
        return left.layers[1](right.layers[0](x)) + right.layers[1](left.layers[0](x))

    blocks = Net(lambda: [Net(lambda: [nn.Dense(4, in_units=4), nn.Dense(4, in_units=4)], prefix=prefix)
                          for prefix in ('left_', 'right_')], call)
    network = traced(initialised(blocks), (8, 4))
    found = segments(network, 'left', 'right')
    assert sorted(number for segment in found for number in segment.operators) == [
        operator.number for operator in network.graph.computing if operator.op == 'FullyConnected']
    seen = set()
    for item in in_order(network.graph, found):  # raises an error if segments depend on each other
        numbers = item.operators if hasattr(item, 'operators') else [item.number]
        for number in numbers:
            sources = {source for source, _ in network.graph.operators[number].inputs}
            assert sources <= seen | set(numbers)
        seen |= set(numbers)
    assert len(seen) == len(network.graph.operators)


@pytest.mark.parametrize('patterns, options, words', [
    (['rnn*'], {}, ["'rnn*' matches no block", 'layer1, layer10']),
    (['plain'], {}, ["'plain' matches plain, which no backward pass reaches", 'blocks with weights']),
    (['shuffled'], {}, ['draws random numbers', 'does not match its block']),
    (['norm'], {'joint_statistics': False}, ['norm_fwd (BatchNorm) updates running averages', "batch_norm='joint'"])])
def test_operators_that_cannot_be_computed_again_are_refused(network, patterns, options, words):
    with pytest.raises(InputError) as error:
        segments(network, *patterns, **options)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_dropout_and_joint_statistics_can_be_computed_again(network):
    assert {segment.name for segment in segments(network, 'norm', 'drop')} == {'norm', 'drop'}


@pytest.mark.parametrize('value', [3, [3], [''], '', {'a': 1}, True])
def test_other_values_are_refused(value):
    with pytest.raises(InputError, match='recompute=.*give a pattern of names of blocks'):
        recompute_patterns(value)


def test_plans_and_files_have_patterns(tmp_path):
    plan = megatron(2).with_recompute('layer*')
    assert plan.recompute == ('layer*',) and megatron(2).recompute == ()
    assert from_json(plan.as_json()).recompute == ('layer*',)
    assert 'recompute' not in Plan().as_json()
    save(str(tmp_path / 'plan.json'), pipeline(2, 4, inside=Plan().with_recompute(['a', 'b'])))
    assert load(str(tmp_path / 'plan.json')).recompute == ('a', 'b')
    with pytest.raises(InputError, match='recompute=3'):
        from_json({'plan': 'data_parallel', 'recompute': 3})


def test_the_report_names_segments(network):
    (line,) = recompute_lines(network.graph, segments(network, 'layer1'))
    assert line.startswith('layer1: computed again in the backward pass: 2 operators, layer1_dense0_fwd to layer1_')


def test_a_network_without_patterns_keeps_its_order(network):
    assert in_order(network.graph, []) == network.graph.operators
