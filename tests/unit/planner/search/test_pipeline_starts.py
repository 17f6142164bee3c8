"""Balanced pipelines that a search proposes, how they are cut, and the repeated blocks of a network."""
import json

import pytest
from hypothesis import given, strategies as st
from mxnet.gluon import nn

from mxhybrid.parallel.ops.tracing import traced
from mxhybrid.parallel.plans.pipeline_plan import pipeline
from mxhybrid.parallel.plans.plan_json import from_json
from mxhybrid.parallel.plans.stages import balanced
from mxhybrid.planner.automatic_plan import with_own_labels
from mxhybrid.planner.planner import Planner
from mxhybrid.planner.search.pipeline_starts import can_be_pipelined, pipeline_starts
from mxhybrid.planner.search.search_space import repeated_groups
from tests.helpers.gluon_nets import initialised
from tests.helpers.planned_networks import Times, cluster, gpt, network, recommender, transformer

TIMES = 8


def gpt_planner(on=None, batch=32, layers=4, **keys):
    return Planner(gpt(layers=layers, units=32, words=64), [(batch, TIMES)] * 2, on or cluster(4, rate=1e6), Times(),
                   **keys)


@pytest.mark.parametrize('make, data, expected', [
    (gpt, [(8, 8)] * 2, True), (network, (8, 3, 8, 8), False), (recommender, (8, 20), False),
    (transformer, [(8, 12), (8, 12), (8,)], False),
    (lambda: initialised(nn.Dense(4, in_units=4)), (8, 4), False)],
    ids=['loss', 'statistics', 'tables', 'no loss', 'predictions'])
def test_pipelines_need_the_loss_of_each_sample(make, data, expected):
    assert can_be_pipelined(traced(make(), data, 0, 'float32')) is expected


def starts_of(planner, batch):
    return pipeline_starts(planner._rough, planner.cluster.ranks, batch)


def test_starts_of_all_stages_are_ordered_by_estimate():
    starts = starts_of(gpt_planner(), 32)
    estimates = [start.estimate_s for start in starts]
    assert estimates == sorted(estimates) and estimates[0] > 0
    names = [start.name for start in starts]
    assert len(set(names)) == len(names)
    for stages in (2, 4):
        for micro_batches in (stages, 2 * stages, 4 * stages, 8 * stages):
            assert 'pipeline of %d stages, %d micro-batches' % (stages, micro_batches) in names
    assert 'pipeline of 2 stages, 8 micro-batches, megatron 2' in names
    assert 'pipeline of 2 stages, 8 micro-batches, one weird trick' in names
    assert not [name for name in names if '12 micro' in name]  # do not divide 32 samples


def test_stages_are_balanced_by_seconds_of_operators():
    graph = gpt_planner().graph
    equal = {operator.number: 1.0 for operator in graph.computing}
    # The last layer takes as long as all others together.
    seconds = {**equal, graph.computing[-5].number: float(len(equal) - 1)}
    stage_of = balanced(graph, [1, 1], [seconds, seconds])
    longest = max(sum(seconds[number] for number, stage in stage_of.items() if stage == which) for which in (0, 1))
    assert longest <= 1.1 * (len(equal) - 1) + 5
    # A second stage that computes twice as fast gets more.
    stages = list(balanced(graph, [1, 1], [equal, dict.fromkeys(equal, 0.5)]).values())
    assert stages.count(1) == pytest.approx(2 * stages.count(0), rel=0.2)


def test_a_search_finds_a_pipeline_where_gradients_are_large():
    """A link carries activations of micro-batches sooner than gradients of all weights."""
    planner = gpt_planner()
    result = planner.search(seconds=None, proposals=50)
    assert result.name.startswith('pipeline of ')
    assert result.prediction.seconds < min(prediction.seconds for name, prediction in result.others.items()
                                           if not name.startswith('pipeline'))
    again = from_json(json.loads(json.dumps(result.plan.as_json())))
    assert again.micro_batches == result.plan.micro_batches > 1
    assert planner.predict(again).seconds == result.prediction.seconds
    assert planner.stages(again).schedule == 'eager-1f1b'


def test_a_search_without_pipelines_finds_none():
    best = gpt_planner(pipelines=False).search(seconds=None, proposals=50)
    assert best.plan.micro_batches == 1
    assert not [name for name in best.others if name.startswith('pipeline')]


def test_a_pipeline_to_begin_with_is_compared():
    planner = gpt_planner(pipelines=False)
    plan = pipeline(4, 16, 'eager-1f1b')
    best = planner.search(seconds=None, proposals=20, start=plan)
    assert best.name == 'imported' and best.prediction.seconds == planner.predict(plan).seconds
    assert planner.splits(best.plan) == planner.splits(plan) and planner.stages(best.plan) == planner.stages(plan)
    slow = gpt_planner(cluster(4, rate=1e12), pipelines=False)
    assert slow.search(seconds=None, proposals=20, start=pipeline(2, 2)).name != 'imported'


def test_less_memory_takes_a_schedule_that_needs_less():
    planner = gpt_planner(cluster(2, rate=1e6))
    eager = planner.search(seconds=None, proposals=20)
    assert planner.stages(eager.plan).schedule == 'eager-1f1b'
    best = planner.search(seconds=None, proposals=20, memory_bytes=eager.prediction.largest_memory() - 1)
    assert best.prediction.largest_memory() < eager.prediction.largest_memory()
    assert best.plan.micro_batches > 1  # no plan without micro-batches needs so little
    assert min(point.bytes for point in best.front) > eager.prediction.largest_memory()


def test_workers_with_other_names_take_one_pipeline():
    first, second = gpt_planner(), gpt_planner()
    planning = first.search(seconds=None, proposals=20)
    labels = [first.graph.label(operator) for operator in first.graph.operators]
    own = from_json(with_own_labels(planning.plan.as_json(), labels, second.graph))
    assert second.predict(own).seconds == planning.prediction.seconds


def groups(text):
    """Return the groups of more than one position."""
    return [group for group in repeated_groups(text) if len(group) > 1]


def test_layers_are_repeated_as_a_whole():
    # Three projections and the output of attention are the same layer, but at different places of a block.
    assert groups('e' + 'ddddfg' * 3 + 'h') == [[1 + place, 7 + place, 13 + place] for place in range(6)]


def test_blocks_of_several_kinds_are_groups_of_their_own():
    assert groups('s' + 'abab' + 'p' + 'cdcdcd') == [[1, 3], [2, 4], [6, 8, 10], [7, 9, 11]]
    assert groups('aaaa') == [[0, 1, 2, 3]]
    assert not groups('abcde') and not groups('a') and not groups('')


def test_an_incomplete_block_stays_by_itself():
    assert groups('abcabcab') == [[0, 3], [1, 4], [2, 5]]
    assert groups('bcabcabc') == [[0, 3], [1, 4], [2, 5]]


@given(st.text('ab', max_size=20))
def test_each_position_is_in_one_group_of_equal_keys(text):
    found = repeated_groups(text)
    assert sorted(position for group in found for position in group) == list(range(len(text)))
    assert all(len({text[position] for position in group}) == 1 for group in found) and found == sorted(found)


def test_hundreds_of_layers_take_little_time():
    found = repeated_groups('e' + 'ddddfg' * 100 + 'h')
    assert len(found) == 8 and {len(group) for group in found} == {1, 100}
