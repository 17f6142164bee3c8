"""Simulated steps: by hand, against a plain reading of the rules, and changes against fresh runs."""
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.planner.simulator import task_table
from mxhybrid.planner.simulator.backend import PYTHON, compiled_engine
from mxhybrid.planner.simulator.resource_groups import ResourceGroup
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.simulator.task_block import TaskBlock
from mxhybrid.planner.simulator.token_bucket import TokenBucket

RESOURCES = [TokenBucket(1.0), TokenBucket(2.0), TokenBucket(1.0, 3.0, 4.0), TokenBucket(0.7, 2.5, 1.0)]
#: Resources that slow each other down, or none.
GROUPS = st.sampled_from([(), (ResourceGroup((0, 1), (1.0, 0.6)),)])
KEYS = 7
PORTS = 3


@st.composite
def blocks(draw, key):
    """A block whose tasks come after those of smaller keys."""
    size = draw(st.integers(0, 6))

    def one_of(*values):
        return st.lists(st.sampled_from(values), min_size=size, max_size=size)

    resource = draw(one_of(-1, 0, 1, 2, 3))
    second = [other if one >= 0 and one != other else -1 for one, other in zip(resource, draw(one_of(-1, -1, 1, 3)))]
    work = [0.0 if one < 0 else units for one, units in zip(resource, draw(one_of(0.0, 0.1, 0.7, 1.0, 3.0, 11.0)))]
    pairs = [(before, after) for before in range(size) for after in range(before + 1, size)]
    inner = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    ports = draw(st.dictionaries(st.integers(0, PORTS - 1), st.integers(0, size - 1))) if size else {}
    waits = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, key - 1), st.integers(0, PORTS)),
                          max_size=8)) if size and key else []
    return TaskBlock(key, resource, work, second, draw(one_of(0.0, 0.0, 0.3)), draw(one_of(False, False, True)), inner,
                 ports, waits)


def whole_steps():
    return st.tuples(*(st.none() | blocks(key) for key in range(KEYS))).map(
        lambda found: [block for block in found if block is not None])


@st.composite
def changes(draw):
    keys = draw(st.lists(st.integers(0, KEYS - 1), unique=True, max_size=3))
    return {key: draw(st.none() | blocks(key)) for key in keys}


def outcome(simulation):
    return {key: (times.starts.tolist(), times.ends.tolist()) for key, times in simulation.timeline().items()}


def fresh(found, groups=()):
    simulation = Simulation(RESOURCES, engine=PYTHON, groups=groups)
    return simulation.run(found), outcome(simulation)


@pytest.fixture(scope='module')
def little_room():
    """So that blocks are often laid out anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_table, '_LEAST', 1)
        patch.setattr(task_table, '_SPARE', 2)
        yield


@settings(max_examples=120, deadline=None)
@given(whole_steps(), st.lists(st.tuples(changes(), st.booleans()), min_size=1, max_size=4),
       st.sampled_from([1, 2, 5, None]), GROUPS)
@pytest.mark.parametrize('engine', [PYTHON, compiled_engine()], ids=['Python', 'compiled'])
def test_changes_are_fresh_runs_to_the_last_bit(little_room, engine, found, events, stride, groups):
    simulation = Simulation(RESOURCES, stride, engine, groups)
    simulation.run(found)
    now = {block.key: block for block in found}
    for change, keep in events:
        then = {key: block for key, block in {**now, **change}.items() if block is not None}
        assert (simulation.change(change), outcome(simulation)) == fresh(then.values(), groups)
        if keep:
            now = then
        else:
            simulation.undo()
            assert (simulation.seconds, outcome(simulation)) == fresh(now.values(), groups)
    last = Simulation(RESOURCES, groups=groups)
    last.run(now.values())
    assert simulation.critical_path() == last.critical_path()


@settings(max_examples=150, deadline=None)
@given(whole_steps(), changes(), changes(), st.sampled_from([0.0, 0.3, 0.7, 0.99, 1.0, 1.5]), st.sampled_from([1, 3]),
       GROUPS)
def test_of_what_is_beyond_a_limit_it_suffices_that_it_is(little_room, found, change, other, share, stride, groups):
    now = {block.key: block for block in found}
    expected, times = fresh([block for block in {**now, **change}.values() if block is not None], groups)
    limit, said = share * expected, []
    for engine in (PYTHON, compiled_engine()):
        simulation = Simulation(RESOURCES, stride, engine, groups)
        simulation.run(found)
        said.append(simulation.change(change, limit))
        if expected <= limit:
            assert (said[-1], outcome(simulation)) == (expected, times)
        else:
            assert limit < said[-1] <= expected
        simulation.undo()
        assert (simulation.change(other), outcome(simulation)) == fresh(
            [block for block in {**now, **other}.values() if block is not None], groups)
    assert said[0] == said[1]


def test_what_is_left_to_do_tells_before_it_is_done():
    simulation = Simulation([TokenBucket(1.0), TokenBucket(2.0, 4.0, 6.0)], engine=compiled_engine())
    simulation.run([TaskBlock(0, [0], [1.0])])
    many = TaskBlock(1, [1] * 100, [3.0] * 100)
    assert simulation.change({1: many}, 100.0) == pytest.approx((300 - 6) / 2)
    simulation.undo()
    assert simulation.change({1: many}, 147.0) == pytest.approx(147.0)


@pytest.mark.parametrize('engine', [PYTHON, compiled_engine()], ids=['Python', 'compiled'])
@pytest.mark.parametrize('first, second, starts, ends, free', [
    # Both all the time: the first one's end is known before the second one comes, what follows it is put off.
    ((0.0, 2.0), (0.0, 2.0), (0.0, 0.0), (2.0, 4.0), (4.0, 4.0)),
    # One is done first: from then on the other one is alone.
    ((0.0, 3.0), (0.0, 1.0), (0.0, 0.0), (3.0, 2.0), (4.0, 2.0)),
    # The second one comes later, and ends alone: 1 of its 3 while the first does its last one.
    ((0.0, 2.0), (1.0, 3.0), (0.0, 1.0), (2.0, 5.0), (3.0, 5.0)),
    # They have nothing to do with each other.
    ((0.0, 2.0), (2.0, 1.0), (0.0, 2.0), (2.0, 3.0), (2.0, 3.0))])
def test_busy_cores_slow_each_other_down(engine, first, second, starts, ends, free):
    """Two of which each has half of its speed while both are busy; a task comes after some seconds, and takes some."""
    simulation = Simulation([TokenBucket(1.0)] * 3, engine=engine, groups=[ResourceGroup((0, 1), (1.0, 0.5))])
    blocks = [TaskBlock(number, [-1, core, core], [0.0, work, 1e-9], latency=[delay, 0.0, 0.0], inner=[(0, 1), (1, 2)])
              for number, (core, (delay, work)) in enumerate([(0, first), (1, second)])]
    simulation.run(blocks + [TaskBlock(2, [2], [7.0])])  # which is in no group
    found = simulation.timeline()
    assert [found[number].starts[1] for number in (0, 1)] == pytest.approx(starts)
    assert [found[number].ends[1] for number in (0, 1)] == pytest.approx(ends)
    assert [found[number].starts[2] for number in (0, 1)] == pytest.approx(free)
    assert found[2].ends[0] == 7.0


@pytest.mark.parametrize('engine', [PYTHON, compiled_engine()], ids=['Python', 'compiled'])
def test_the_more_cores_are_busy_the_slower_each_of_them_is(engine):
    """All work is done as a fluid model has it, once all have begun: 3 of three, then of two, then of one."""
    shares = (1.0, 0.8, 0.5)
    simulation = Simulation([TokenBucket(1.0)] * 3, engine=engine, groups=[ResourceGroup((0, 1, 2), shares)])
    work = [1.0, 2.0, 4.0]
    simulation.run([TaskBlock(core, [core, core], [work[core], 1e-9], inner=[(0, 1)]) for core in range(3)])
    found = [times.starts[1] for times in simulation.timeline().values()]
    assert found == pytest.approx([1 / 0.5, 1 / 0.5 + 1 / 0.8, 1 / 0.5 + 1 / 0.8 + 2], rel=1e-6)


@pytest.mark.parametrize('group, words', [
    (ResourceGroup((0, 1), (1.0,)), 'shares='), (ResourceGroup((0, 1), (0.9, 0.8)), 'shares='),
    (ResourceGroup((0, 1), (1.0, 1.1)), 'shares='), (ResourceGroup((0, 1), (1.0, 0.0)), 'shares='),
    (ResourceGroup((0, 4), (1.0, 0.8)), 'resource 4'), (ResourceGroup((0, 2), (1.0, 0.8)), 'resource 2'),
    (ResourceGroup((0, 0), (1.0, 0.8)), 'resource 0')])
def test_groups_that_cannot_be_are_refused(group, words):
    with pytest.raises(InputError, match='group 0: ' + words):
        Simulation(RESOURCES, groups=[group])


@pytest.mark.parametrize('engine', [PYTHON, compiled_engine()], ids=['Python', 'compiled'])
def test_who_waits_for_a_resource_goes_by_order_however_late_it_came(engine):
    """Of those that wait for the first resource, the last one comes last, and is before who is ready just then."""
    simulation = Simulation([TokenBucket(1.0)] * 4, engine=engine)
    simulation.run([
        TaskBlock(0, [2, 3], [0.5, 1.0], ports={0: 0, 1: 1}),
        TaskBlock(1, [0], [1.0], second=[1], waits=[(0, 0, 0)]),
        TaskBlock(2, [1], [1.0], waits=[(0, 0, 1)]),
        TaskBlock(3, [0], [1.0]),
        TaskBlock(4, [0], [1.0], second=[1])])
    assert {key: times.starts.tolist() for key, times in simulation.timeline().items()} == {
        0: [0.0, 0.0], 1: [1.0], 2: [2.0], 3: [0.0], 4: [3.0]}


def by_the_rules(found):
    """Starts and ends of all tasks, by looking through all of them for the next one, again and again."""
    all_blocks = {block.key: block for block in found}
    before = {}
    for block in found:
        for task in range(block.size):
            first, last = block.content.tasks[task][['inner', 'inner_end']]
            for after in block.content.targets[first:last]:
                before.setdefault((block.key, int(after)), []).append((block.key, task))
        for other, waits, shift in block.reads:
            for task, port in zip(waits.tasks, waits.ports + shift):
                table = all_blocks[other].content.table if other in all_blocks else [-1]
                if port < len(table) - 1 and table[port] >= 0:
                    before.setdefault((block.key, int(task)), []).append((other, int(table[port])))
    free = [[0.0, 0.0] for _ in RESOURCES]
    level = [one.burst for one in RESOURCES]
    todo = {(block.key, task): block.content.tasks[task] for block in found for task in range(block.size)}
    starts, ends, after = {}, {}, {}

    def held_by(task):
        return [one for one in (int(task['resource']), int(task['second'])) if one >= 0]

    def when(name):
        """Two resources are asked for when both are free, one at once."""
        ready, task = max([after[one] for one in before.get(name, [])], default=0.0), todo[name]
        return max([ready] + [free[one][task['express']] for one in held_by(task)]) if task['second'] >= 0 else ready
    while todo:
        ready, name = min((when(name), name) for name in todo if all(one in after for one in before.get(name, [])))
        task = todo.pop(name)
        held = held_by(task)
        start = max([ready] + [free[one][task['express']] for one in held])
        took, work = 0.0, float(task['work'])
        for one in held:
            bucket = RESOURCES[one]
            level[one] = min(bucket.burst, level[one] + max(0.0, start - free[one][0]) * bucket.rate)
            fast = level[one] / (bucket.peak - bucket.rate) if level[one] > 0 else 0.0
            slow = max(0.0, work - fast * bucket.peak) / bucket.rate
            took = max(took, work / bucket.peak if fast and not slow else fast + slow)
        for one in held:
            bucket = RESOURCES[one]
            level[one] = min(bucket.burst, max(0.0, level[one] + bucket.rate * took - work))
            if task['express']:
                free[one] = [max(free[one][0], start) + took, start + took]
            else:
                free[one][0] = start + took
        starts[name], ends[name] = start, start + took
        after[name] = ends[name] + float(task['latency'])
    return starts, ends


@settings(max_examples=100, deadline=None)
@given(whole_steps())
def test_a_run_is_by_the_rules(found):
    simulation = Simulation(RESOURCES)
    seconds = simulation.run(found)
    starts, ends = by_the_rules(found)
    assert seconds == pytest.approx(max(ends.values(), default=0.0), abs=1e-9)
    for key, times in simulation.timeline().items():
        for index, (start, end) in enumerate(zip(*times)):
            assert (start, end) == pytest.approx((starts[key, index], ends[key, index]), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(whole_steps())
def test_the_critical_path_leads_from_the_start_to_the_last_end(found):
    simulation = Simulation(RESOURCES)
    seconds = simulation.run(found)
    path = simulation.critical_path()
    assert bool(path) == (simulation.tasks > 0)
    if path:
        times = simulation.timeline()
        assert path[-1].end == seconds and path[0].why == 'start' and path[0].start == 0.0
        assert all(link.why != 'start' for link in path[1:])
        assert all(one.end <= other.start for one, other in zip(path, path[1:]))
        assert all((times[link.key].starts[link.task], times[link.key].ends[link.task]) == (link.start, link.end)
                   for link in path)


def ends_of(*found, resources=RESOURCES):
    simulation = Simulation(resources)
    simulation.run(found)
    return {key: times.ends.tolist() for key, times in simulation.timeline().items()}


def test_first_come_is_first_served():
    late = TaskBlock(0, [-1, 0], [0, 2.0], latency=[1.0, 0.0], inner=[(0, 1)])
    assert ends_of(late, TaskBlock(1, [0, 0], [3.0, 5.0])) == {0: [0.0, 10.0], 1: [3.0, 8.0]}


def test_a_bucket_is_fast_until_it_is_empty_and_fills_up_while_idle():
    bucket = TokenBucket(1.0, 3.0, 4.0)  # full, it lasts for 2 s at its peak, which is 6 units
    pause = TaskBlock(1, [0, -1, 0], [8.0, 0, 6.0], latency=[0, 2.0, 0], inner=[(0, 1), (1, 2)])
    # 2 s and 2 more at the rate; 2 s idle give 2 units, which last 1 s and 3 units.
    assert ends_of(pause, resources=[bucket]) == {1: [4.0, 4.0, 10.0]}


def test_a_transfer_holds_both_links_for_the_longer_time():
    links = [TokenBucket(1.0), TokenBucket(2.0), TokenBucket(4.0)]
    transfers = TaskBlock(1, [0, 1, 2], [4.0, 4.0, 4.0], [1, 2, -1])
    # The second waits for the first one, and holds back nobody meanwhile.
    assert ends_of(transfers, resources=links) == {1: [4.0, 6.0, 1.0]}


def test_express_tasks_overtake_and_put_off():
    # Two wait; while the first one works, an express one comes, and the second gets later by it.
    waiting = TaskBlock(1, [0, 0], [4.0, 4.0])
    express = TaskBlock(2, [-1, 0, 0, -1, 0], [0, 1.0, 1.0, 0, 1.0], latency=[1.0, 0, 0, 2.5, 0],
                    express=[0, 1, 1, 0, 0], inner=[(0, 1), (0, 2), (3, 4)])
    assert ends_of(waiting, express) == {1: [4.0, 8.0], 2: [0.0, 2.0, 3.0, 0.0, 11.0]}


def test_a_missing_block_or_port_is_no_wait_until_it_comes():
    simulation = Simulation(RESOURCES)
    waiting = TaskBlock(1, [0], [1.0], waits=[(0, 5, 0), (0, 6, 9)])
    assert simulation.run([waiting, TaskBlock(6, [1], [4.0], ports={0: 0})]) == 2.0
    assert simulation.change({5: TaskBlock(5, [2], [6.0], ports={0: 0})}) == 3.0
    assert simulation.change({6: TaskBlock(6, [1], [12.0], ports={9: 0})}) == 7.0
    simulation.undo()
    # In the order in which they came.
    assert simulation.seconds == 3.0 and [block.key for block in simulation.blocks()] == [1, 6, 5]
    with pytest.raises(InputError, match='taken back already'):
        simulation.undo()


@pytest.mark.parametrize('engine', [PYTHON, compiled_engine()], ids=['Python', 'compiled'])
def test_tasks_that_wait_for_each_other_are_refused_and_change_nothing(engine):
    simulation = Simulation(RESOURCES, engine=engine)
    first, last = TaskBlock(1, [0], [1.0], ports={0: 0}), TaskBlock(2, [0], [2.0], ports={0: 0}, waits=[(0, 1, 0)])
    assert simulation.run([first, last]) == 3.0
    with pytest.raises(InputError, match='blocks 1, 2: 2 of their tasks wait for each other'):
        simulation.change({1: TaskBlock(1, [0], [1.0], ports={0: 0}, waits=[(0, 2, 0)])})
    with pytest.raises(InputError, match='blocks 3: 2 of'):
        simulation.run([TaskBlock(3, [0, 0], [1.0, 1.0], inner=[(0, 1), (1, 0)])])
    assert simulation.seconds == 3.0
    assert simulation.change({1: TaskBlock(1, [0], [4.0], ports={0: 0})}) == 6.0


def refused(match, **what):
    with pytest.raises(InputError, match=match):
        TaskBlock(**{'key': 3, 'resource': [0, 1], 'work': 1.0, **what})


def test_wrong_blocks_are_refused():
    refused('block -1: give a key', key=-1)
    refused('block 3: work: give a number, or one for each of 2 tasks', work=[1.0, 2.0, 3.0])
    refused('block 3: work: give numbers of at least 0', work=[1.0, -2.0])
    refused('block 3: latency: give numbers of at least 0', latency=float('nan'))
    refused('block 3: resource, second', resource=[0, -2])
    refused('block 3: second: give it only with another', second=[0, -1])
    refused('block 3: work: a task without resource', resource=[0, -1])
    refused('block 3: inner: it has 2 tasks, and none of index 2', inner=[(0, 2)])
    refused('block 3: inner: give rows of 2 numbers', inner=[(0, 1, 2)])
    refused('block 3: ports: it has 2 tasks', ports={0: 5})
    refused('block 3: ports: give numbers less than', ports={1 << 30: 0})
    refused('block 3: waits: give numbers of at least 0, not -1', waits=[(0, -1, 0)])
    refused('block 3: waits: its tasks wait for each other by `inner`', waits=[(0, 3, 0)])


def test_wrong_simulations_are_refused():
    for bucket in (TokenBucket(0.0), TokenBucket(2.0, 1.0, 5.0)):
        with pytest.raises(InputError, match='resource 1: .* give a rate above 0'):
            Simulation([TokenBucket(1.0), bucket])
    simulation = Simulation(RESOURCES)
    with pytest.raises(InputError, match='run blocks first'):
        simulation.change({})
    with pytest.raises(InputError, match='there are 4 resources, and none of number 4'):
        simulation.run([TaskBlock(1, [4], [1.0])])
    with pytest.raises(InputError, match='two have the same key'):
        simulation.run([TaskBlock(1, [0], [1.0])] * 2)
    simulation.run([])
    assert simulation.seconds == 0.0 and simulation.critical_path() == []
    with pytest.raises(InputError, match='block 1: it is given as block 2'):
        simulation.change({2: TaskBlock(1, [0], [1.0])})
