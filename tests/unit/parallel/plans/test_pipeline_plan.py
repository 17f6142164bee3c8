"""Pipelines as plans: the stage and the ranks of every operator, their JSON, and bad input."""
import json

import numpy as np
import pytest
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.pipeline_plan import pipeline
from mxhybrid.parallel.plans.plan_json import from_json, load, save
from mxhybrid.parallel.plans.stages import balanced, check_ranks, cost_of
from mxhybrid.parallel.plans.strategies import data_parallel, grid
from mxhybrid.parallel.runtime.micro_batches import micro_batch_of

from ....helpers.gluon_nets import Net, in_turn, initialised
from ....helpers.split_programs import explicit_plan, labelled


def network(layers=4, units=16, batch=8, table=False):
    """Return a traced network: an embedding, dense layers, and a sum of the first and the last one."""
    def call(F, data, mask, embedding, *dense):
        first = embedding(data)
        return F.broadcast_mul(first + in_turn(F, first, *dense), F.expand_dims(mask * 2, axis=2))

    net = Net(lambda: [nn.Embedding(20, units, prefix='embedding_', sparse_grad=table)] + [
        nn.Dense(units, in_units=units, flatten=False, prefix='layer%d_' % at) for at in range(layers)], call)
    return traced(initialised(net), [(batch, 5), (batch, 5)])


def stage_numbers(plan, net, ranks):
    """Return the stage of each operator by its label."""
    resolved = plan.resolve(net.graph, net.dimensions, ranks)
    return {label: resolved.stages.of_rank(split.ranks[0])
            for label, split in labelled(net.graph, resolved.splits).items()}


def test_patterns_name_the_operators_of_stages():
    net = network()
    stages = stage_numbers(pipeline([['embedding*', 'layer0*'], 'layer1*', 'layer[23]*'], 2), net, 3)
    assert stages['embedding_fwd'] == stages['layer0_fwd'] == 0
    assert stages['layer1_fwd'] == 1 and stages['layer2_fwd'] == stages['layer3_fwd'] == 2
    others = {label: stage for label, stage in stages.items() if 'fwd' not in label}
    # The mask depends on an input alone, and is computed where it is first read.
    assert len(others) == 4 and set(others.values()) == {2}


def test_a_mapping_places_stages_on_ranks():
    net = network()
    plan = pipeline({'embedding*': [3], 'layer0*': [3], 'layer1*': [0, 2], 'layer[23]*': [1]}, 2)
    resolved = plan.resolve(net.graph, net.dimensions, 4)
    assert resolved.stages.ranks == ((3,), (0, 2), (1,))
    by_label = labelled(net.graph, resolved.splits)
    assert by_label['layer1_fwd'].ranks == (0, 2) and by_label['layer1_fwd'].degrees == (2, 1, 1)
    assert by_label['layer0_fwd'].ranks == (3,) and by_label['layer3_fwd'].ranks == (1,)


@pytest.mark.parametrize('inside, degrees', [
    (None, (2, 1, 1)), (data_parallel(), (2, 1, 1)), (grid(model=2), (1, 1, 2)),
    ({'layer*': {'channels': 2}}, (1, 1, 2))])
def test_a_plan_splits_each_stage(inside, degrees):
    net = network()
    resolved = pipeline(2, 2, inside=inside).resolve(net.graph, net.dimensions, 4)
    split = labelled(net.graph, resolved.splits)
    assert split['layer0_fwd'].degrees == split['layer3_fwd'].degrees == degrees
    assert split['layer0_fwd'].ranks == (0, 1) and split['layer3_fwd'].ranks == (2, 3)


@pytest.mark.parametrize('layers, stages', [(8, 2), (8, 4), (7, 3), (3, 1)])
def test_stages_by_number_are_as_even_as_possible(layers, stages):
    net = network(layers, units=64)
    stage_of = balanced(net.graph, [1] * stages)
    operators = net.graph.computing
    numbers = [stage_of[operator.number] for operator in operators]
    assert numbers == sorted(numbers) and set(numbers) == set(range(stages))
    costs = np.array([cost_of(net.graph, operator) for operator in operators])
    longest = max(costs[np.array(numbers) == stage].sum() for stage in range(stages))

    def best(first, left):
        """Return the time of the longest of some stages from an operator on, by trying all cuts."""
        if left == 1:
            return costs[first:].sum()
        return min(max(costs[first:cut].sum(), best(cut, left - 1)) for cut in range(first + 1, len(costs) - left + 2))
    assert longest <= best(0, stages) * 1.05 * (1 + 1e-9)


def test_json_and_files(tmp_path):
    net = network()
    for plan in (pipeline(2, 4), pipeline(['embedding*', ['layer*']], 2, 'gpipe', {'layer*': {'channels': 2}}),
                 pipeline({'embedding*': [2, 0], 'layer*': [1, 3]}, 1, inside=grid(batch=2))):
        path = str(tmp_path / 'plan.json')
        save(path, plan)
        again = load(path)
        assert again.as_json() == plan.as_json() == from_json(json.loads(json.dumps(plan.as_json()))).as_json()
        expected, found = (some.resolve(net.graph, net.dimensions, 4) for some in (plan, again))
        assert found.splits == expected.splits and found.stages == expected.stages


def test_a_list_of_all_operators_keeps_the_pipeline():
    net = micro_batch_of(network(), 2)
    resolved = pipeline(2, 2, 'gpipe').resolve(net.graph, net.dimensions, 2)
    listed = explicit_plan(net, resolved.splits, stages=resolved.stages)
    plan = from_json(json.loads(json.dumps(listed.as_json())))
    assert plan.micro_batches == 2
    again = plan.resolve(net.graph, net.dimensions, 2)
    assert again.splits == resolved.splits and again.stages == resolved.stages

    value = plan.as_json()
    value['operators']['embedding_fwd']['ranks'] = [1]
    with pytest.raises(InputError, match=r'is in stage 0, but reads embedding_fwd of stage 1'):
        from_json(value).resolve(net.graph, net.dimensions, 2)
    value['operators']['embedding_fwd'].update(ranks=[0, 1], degrees=[2, 1, 1])
    with pytest.raises(InputError, match=r'embedding_fwd is on ranks \[0, 1\], which are not in one stage'):
        from_json(value)
    with pytest.raises(InputError, match="pipeline=5: give an object with 'stages'"):
        from_json({**value, 'pipeline': 5})


def test_data_of_another_shape_has_the_same_stages():
    net = network(7, units=64)
    plan = pipeline(3, 2)
    other = network(7, units=64, batch=2)
    assert stage_numbers(plan.for_graph(net.graph, other.graph), other, 3) == stage_numbers(plan, net, 3)


@pytest.mark.parametrize('arguments, words', [
    ((2, 0), 'micro_batches=0: give a whole number'), ((2, 2.0), 'micro_batches=2.0'),
    ((2, True), 'micro_batches=True'),
    ((2, 2, 'interleaved'), "schedule='interleaved': give '1f1b', 'eager-1f1b' or 'gpipe'"),
    ((0, 2), 'stages=0: give at least one stage'), (([], 2), r'stages=\[\]: give at least one'),
    (('layer*', 2), "stages='layer.': give a number of stages"), ((2.0, 2), 'stages=2.0: give a number'),
    (([3], 2), 'stages: 3 is not a stage'), (({'layer*': 1}, 2), r"'layer\*' has 1: give a list of ranks"),
    ((2, 2, '1f1b', pipeline(2, 2)), 'inside=<plan: pipeline>: give data_parallel'), ((2, 2, '1f1b', 5), 'inside=5')])
def test_bad_values_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        pipeline(*arguments)


@pytest.mark.parametrize('plan, ranks, words', [
    (pipeline(5, 2), 4, 'pipeline of 5 stages on 4 workers: give at most 4 stages, or start more workers'),
    (pipeline(['embedding*', 'layer*', 'later*'], 2), 4,
     "'later\\*' of stage 2 matches no operator: give the name .*; there are .*embedding_fwd"),
    (pipeline(['*', 'layer*'], 2), 2, 'stage 1 of 2 has nothing to do: all operators are in other stages'),
    (pipeline(['layer*', 'embedding*'], 2), 2, 'layer0_fwd is in stage 0, but reads embedding_fwd of stage 1'),
    (pipeline({'embedding*': [0], 'layer*': [0, 1]}, 2), 2, 'worker 0 is in stage 0 and in stage 1'),
    (pipeline({'embedding*': [0], 'layer*': [2]}, 2), 2, 'stage 1 is on worker 2: give workers from 0 to 1'),
    (pipeline({'embedding*': [0], 'layer*': []}, 2), 2, 'stage 1 has no workers'),
    (pipeline({'embedding*': [0], 'layer*': [1]}, 2), 3, 'worker 2 is in no stage: add it to one, or start 2'),
    (pipeline(2, 2, inside=grid(model=4)), 4, 'is for 4 workers, but the job has 2'),
    (pipeline(2, 2, inside={'layer*': {'channels': 4}}), 4, r'it has 4 shards \(channels 4\), but there '
     'are 2 ranks: give numbers whose product is at most 2')])
def test_plans_that_do_not_fit_are_refused(plan, ranks, words):
    net = network()
    with pytest.raises(InputError, match=words):
        plan.resolve(net.graph, net.dimensions, ranks)


def test_more_stages_than_operators():
    net = network(layers=1)
    count = len(net.graph.computing)
    with pytest.raises(InputError, match='but the network has %d operators: give at most %d stages' % (count, count)):
        pipeline(count + 1, 2).resolve(net.graph, net.dimensions, count + 1)


def test_tables_are_refused():
    net = network(table=True)
    with pytest.raises(InputError, match='embedding_fwd cannot be in a stage of a pipeline: its gradient is row_sp'):
        pipeline(2, 2).resolve(net.graph, net.dimensions, 2)


def test_micro_batches_divide_the_joint_batch():
    net = network(batch=12)
    assert micro_batch_of(net, 4).graph.data == {'data0': (3, 5), 'data1': (3, 5)}
    with pytest.raises(InputError, match='5 micro-batches do not divide the joint batch of 12 samples: give one of 1, '
                                         '2, 3, 4, 6, 12$'):
        micro_batch_of(net, 5)


def test_each_rank_is_in_one_stage():
    check_ranks([[1], [0, 2]], 3)
