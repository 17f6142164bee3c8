"""Redistributions: the transfers are the messages of split networks, and both languages make the same tasks."""
import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.parallel.sharding.box import size_of, split_shape
from mxhybrid.parallel.sharding.layout import Layout, messages
from mxhybrid.parallel.sharding.sum_steps import sum_pieces
from mxhybrid.planner.cluster.cluster_spec import TransferCost
from mxhybrid.planner.cluster.machine_model import Machine
from mxhybrid.planner.simulator.native_backend import planner_library
from mxhybrid.planner.simulator.simulation import Simulation
from mxhybrid.planner.simulator.task_block import TaskBlock
from mxhybrid.planner.task_graph.redistribution import RankBoxes, Redistribution
from mxhybrid.planner.task_graph.transfer_tasks import TransferTasks
from tests.helpers.planned_networks import cluster
from tests.oracles.redistribution import find_coverage, find_transfers, reversed_transfers
from tests.oracles.transfer_tasks import PythonTransferTasks

SHAPE = (6, 4, 5)
COMPILED = TransferTasks(Machine(cluster()), planner_library())
both_languages = pytest.mark.parametrize('builder', [COMPILED, PythonTransferTasks], ids=['compiled', 'python'])


@st.composite
def rank_boxes(draw, copies=True):
    """Boxes of a tensor by rank; with copies, several ranks may hold the same box."""
    degrees = [draw(st.integers(1, 3)) for _ in SHAPE]
    boxes = split_shape(SHAPE, degrees)
    holders = draw(st.integers(1, 2)) if copies else 1
    ranks = draw(st.permutations(range(len(boxes) * holders)))
    return dict(zip(ranks, list(itertools.chain(*[[box] * holders for box in boxes]))))


def elements_of(transfers):
    """Return the elements of each pair of a source and a target."""
    return {(source, target): elements for source, target, elements in
            zip(transfers.sources.tolist(), transfers.targets.tolist(), transfers.elements.tolist())}


@both_languages
@settings(max_examples=200, deadline=None)
@given(rank_boxes(), rank_boxes(), st.booleans())
def test_transfers_are_the_messages_of_split_networks(builder, held, needed, partial):
    if partial:
        held = dict.fromkeys(list(held)[:4], tuple((0, count) for count in SHAPE))
    expected = collections.Counter()
    for message in messages(Layout(SHAPE, held, partial), needed):
        if message.source != message.target:
            expected[message.source, message.target] += size_of(message.box)
    transfers = builder.transfers(RankBoxes.from_boxes(held), partial, RankBoxes.from_boxes(needed))
    assert not (transfers.sources == transfers.targets).any() and (transfers.elements > 0).all()
    assert elements_of(transfers) == dict(expected)


@settings(max_examples=200, deadline=None)
@given(rank_boxes(), rank_boxes(), st.booleans())
def test_both_languages_find_the_same_transfers(held, needed, partial):
    held_boxes, needed_boxes = RankBoxes.from_boxes(held), RankBoxes.from_boxes(needed)
    compiled, expected = (builder.transfers(held_boxes, partial, needed_boxes)
                          for builder in (COMPILED, PythonTransferTasks))
    assert len(compiled) == len(expected) and elements_of(compiled) == elements_of(expected)
    on_holders = RankBoxes.from_boxes({rank: box for rank, box in needed.items() if rank in held})
    assert COMPILED.coverage(held_boxes, on_holders) == find_coverage(held_boxes, on_holders)
    assert COMPILED.coverage(held_boxes, held_boxes) == find_coverage(held_boxes, held_boxes) == 2


@settings(max_examples=50, deadline=None)
@given(rank_boxes(copies=False), rank_boxes(copies=False))
def test_gradients_go_back_to_the_sources(held, needed):
    forward = find_transfers(RankBoxes.from_boxes(held), False, RankBoxes.from_boxes(needed))
    gradient_ranks = sorted(needed)[::2]
    backward = reversed_transfers(forward, gradient_ranks)
    assert elements_of(backward) == {(target, source): elements for (source, target), elements
                                     in elements_of(forward).items() if target in gradient_ranks}


def same_subgraph(machine, build):
    """Return the subgraph that a function of a builder returns, which both languages make alike."""
    builders = PythonTransferTasks(machine), TransferTasks(machine, planner_library())
    subgraphs = [build(builder) for builder in builders]
    fields = ['work', 'resource', 'second', 'latency', 'high_priority', 'inner_end']
    python, compiled = ([content.tasks[fields].tolist(), content.successors.tolist(), content.output_tasks.tolist(),
                         *(array.tolist() for ends in (first, last) for array in (ends.ranks, ends.tasks))]
                        for content, first, last in subgraphs)
    assert python == compiled
    return subgraphs[1]


@pytest.mark.parametrize('hosts, ranks', [(2, 1), (4, 1), (5, 2), (4, 4)])
@pytest.mark.parametrize('delay_s', [0.0, 0.02])
def test_an_all_to_all_takes_time_by_its_bytes(hosts, ranks, delay_s):
    """Both directions run at once, as one message or very many, and a late rank delays only itself."""
    rate, every, columns = 1e6, hosts * ranks, 2000
    machine = Machine(cluster(hosts, ranks, rate, TransferCost(0.0, 0.0, 0.0)))
    held, needed = (RankBoxes.from_boxes(dict(enumerate(split_shape((every, columns * every), degrees))))
                    for degrees in ((every, 1), (1, every)))
    before = np.zeros(every)
    before[0] = delay_s
    subgraph = same_subgraph(machine, lambda builder: builder.collective_operator(
        'forward', np.arange(every, dtype=np.int32), before, np.zeros(every), find_transfers(held, False, needed), 4))
    seconds = Simulation(machine.resources).run([TaskBlock(0, subgraph.content, [])])
    link_s = ranks * (every - ranks) * columns * 4 / rate
    # The data of a late rank comes after that of the others; where its host has one task for all, all data is late.
    assert link_s <= seconds - machine.cluster.link_latency_s <= link_s + delay_s + 1e-9
    if not delay_s:
        assert seconds == pytest.approx(link_s + machine.cluster.link_latency_s)


def test_only_ranks_with_gradients_send_them_back():
    machine = Machine(cluster(2, 2))
    rows, columns = (RankBoxes.from_boxes(dict(enumerate(split_shape((8, 8), degrees))))
                     for degrees in ((4, 1), (1, 4)))

    def build(builder):
        unit = Redistribution(rows, columns, builder.transfers(rows, False, columns), np.array([1, 2], np.int32))
        return builder.redistributions([(0, unit), (2, unit)], 4, True)
    content, first, last = same_subgraph(machine, build)
    # In each of the two redistributions two ranks send to the three others, two of them on another host, and all four
    # receive.
    assert first.ranks.tolist() == [1, 2] * 2 and last.ranks.tolist() == [0, 1, 2, 3] * 2
    assert content.size == 2 * (2 + 4 + 2 * (1 + 2 * 2))


@pytest.mark.parametrize('back', [False, True])
def test_kept_elements_are_copied_and_arrays_converted(back):
    """The cores of two ranks that exchange border rows copy their own rows at the rate of memory."""
    machine = Machine(cluster(1, 2, cost=TransferCost(0.0, 0.0, 0.0)))
    rows = RankBoxes.from_boxes({0: ((0, 4), (0, 10)), 1: ((4, 8), (0, 10))})
    with_borders = RankBoxes.from_boxes({0: ((0, 5), (0, 10)), 1: ((3, 8), (0, 10))})
    kept_s, holder_s, reader_s = 40 * 4 / machine.cluster.memory.rate, np.array([0.5, 0.25]), np.array([2.0, 3.0])
    for gradient_ranks in ([0, 1], [1])[:1 + back]:
        def build(builder, gradient_ranks=gradient_ranks):
            unit = Redistribution(rows, with_borders, builder.transfers(rows, False, with_borders),
                                  np.array(gradient_ranks, np.int32), conversions=(holder_s, reader_s))
            return builder.redistributions([(0, unit)], 4, back)
        tasks = same_subgraph(machine, build).content.tasks
        senders = gradient_ranks if back else [0, 1]
        before, after = (reader_s, holder_s) if back else (holder_s, reader_s)
        assert tasks['work'][tasks['resource'] >= 0].tolist() == [before[rank] for rank in senders] + [
            pytest.approx(after[rank] + kept_s * (rank in senders), rel=1e-12) for rank in (0, 1)]


@pytest.mark.parametrize('hosts, ranks', [(4, 1), (2, 3)])
@pytest.mark.parametrize('back', [False, True])
def test_a_two_step_sum_takes_time_by_its_bytes(hosts, ranks, back):
    """Both languages make the same tasks, and one host sends 2 (n - 1) / n of the sum for its ranks."""
    rate, every = 1e6, hosts * ranks
    machine = Machine(cluster(hosts, ranks, rate, TransferCost(0.0, 0.0, 0.0)))
    whole = dict.fromkeys(range(every), ((0, 10 * every), (0, 1000)))
    boxes = RankBoxes.from_boxes(whole)
    pieces = RankBoxes.from_boxes(sum_pieces(Layout((10 * every, 1000), whole, True), whole, 4))

    def unit_of(builder):
        return Redistribution(boxes, boxes, builder.transfers(boxes, True, pieces), boxes.ranks, (), pieces,
                              builder.transfers(pieces, False, boxes))

    def build(builder):
        converted = unit_of(builder)._replace(conversions=(np.arange(every) / 3, np.arange(every) / 7))
        return builder.redistributions([(0, converted), (3, unit_of(builder))], 4, back)
    subgraph = same_subgraph(machine, build)
    assert subgraph.first.ranks.tolist() == subgraph.last.ranks.tolist() == 2 * list(range(every))
    content = same_subgraph(machine, lambda builder: builder.redistributions([(0, unit_of(builder))], 4, back)).content
    seconds = Simulation(machine.resources).run([TaskBlock(0, content, [])])
    sent = 2 * ranks * (every - ranks) * 10 * 1000 * 4
    # A rank copies its own piece in both steps.
    kept_s = 2 * 10 * 1000 * 4 / machine.cluster.memory.rate
    # A rank sends its sum as soon as it has it, while others may still wait for theirs.
    assert 0 < seconds - sent / rate < 2 * machine.cluster.link_latency_s + kept_s + 1e-9
