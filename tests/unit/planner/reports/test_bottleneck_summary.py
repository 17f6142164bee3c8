"""The critical path in words."""
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.planner.reports.bottleneck_summary import bottleneck_summary, critical_path_shares
from mxhybrid.planner.task_graph.simulated_tasks import TASK_GROUPS, TASK_KINDS, SimulatedTask


def path_of(*tasks):
    """Return tasks that follow each other, from their labels, kinds and milliseconds."""
    path, start_s = [], 0.0
    for label, kind, length in tasks:
        path.append(SimulatedTask(label, 0, start_s, start_s + length / 1000, kind))
        start_s += length / 1000
    return path


def test_the_largest_part_comes_first():
    path = path_of(('conv1', 'forward', 10), ('fc6', 'forward', 5), ('fc6', 'backward', 5), ('fc6_weight', 'sum', 62),
                   ('fc6_weight', 'update', 10), ('step', 'step', 8))
    assert bottleneck_summary(path, 0.1, layers={'fc6_weight': 'fc6'}) == [
        '100 ms a step: 62 % sums of gradients, 20 % computing, 10 % updates, 8 % overhead of the store',
        '62 % of the step is spent summing gradients of fc6_weight: split fc6',
        '10 % of the step is spent computing conv1',
        '10 % of the step is spent computing fc6']


def test_operators_on_few_ranks_may_be_split():
    path = path_of(('lstm', 'forward', 6), ('dense', 'forward', 4))
    lines = bottleneck_summary(path, 0.01, {'lstm': 1, 'dense': 4}, 4)
    assert lines[1:] == ['60 % of the step is spent computing lstm: it runs on 1 of 4 ranks, split it further',
                         '40 % of the step is spent computing dense']


@pytest.mark.parametrize('kind', TASK_KINDS)
def test_each_kind_has_a_sentence(kind):
    line = bottleneck_summary(path_of(('a 50% name', kind, 20)), 0.02)[1]
    assert line.startswith('100 % of the step ') and ('a 50% name' in line) == (kind != 'step')


def test_small_things_have_no_sentence_but_the_largest_has():
    lines = bottleneck_summary(path_of(*(('layer%d' % at, 'forward', 1) for at in range(50))), 0.05)
    assert lines == ['50 ms a step: 100 % computing', '2 % of the step is spent computing layer0']
    assert bottleneck_summary([], 0.0) == ['the step has no tasks']


def test_latency_counts_for_the_message():
    path = [SimulatedTask('fc6', 'a to b', 0.0, 0.002, 'redistribution'),
            SimulatedTask('fc6', 1, 0.006, 0.008, 'forward')]
    assert critical_path_shares(path, 0.01) == {('redistribution', 'fc6'): pytest.approx(0.6),
                                                ('compute', 'fc6'): pytest.approx(0.4)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from('abc'), st.sampled_from(sorted(TASK_KINDS)), st.integers(0, 20),
                          st.integers(0, 5)), min_size=1, max_size=20))
def test_shares_are_the_whole_step(drawn):
    """Tasks may overlap, as when a task is overtaken, and have gaps between them."""
    path, at = [], 0
    for label, kind, length, back in drawn:
        start = max(0, at - back)
        path.append(SimulatedTask(label, 0, start, start + length, kind))
        at = start + length
    step = max(1, max(task.end_s for task in path))
    shares = critical_path_shares(path, step)
    assert sum(shares.values()) == pytest.approx(1) and min(shares.values()) >= 0
    assert {group for group, _ in shares} <= set(TASK_GROUPS)
    assert bottleneck_summary(path, step)[1].startswith('%.0f %% of the step' % (100 * max(shares.values())))
