"""Simulated steps: small ones by hand, others against a plain reading of the rules; changes against fresh runs."""
import collections

import pytest
from hypothesis import given, settings, strategies as st
from lab.planner.task_blocks import task_block

from mxhybrid.base.errors import InputError
from mxhybrid.planner.simulator import task_table
from mxhybrid.planner.simulator.resource_groups import ResourceGroup, TokenBucket
from mxhybrid.planner.simulator.simulation import Simulation
from tests.oracles.event_loop import simulate

RESOURCES = [TokenBucket(1.0), TokenBucket(2.0), TokenBucket(1.0, 3.0, 4.0), TokenBucket(0.7, 2.5, 1.0)]
#: Resources that slow each other down, or none.
GROUPS = st.sampled_from([(), (ResourceGroup((0, 1), (1.0, 0.6)),), (ResourceGroup((0, 1), (1.0, 0.9), (1.0, 0.6)),)])
KEYS = 7
OUTPUTS = 3


@st.composite
def blocks(draw, key):
    """A block whose tasks come after those of smaller keys."""
    size = draw(st.integers(0, 6))

    def each_of(*values):
        return st.lists(st.sampled_from(values), min_size=size, max_size=size)

    resource = draw(each_of(-1, 0, 1, 2, 3))
    second = [other if first >= 0 and first != other else -1
              for first, other in zip(resource, draw(each_of(-1, -1, 1, 3)))]
    work = [0.0 if first < 0 else units
            for first, units in zip(resource, draw(each_of(0.0, 0.1, 0.7, 1.0, 3.0, 11.0)))]
    pairs = [(before, after) for before in range(size) for after in range(before + 1, size)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    outputs = draw(st.dictionaries(st.integers(0, OUTPUTS - 1), st.integers(0, size - 1))) if size else {}
    dependencies = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, key - 1), st.integers(0, OUTPUTS)),
                                 max_size=8)) if size and key else []
    return task_block(key, resource, work, second, draw(each_of(0.0, 0.0, 0.3)), draw(each_of(False, False, True)),
                     edges, outputs, dependencies, draw(each_of(0.0, 0.3, 1.0)))


def whole_steps():
    return st.tuples(*(st.none() | blocks(key) for key in range(KEYS))).map(
        lambda drawn: [block for block in drawn if block is not None])


@st.composite
def changes(draw):
    keys = draw(st.lists(st.integers(0, KEYS - 1), unique=True, max_size=3))
    return {key: draw(st.none() | blocks(key)) for key in keys}


def times_of(simulation):
    """Return the start and the end of each task, by the key of its block and its index."""
    return {(key, task): pair for key, (starts, ends) in simulation.timeline().items()
            for task, pair in enumerate(zip(starts.tolist(), ends.tolist()))}


def changed(current, change):
    """Return blocks by key after a change."""
    return {key: block for key, block in {**current, **change}.items() if block is not None}


@pytest.fixture(scope='module')
def small_tables():
    """Make tables so small that blocks are often copied to new ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_table, '_MIN_CAPACITY', 1)
        patch.setattr(task_table, '_SPARE_FACTOR', 2)
        yield


@settings(max_examples=120, deadline=None)
@given(whole_steps(), st.lists(st.tuples(changes(), st.booleans()), min_size=1, max_size=4),
       st.sampled_from([1, 2, 5, None]), GROUPS)
def test_proposals_are_by_the_rules_to_the_last_bit(small_tables, step_blocks, proposals, stride, groups):
    simulation = Simulation(RESOURCES, stride, groups=groups)
    assert (simulation.run(step_blocks), times_of(simulation)) == simulate(step_blocks, RESOURCES, groups)
    current = {block.key: block for block in step_blocks}
    for change, is_kept in proposals:
        proposed = changed(current, change)
        assert (simulation.propose(change), times_of(simulation)) == simulate(proposed.values(), RESOURCES, groups)
        if is_kept:
            current = proposed
        else:
            simulation.rollback()
            assert (simulation.seconds, times_of(simulation)) == simulate(current.values(), RESOURCES, groups)
    last = Simulation(RESOURCES, groups=groups)
    last.run(current.values())
    assert simulation.critical_path() == last.critical_path()


@settings(max_examples=150, deadline=None)
@given(whole_steps(), changes(), changes(), st.sampled_from([0.0, 0.3, 0.7, 0.99, 1.0, 1.5]), st.sampled_from([1, 3]),
       GROUPS)
def test_a_proposal_beyond_a_limit_gives_a_lower_bound(small_tables, step_blocks, change, other, share, stride,
                                                       groups):
    current = {block.key: block for block in step_blocks}
    proposed = changed(current, change)
    expected, times = simulate(proposed.values(), RESOURCES, groups)
    limit, simulation = share * expected, Simulation(RESOURCES, stride, groups=groups)
    simulation.run(step_blocks)
    seconds = simulation.propose(change, limit)
    if expected <= limit:
        assert (seconds, times_of(simulation)) == (expected, times)
    else:
        assert limit < seconds <= expected and seconds > 0.999 * least_end_of(proposed.values())
    simulation.rollback()
    assert (simulation.propose(other), times_of(simulation)) == simulate(changed(current, other).values(), RESOURCES,
                                                                         groups)


def least_end_of(step_blocks):
    """Return when the busiest resource has done its work, except high-priority tasks, if it is never idle."""
    work = collections.Counter()
    for task in (task for block in step_blocks for task in block.content.tasks if not task['high_priority']):
        for resource in {task['resource'], task['second']} - {-1}:
            work[resource] += task['work']
    return max([(work[number] - bucket.burst) / bucket.rate for number, bucket in enumerate(RESOURCES)])


def test_remaining_work_bounds_the_time_from_below():
    simulation = Simulation([TokenBucket(1.0), TokenBucket(2.0, 4.0, 6.0)])
    simulation.run([task_block(0, [0], [1.0])])
    many = task_block(1, [1] * 100, [3.0] * 100)
    assert simulation.propose({1: many}, 100.0) == pytest.approx((300 - 6) / 2)
    assert (simulation._current.events['position'][:101] == -1).all()  # it is known before any task is dispatched
    simulation.rollback()
    assert simulation.propose({1: many}, 147.0) == pytest.approx(147.0)


@pytest.mark.parametrize('first, second, starts, ends, free', [
    # Both cores are busy all the time: the first end is known before the second task begins; the next task is delayed.
    ((0.0, 2.0), (0.0, 2.0), (0.0, 0.0), (2.0, 4.0), (4.0, 4.0)),
    # One task ends first: from then on the other core is alone.
    ((0.0, 3.0), (0.0, 1.0), (0.0, 0.0), (3.0, 2.0), (4.0, 2.0)),
    # The second task begins later, and ends alone: it does 1 of its 3 seconds while the first one does its last.
    ((0.0, 2.0), (1.0, 3.0), (0.0, 1.0), (2.0, 5.0), (3.0, 5.0)),
    # The tasks do not overlap.
    ((0.0, 2.0), (2.0, 1.0), (0.0, 2.0), (2.0, 3.0), (2.0, 3.0))])
def test_busy_cores_slow_each_other_down(first, second, starts, ends, free):
    """Two cores have half of their speed each while both are busy; each task begins after some seconds of delay."""
    simulation = Simulation([TokenBucket(1.0)] * 3, groups=[ResourceGroup((0, 1), (1.0, 0.5))])
    group_blocks = [task_block(number, [-1, core, core], [0.0, work, 1e-9], latency=[delay, 0.0, 0.0],
                              edges=[(0, 1), (1, 2)])
                    for number, (core, (delay, work)) in enumerate([(0, first), (1, second)])]
    simulation.run(group_blocks + [task_block(2, [2], [7.0])])  # on a resource of no group
    times = simulation.timeline()
    assert [times[number].starts[1] for number in (0, 1)] == pytest.approx(starts)
    assert [times[number].ends[1] for number in (0, 1)] == pytest.approx(ends)
    assert [times[number].starts[2] for number in (0, 1)] == pytest.approx(free)
    assert times[2].ends[0] == 7.0


def test_busier_cores_are_slower():
    """Once all tasks have begun, work is done as in a fluid model: by three cores, then by two, then by one."""
    shares = (1.0, 0.8, 0.5)
    simulation = Simulation([TokenBucket(1.0)] * 3, groups=[ResourceGroup((0, 1, 2), shares)])
    work = [1.0, 2.0, 4.0]
    simulation.run([task_block(core, [core, core], [work[core], 1e-9], edges=[(0, 1)]) for core in range(3)])
    starts = [times.starts[1] for times in simulation.timeline().values()]
    assert starts == pytest.approx([1 / 0.5, 1 / 0.5 + 1 / 0.8, 1 / 0.5 + 1 / 0.8 + 2], rel=1e-6)


@pytest.mark.parametrize('arithmetic, seconds', [
    # Both are bound alike: they end together.
    ((1.0, 1.0), (5.0, 5.0)), ((0.0, 0.0), (8.0, 8.0)),
    # The first one takes 5 s; the second one has done 5/8 of its work by then, and does the rest alone.
    ((1.0, 0.0), (5.0, 5.0 + 4.0 * 3 / 8)),
    # Half of the work takes 1.25 times as long, and half of it twice as long.
    ((0.5, 0.5), (6.5, 6.5))])
def test_memory_slows_work_down_more_than_arithmetic(arithmetic, seconds):
    simulation = Simulation([TokenBucket(1.0)] * 2,
                            groups=[ResourceGroup((0, 1), (1.0, 0.8), (1.0, 0.5))])
    simulation.run([task_block(core, [core, core], [4.0, 1e-9], edges=[(0, 1)], arithmetic=[arithmetic[core], 0.0])
                    for core in range(2)])
    # Ends of tasks stay as they were when the task began: the start of the next one shows when the core was free.
    assert [times.starts[1] for times in simulation.timeline().values()] == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize('group, words', [
    (ResourceGroup((0, 1), (1.0,)), 'shares='), (ResourceGroup((0, 1), (0.9, 0.8)), 'shares='),
    (ResourceGroup((0, 1), (1.0, 1.1)), 'shares='), (ResourceGroup((0, 1), (1.0, 0.0)), 'shares='),
    (ResourceGroup((0, 4), (1.0, 0.8)), 'resource 4'), (ResourceGroup((0, 2), (1.0, 0.8)), 'resource 2'),
    (ResourceGroup((0, 0), (1.0, 0.8)), 'resource 0'),
    (ResourceGroup((0, 1), (1.0, 0.8), (1.0,)), 'memory_shares='),
    (ResourceGroup((0, 1), (1.0, 0.8), (1.0, 1.2)), 'memory_shares=')])
def test_impossible_groups_are_refused(group, words):
    with pytest.raises(InputError, match='group 0: ' + words):
        Simulation(RESOURCES, groups=[group])


def test_waiting_tasks_are_dispatched_by_order():
    """Block 1 waits for the first resource from 0.5 s on, and comes before block 4, which waits from 0 s on."""
    simulation = Simulation([TokenBucket(1.0)] * 4)
    simulation.run([
        task_block(0, [2, 3], [0.5, 1.0], outputs={0: 0, 1: 1}),
        task_block(1, [0], [1.0], second=[1], dependencies=[(0, 0, 0)]),
        task_block(2, [1], [1.0], dependencies=[(0, 0, 1)]),
        task_block(3, [0], [1.0]),
        task_block(4, [0], [1.0], second=[1])])
    assert {key: times.starts.tolist() for key, times in simulation.timeline().items()} == {
        0: [0.0, 0.0], 1: [1.0], 2: [2.0], 3: [0.0], 4: [3.0]}


@settings(max_examples=100, deadline=None)
@given(whole_steps())
def test_the_critical_path_joins_start_and_end(step_blocks):
    simulation = Simulation(RESOURCES)
    seconds = simulation.run(step_blocks)
    path = simulation.critical_path()
    assert bool(path) == any(block.size for block in step_blocks)
    if path:
        times = simulation.timeline()
        assert path[-1].end == seconds and path[0].start == 0.0
        assert all(task.end <= next_task.start for task, next_task in zip(path, path[1:]))
        assert all((times[task.key].starts[task.task], times[task.key].ends[task.task]) == (task.start, task.end)
                   for task in path)


def ends_of(*step_blocks, resources=RESOURCES):
    simulation = Simulation(resources)
    simulation.run(step_blocks)
    return {key: times.ends.tolist() for key, times in simulation.timeline().items()}


def test_first_come_is_first_served():
    late = task_block(0, [-1, 0], [0, 2.0], latency=[1.0, 0.0], edges=[(0, 1)])
    assert ends_of(late, task_block(1, [0, 0], [3.0, 5.0])) == {0: [0.0, 10.0], 1: [3.0, 8.0]}


def test_a_bucket_is_fast_until_it_is_empty():
    bucket = TokenBucket(1.0, 3.0, 4.0)  # full, it lasts for 2 s at its peak, which is 6 units
    pause = task_block(1, [0, -1, 0], [8.0, 0, 6.0], latency=[0, 2.0, 0], edges=[(0, 1), (1, 2)])
    # 2 s and 2 more at the rate; 2 s idle give 2 units, which last 1 s and 3 units.
    assert ends_of(pause, resources=[bucket]) == {1: [4.0, 4.0, 10.0]}


def test_a_transfer_holds_both_links_for_the_longer_time():
    links = [TokenBucket(1.0), TokenBucket(2.0), TokenBucket(4.0)]
    transfers = task_block(1, [0, 1, 2], [4.0, 4.0, 4.0], [1, 2, -1])
    # The second transfer waits for the first one, and delays no other transfer while it waits.
    assert ends_of(transfers, resources=links) == {1: [4.0, 6.0, 1.0]}


def test_high_priority_tasks_overtake_and_delay_others():
    # Two tasks wait; while the first one runs, a high-priority task comes, which delays the second one.
    waiting = task_block(1, [0, 0], [4.0, 4.0])
    urgent = task_block(2, [-1, 0, 0, -1, 0], [0, 1.0, 1.0, 0, 1.0], latency=[1.0, 0, 0, 2.5, 0],
                    high_priority=[0, 1, 1, 0, 0], edges=[(0, 1), (0, 2), (3, 4)])
    assert ends_of(waiting, urgent) == {1: [4.0, 8.0], 2: [0.0, 2.0, 3.0, 0.0, 11.0]}


def test_a_missing_block_is_waited_for_once_added():
    simulation = Simulation(RESOURCES)
    waiting = task_block(1, [0], [1.0], dependencies=[(0, 5, 0), (0, 6, 9)])
    assert simulation.run([waiting, task_block(6, [1], [4.0], outputs={0: 0})]) == 2.0
    assert simulation.propose({5: task_block(5, [2], [6.0], outputs={0: 0})}) == 3.0
    assert simulation.propose({6: task_block(6, [1], [12.0], outputs={9: 0})}) == 7.0
    simulation.rollback()
    # In the order in which they were added.
    assert simulation.seconds == 3.0 and list(simulation.timeline()) == [1, 6, 5]
    with pytest.raises(InputError, match='rollback: there is no proposal, or it was rolled back already'):
        simulation.rollback()


def test_tasks_in_a_circle_are_refused():
    simulation = Simulation(RESOURCES)
    first = task_block(1, [0], [1.0], outputs={0: 0})
    last = task_block(2, [0], [2.0], outputs={0: 0}, dependencies=[(0, 1, 0)])
    assert simulation.run([first, last]) == 3.0
    with pytest.raises(InputError, match='blocks 1, 2: 2 of their tasks wait for each other'):
        simulation.propose({1: task_block(1, [0], [1.0], outputs={0: 0}, dependencies=[(0, 2, 0)])})
    with pytest.raises(InputError, match='blocks 3: 2 of'):
        simulation.run([task_block(3, [0, 0], [1.0, 1.0], edges=[(0, 1), (1, 0)])])
    assert simulation.seconds == 3.0
    assert simulation.propose({1: task_block(1, [0], [4.0], outputs={0: 0})}) == 6.0


def test_wrong_simulations_are_refused():
    for bucket in (TokenBucket(0.0), TokenBucket(2.0, 1.0, 5.0)):
        with pytest.raises(InputError, match='resource 1: .* give a rate above 0'):
            Simulation([TokenBucket(1.0), bucket])
    simulation = Simulation(RESOURCES)
    with pytest.raises(InputError, match='there are no blocks: run some first'):
        simulation.propose({})
    with pytest.raises(InputError, match='block 1: resource 4 does not exist: give a number below 4'):
        simulation.run([task_block(1, [4], [1.0])])
    with pytest.raises(InputError, match='two blocks have the same key: give each block another key'):
        simulation.run([task_block(1, [0], [1.0])] * 2)
    simulation.run([])
    assert simulation.seconds == 0.0 and simulation.critical_path() == []
    with pytest.raises(InputError, match='block 1: it is given under the key 2: give it under its own key'):
        simulation.propose({2: task_block(1, [0], [1.0])})
