"""What moves between ranks, computed for all at once, is what the wing's messages say."""
import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.parallel.sharding.box import size_of, split_shape
from mxhybrid.parallel.sharding.layout import Layout, messages
from mxhybrid.planner.cluster.cluster_spec import TransferCost
from mxhybrid.planner.cluster.machine_model import Machine
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.simulator.task_block import TaskBlock
from mxhybrid.planner.task_graph.redistribution import RankBoxes, Redistribution
from mxhybrid.planner.task_graph.transfer_tasks import TransferTasks, load_transfer_tasks
from tests.helpers.planned_networks import cluster
from tests.oracles.redistribution import find_coverage, find_transfers, reversed_transfers
from tests.oracles.transfer_tasks import PythonTransferTasks

SHAPE = (6, 4, 5)
COMPILED = TransferTasks(Machine(cluster()), load_transfer_tasks())
both_languages = pytest.mark.parametrize('by', [COMPILED, PythonTransferTasks], ids=['compiled', 'python'])


@st.composite
def boxes_of(draw, copies=True):
    """Boxes of a tensor by rank, some of them held by several."""
    degrees = [draw(st.integers(1, 3)) for _ in SHAPE]
    every = split_shape(SHAPE, degrees)
    times = draw(st.integers(1, 2)) if copies else 1
    ranks = draw(st.permutations(range(len(every) * times)))
    return dict(zip(ranks, list(itertools.chain(*[[box] * times for box in every]))))


@both_languages
@settings(max_examples=200, deadline=None)
@given(boxes_of(), boxes_of(), st.booleans())
def test_moves_what_messages_say(by, boxes, wanted, partial):
    if partial:
        boxes = dict.fromkeys(list(boxes)[:4], tuple((0, count) for count in SHAPE))
    have = Layout(SHAPE, boxes, partial)
    expected, by_target = collections.Counter(), collections.Counter()
    for one in messages(have, wanted):
        if one.source != one.target:
            expected[one.source, one.target] += size_of(one.box)
            by_target[one.target] += size_of(one.box)
    found = by.transfers(RankBoxes.from_boxes(boxes), partial, RankBoxes.from_boxes(wanted))
    assert not (found.sources == found.targets).any() and (found.elements > 0).all()
    unique = partial or len(set(boxes.values())) == len(boxes)
    if unique:
        pairs = zip(found.sources.tolist(), found.targets.tolist(), found.elements.tolist())
        assert {(source, target): count for source, target, count in pairs} == dict(expected)
    else:  # of those who hold the same, another one may be asked
        counts = np.bincount(found.targets, found.elements, max(wanted) + 1)
        assert {rank: count for rank, count in enumerate(counts) if count} == dict(by_target)


@settings(max_examples=200, deadline=None)
@given(boxes_of(), boxes_of(), st.booleans())
def test_both_languages_say_the_same(boxes, wanted, partial):
    have, there = RankBoxes.from_boxes(boxes), RankBoxes.from_boxes(wanted)
    one, other = (by.transfers(have, partial, there) for by in (COMPILED, PythonTransferTasks))
    rows = [sorted(zip(found.sources.tolist(), found.targets.tolist(), found.elements.tolist()))
            for found in (one, other)]
    assert rows[0] == rows[1]
    some = RankBoxes.from_boxes({rank: box for rank, box in wanted.items() if rank in boxes})
    assert COMPILED.coverage(have, some) == find_coverage(have, some)
    assert COMPILED.coverage(have, have) == find_coverage(have, have) == 2


@settings(max_examples=50, deadline=None)
@given(boxes_of(copies=False), boxes_of(copies=False))
def test_goes_back_to_where_it_came_from(boxes, wanted):
    there = find_transfers(RankBoxes.from_boxes(boxes), False, RankBoxes.from_boxes(wanted))
    answers = sorted(wanted)[::2]
    back = reversed_transfers(there, answers)
    forth = {(source, target): count for source, target, count in
             zip(there.sources.tolist(), there.targets.tolist(), there.elements.tolist()) if target in answers}
    assert forth == {(target, source): count for source, target, count in
                     zip(back.sources.tolist(), back.targets.tolist(), back.elements.tolist())}


@pytest.mark.parametrize('hosts, ranks', [(2, 1), (4, 1), (5, 2), (4, 4)])
@pytest.mark.parametrize('late', [0.0, 0.02])
def test_an_all_to_all_takes_what_links_have_to_carry(hosts, ranks, late):
    """In both directions at once, in one message or very many, and whoever comes late keeps up only itself."""
    rate, every, columns = 1e6, hosts * ranks, 2000
    machine = Machine(cluster(hosts, ranks, rate, TransferCost(0.0, 0.0, 0.0)))
    have, wanted = (RankBoxes.from_boxes(dict(enumerate(split_shape((every, columns * every), degrees))))
                    for degrees in ((every, 1), (1, every)))
    before = np.zeros(every)
    before[0] = late
    cores = [transfers.collective_operator('forward', np.arange(every, dtype=np.int32), before, np.zeros(every),
                                find_transfers(have, False, wanted), 4)
             for transfers in (PythonTransferTasks(machine), TransferTasks(machine, load_transfer_tasks()))]
    names = 'work', 'resource', 'second', 'latency', 'high_priority', 'inner_end'
    python, compiled = ([core.content.tasks[name].tolist() for name in names] + [core.content.successors.tolist()]
                        for core in cores)
    assert python == compiled
    found = Simulation(machine.resources).run([TaskBlock.from_content(0, cores[0].content, [])])
    carried = ranks * (every - ranks) * columns * 4 / rate
    # A late rank's own part is carried behind the others', or all is where its host has but one task.
    assert carried <= found - machine.cluster.link_latency_s <= carried + late + 1e-9
    if not late:
        assert found == pytest.approx(carried + machine.cluster.link_latency_s)


def test_only_who_answers_gives_gradients_back_in_both_languages():
    machine = Machine(cluster(2, 2))
    rows, columns = (RankBoxes.from_boxes(dict(enumerate(split_shape((8, 8), degrees))))
                     for degrees in ((4, 1), (1, 4)))
    made = []
    for transfers in (PythonTransferTasks(machine), TransferTasks(machine, load_transfer_tasks())):
        unit = Redistribution(rows, columns, transfers.transfers(rows, False, columns), np.array([1, 2], np.int32))
        core = transfers.redistributions([(0, unit), (2, unit)], 4, True)
        made.append([core.content.tasks[['work', 'resource', 'second', 'latency', 'inner_end']].tolist(),
                     core.content.output_tasks.tolist(), core.first.ranks.tolist(), core.last.ranks.tolist()])
    assert made[0] == made[1]
    # Of each two exchanges two ranks give to the three others, two of them on another host, and all four take.
    assert made[0][2] == [1, 2] * 2 and made[0][3] == [0, 1, 2, 3] * 2
    assert len(made[0][0]) == 2 * (2 + 4 + 2 * (1 + 2 * 2))
