"""Patterns of blocks that are computed again in the backward pass, and their segments."""
import pytest
from mxnet import gluon
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


class Net(gluon.HybridBlock):
    """Two layers, of which the second one is called twice, and operators between the calls."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.layers = [nn.HybridSequential(prefix='layer%d_' % number) for number in (1, 10)]
            for layer in self.layers:
                self.register_child(layer)
                with layer.name_scope():
                    layer.add(nn.Dense(4, in_units=4), nn.Activation('tanh'))
            self.norm, self.drop = nn.BatchNorm(in_channels=4, prefix='norm_'), nn.Dropout(0.5, prefix='drop_')
            self.plain = nn.HybridSequential(prefix='plain_')
            self.shuffled = nn.HybridLambda(lambda F, x: F.random.normal_like(x), prefix='shuffled_')

    def hybrid_forward(self, F, x):
        first = self.layers[0](F.sin(x))
        x = self.layers[1](first)
        x = self.layers[1](F.cos(x)) + first
        return self.norm(self.drop(x)) + self.shuffled(x)


@pytest.fixture
def network():
    net = Net()
    net.initialize()
    return traced(net, (8, 4))


def segments(network, *patterns, joint_statistics=True, stage_of=None):
    return recomputed_segments(network.graph, network.blocks, patterns, stage_of or {}, set(), joint_statistics)


def labels(network, segment):
    return [network.graph.label(network.graph.operators[number]) for number in segment.operators]


def test_each_call_of_a_block_is_a_segment(network):
    found = {segment.name: labels(network, segment) for segment in segments(network, 'layer*')}
    assert found == {'layer1': ['layer1_dense0_fwd', 'layer1_tanh0_fwd'],
                     'layer10': ['layer10_dense0_fwd', 'layer10_tanh0_fwd'],
                     'layer10#2': ['layer10_dense0_fwd#2', 'layer10_tanh0_fwd#2']} or \
        [len(operators) for operators in found.values()] == [2, 2, 2] and list(found) == [
            'layer1', 'layer10', 'layer10#2']


def test_the_outermost_block_that_matches_counts(network):
    assert [segment.name for segment in segments(network, '*dense*', 'layer1')][0] == 'layer1'
    assert all(len(segment.operators) == 2 for segment in segments(network, 'layer1', '*layer1_dense*'))


def test_a_segment_is_in_one_stage(network):
    operators = network.graph.computing
    stage_of = {operator.number: int(position >= 2) for position, operator in enumerate(operators)}
    assert [len(segment.operators) for segment in segments(network, 'layer1', stage_of=stage_of)] == [1, 1]


class Interleaved(gluon.HybridBlock):
    """Two blocks whose operators read each other's."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.left, self.right = nn.HybridSequential(prefix='left_'), nn.HybridSequential(prefix='right_')
            for block in (self.left, self.right):
                with block.name_scope():
                    block.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4))

    def hybrid_forward(self, F, x):
        left, right = self.left[0](x), self.right[0](x)
        return self.left[1](right) + self.right[1](left)


def test_blocks_that_read_each_other_are_several_segments():
    net = Interleaved()
    net.initialize()
    network = traced(net, (8, 4))
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
