"""The tasks of a simulated step for reports: by place, and in lanes."""
from hypothesis import given, settings, strategies as st

from mxhybrid.planner.cluster.cluster_spec import COST_KINDS
from mxhybrid.planner.task_graph.simulated_tasks import (
    TASK_GROUPS,
    TASK_KINDS,
    SimulatedTask,
    by_place,
    in_lanes,
    places_of,
)


def task(start, end, where=0):
    return SimulatedTask('fc6', where, start, end, 'forward')


def test_ranks_come_before_links():
    tasks = [task(0, 1, 'b'), task(0, 1, 10), task(0, 1, 'a'), task(0, 1, 9), task(2, 3, 9), task(1, 2, 9)]
    assert places_of(tasks) == [9, 10, 'a', 'b']
    assert [listed.start_s for listed in by_place(tasks)[9]] == [0, 1, 2]


def test_every_kind_of_cost_has_a_kind_of_tasks():
    assert set(COST_KINDS) <= set(TASK_KINDS)
    assert {kind.group for kind in TASK_KINDS.values()} == set(TASK_GROUPS)


def test_one_lane_is_enough_where_nothing_overlaps():
    assert [lane for lane, _ in in_lanes([task(0, 1), task(1, 2), task(2, 2), task(2, 3)])] == [0, 0, 0, 0]
    assert [lane for lane, _ in in_lanes([task(0, 9), task(1, 2), task(1, 4), task(3, 5), task(9, 9)])] == [0, 1, 2, 1,
                                                                                                          0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=30))
def test_no_two_tasks_of_a_lane_overlap(spans):
    tasks = sorted((task(start, start + length) for start, length in spans),
                   key=lambda listed: (listed.start_s, listed.end_s))
    tasks_with_lanes = in_lanes(tasks)
    assert [listed for _, listed in tasks_with_lanes] == tasks
    ends = {}
    for lane, listed in tasks_with_lanes:
        assert ends.get(lane, 0) <= listed.start_s
        ends[lane] = listed.end_s
    overlapping = max([sum(other.start_s <= listed.start_s < other.end_s for other in tasks)
                       for listed in tasks] + [0])
    assert len(ends) <= max(1, overlapping + sum(listed.start_s == listed.end_s for listed in tasks))
