"""Simulated steps of pipelines: the ideal time, order, memory, transfers, sums of gradients, and tasks for reports."""
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from mxnet.gluon import nn

from mxhybrid.base.errors import InputError
from mxhybrid.parallel.plans.pipeline_plan import pipeline
from mxhybrid.parallel.plans.strategies import by_name, data_parallel
from mxhybrid.parallel.runtime.schedule import most_alive
from mxhybrid.planner.cluster.cluster_spec import COST_KINDS, TransferCost
from mxhybrid.planner.simulator.resource_groups import TokenBucket
from mxhybrid.planner.task_graph.simulated_tasks import TASK_GROUPS, TASK_KINDS, SimulatedTask, by_place, in_lanes
from tests.helpers.gluon_nets import Net, in_turn, initialised
from tests.helpers.planned_networks import cluster, gpt, make_planner

WIDTH, BATCH, STAGES = 64, 32, 4
#: Seconds of a layer and a sample, forward; backward takes twice as long.
SAMPLE_S = WIDTH * 1e-6
FREE = TransferCost(0.0, 0.0, 0.0)
PATTERNS = ['stage%d*' % stage for stage in range(STAGES)]
SCHEDULES = ['1f1b', 'eager-1f1b', 'gpipe']


def without_costs(ranks=1, rate=1e15, latency_s=0.0, hosts=STAGES):
    """Return a cluster, by default of a host for each stage, whose transfers take no time of cores."""
    return dataclasses.replace(cluster(hosts, ranks, rate=rate, cost=FREE), link_latency_s=latency_s,
                               memory=TokenBucket(1e15), memory_latency_s=0.0)


def planner_of(on=None, end=lambda F, data: F.mean(data, axis=1, name='net_stage%d_mean' % (STAGES - 1)), **keys):
    """Return a planner of a network of equal layers, one for each stage; `end` makes a value of each sample."""
    net = initialised(Net(
        lambda: [nn.Dense(WIDTH, in_units=WIDTH, prefix='stage%d_' % stage) for stage in range(STAGES)],
        lambda F, data, *layers: end(F, in_turn(F, data, *layers))))
    return make_planner(on or without_costs(), net, (BATCH, WIDTH), **keys)


def ideal(micro_batches, samples=BATCH, stages=STAGES):
    """Return the seconds of m + s - 1 micro-batches, forward and backward."""
    return (micro_batches + stages - 1) / micro_batches * samples * 3 * SAMPLE_S


@pytest.mark.parametrize('schedule, micro_batches', itertools.product(SCHEDULES, [1, 4, 8, 32]))
def test_equal_stages_without_transfers_take_the_ideal_time(schedule, micro_batches):
    prediction = planner_of().predict(pipeline(PATTERNS, micro_batches, schedule))
    # The mean of each sample is no part of the ideal.
    assert prediction.seconds == pytest.approx(ideal(micro_batches), rel=1e-4)


def test_fewer_stages_take_the_ideal_time():
    """The hosts have two ranks of a stage each, which split the samples of a micro-batch."""
    planner = planner_of(without_costs(2))
    prediction = planner.predict(pipeline(PATTERNS, 8))
    assert prediction.seconds == pytest.approx(ideal(8) / 2, rel=1e-3)
    two = planner_of(without_costs(hosts=2))
    assert two.predict(pipeline([PATTERNS[:2], PATTERNS[2:]], 8)).seconds == pytest.approx(
        2 * ideal(8, stages=2), rel=1e-3)


def test_the_slowest_stage_determines_the_step():
    uneven = planner_of(without_costs(hosts=2)).predict(pipeline([PATTERNS[:3], PATTERNS[3:]], 32))
    layer_s = BATCH * 3 * SAMPLE_S  # the other stage computes at the same time
    assert uneven.seconds == pytest.approx(3 * layer_s, rel=1e-3)


def test_plans_are_in_the_order_of_the_formula():
    """Kendall's tau of predicted and ideal times is 1."""
    planner = planner_of(without_costs(rate=1e9, latency_s=1e-5))
    for seconds_of in (lambda count: planner.predict(pipeline(PATTERNS, count)).seconds, ideal):
        seconds = [seconds_of(count) for count in (1, 2, 4, 8, 16, 32)]
        assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_memory_is_that_of_the_micro_batches_alive(schedule):
    micro_batches, states = 8, 1
    planner = planner_of(states=states)
    prediction = planner.predict(pipeline(PATTERNS, micro_batches, schedule))
    weights = 4 * (WIDTH * WIDTH + WIDTH) * (2 + states + 2)  # and the gradient of a micro-batch, and their sum
    outputs = 4 * BATCH // micro_batches * WIDTH
    for stage in range(STAGES):
        last = (4 * BATCH // micro_batches) * (stage == STAGES - 1)  # the mean
        alive = most_alive(schedule, stage, STAGES, micro_batches)
        assert prediction.memory[stage] == weights + alive * (outputs + last)
    assert sum(prediction.memory_of().values()) == pytest.approx(prediction.memory.sum())


def test_arrays_of_micro_batches_move_between_stages():
    planner = planner_of(cluster(STAGES, rate=1e6))
    for micro_batches in (1, 4, 8):
        tasks = planner.predict(pipeline(PATTERNS, micro_batches)).tasks()
        for kind in ('redistribution', 'redistribution_back'):
            sends = [task for task in tasks if (task.label, task.kind) == ('stage1_fwd', kind)
                     and str(task.where).endswith('sends')]
            assert len(sends) == micro_batches and sum(task.size for task in sends) == 4 * BATCH * WIDTH
            assert all('host1' in task.where or 'host2' in task.where for task in sends)


def test_passes_are_in_the_order_of_the_schedule():
    def passes(schedule, stage):
        return ''.join(task.kind[0] for task in planner.predict(pipeline(PATTERNS, 8, schedule)).tasks()
                       if task.label == 'stage%d_fwd' % stage and task.kind in ('forward', 'backward'))
    planner = planner_of()
    for stage in range(STAGES):
        warm_up = STAGES - stage
        assert passes('1f1b', stage) == 'f' * warm_up + 'bf' * (8 - warm_up) + 'b' * warm_up
    assert passes('gpipe', 0) == 'f' * 8 + 'b' * 8


def test_more_forward_passes_first_hide_latency():
    """A stage of '1f1b' has no other micro-batch to compute while one is under way."""
    far = planner_of(without_costs(latency_s=BATCH / 8 * SAMPLE_S / 2))
    seconds = {schedule: far.predict(pipeline(PATTERNS, 8, schedule)).seconds for schedule in SCHEDULES}
    assert seconds['eager-1f1b'] < 0.9 * seconds['1f1b']
    assert seconds['eager-1f1b'] <= seconds['gpipe'] * (1 + 1e-9)


@pytest.mark.parametrize('micro_batches', [8, 16, 32])
def test_transfers_that_a_schedule_cannot_hide(micro_batches):
    """The number of transfers in a step grows with that of micro-batches with `1f1b` alone.

    With the other schedules, they are those of the first micro-batch to the last stage, and of the last one back.
    """
    transfer_s = BATCH / micro_batches * 3 * SAMPLE_S / 10
    far = planner_of(without_costs(latency_s=transfer_s))
    transfers = {schedule: (far.predict(pipeline(PATTERNS, micro_batches, schedule)).seconds - ideal(micro_batches))
                 / transfer_s for schedule in SCHEDULES}
    ends = 2 * (STAGES - 1)
    assert transfers == pytest.approx({'1f1b': ends * micro_batches / STAGES + STAGES, 'eager-1f1b': ends,
                                       'gpipe': ends}, rel=1e-2)


def test_weights_are_updated_once_and_summed_within_a_stage():
    tasks = planner_of(cluster(STAGES, 2)).predict(pipeline(PATTERNS, 4)).tasks()
    updates, added, sums = ([task for task in tasks if (task.label, task.kind) == ('net_stage2_weight', kind)]
                            for kind in ('update', 'accumulate', 'group_sum'))
    assert sorted(task.where for task in updates) == [4, 5] and sums
    assert len(added) == 2 * 4 and max(task.end_s for task in added) <= min(task.start_s for task in updates)


def test_one_stage_on_all_ranks_sums_gradients_in_buckets():
    kinds = {task.kind for task in planner_of(cluster(STAGES)).predict(pipeline(1, 4)).tasks()}
    assert kinds >= {'sum', 'accumulate'} and 'group_sum' not in kinds


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('inside', [None, {'*dense4*': {'channels': 2}, '*dense5*': {'partials': 2}}], ids=str)
def test_transformers_with_a_plan_inside_of_stages(schedule, inside):
    planner = make_planner(cluster(2, 2, rate=1e9), gpt(), [(BATCH, 8)] * 2)
    plan = pipeline(2, 4, schedule, by_name(inside) if inside else None)
    prediction = planner.predict(plan)
    assert 0 < prediction.seconds < 10 and prediction.critical_path()
    explicit = planner.explicit(planner.splits(plan), stages=planner.stages(plan))
    assert planner.predict(explicit).seconds == prediction.seconds
    np.testing.assert_array_equal(planner.predict(explicit).memory, prediction.memory)


def test_micro_batches_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match='5 micro-batches do not divide the joint batch of 32 samples'):
        planner_of().predict(pipeline(PATTERNS, 5))


def test_outputs_that_cannot_be_joined_are_refused():
    planner = planner_of(cluster(STAGES), end=lambda F, data: F.mean(data))
    assert planner.predict(data_parallel()).seconds > 0
    with pytest.raises(InputError, match='does not have each sample once'):
        planner.predict(pipeline(STAGES, 4))


def test_more_stages_than_workers_are_refused():
    with pytest.raises(InputError, match='a pipeline of 3 stages on 2 workers'):
        make_planner(cluster(2)).predict(pipeline(3, 4))


def task(start, end, where=0):
    return SimulatedTask('fc6', where, start, end, 'forward')


def test_ranks_come_before_links():
    tasks = [task(0, 1, 'b'), task(0, 1, 10), task(0, 1, 'a'), task(0, 1, 9), task(2, 3, 9), task(1, 2, 9)]
    assert list(by_place(tasks)) == [9, 10, 'a', 'b']
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
