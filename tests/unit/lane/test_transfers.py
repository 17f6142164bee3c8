"""Transfers between workers: bit for bit the results of the socket transport, in jobs of several shapes."""
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import JobError
from mxhybrid.lane.transfers import PersistentTransfer
from mxhybrid.parallel.redistribution.lane_transport import LaneTransport, persistent_transfer_of
from mxhybrid.parallel.redistribution.redistribution import Redistribution
from mxhybrid.parallel.redistribution.socket_transport import SocketTransport
from mxhybrid.parallel.sharding.box import full, split_range
from mxhybrid.parallel.sharding.layout import Layout, Movement

from .hosts import LIMIT_MS, hosts, lib, start, wait_for

#: Workers and agents of each host; three workers, so that sums have an order.
SHAPES = {'host': ([3], [1]), 'two': ([2, 1], [1, 1]), 'three': ([1, 1, 1], [1, 1, 1]), 'agents': ([1, 2], [2, 3])}
FLOATS = ['float16', 'float32', 'float64']
DTYPES = FLOATS + ['int8', 'uint8', 'int32', 'int64', 'bool']
RANKS = 3


class Channels:
    """The part of the channels of a worker that persistent_transfer_of() calls."""

    def __init__(self, job, rank):
        self._worker, self._rank = job.workers[rank][2], rank

    def transfer(self, *args):
        return PersistentTransfer(self._worker, self._rank, *args)


@pytest.fixture(scope='module', params=SHAPES)
def job(request):
    with hosts(*SHAPES[request.param]) as job:
        job.link()
        yield job


@pytest.fixture(scope='module')
def transports():
    sockets = [{} for _ in range(RANKS)]
    for rank in range(RANKS):
        for other in range(rank):
            with socket.create_server(('127.0.0.1', 0)) as listener:
                sockets[rank][other] = socket.create_connection(listener.getsockname())
                sockets[other][rank], _ = listener.accept()
    failures = []
    yield [SocketTransport(rank, sockets[rank], failures.append) for rank in range(RANKS)]
    assert failures == []


def by_sockets(transports, moves, sources, targets):
    """Return the targets as the socket transport writes them."""
    events = [threading.Event() for _ in moves]
    for transport, move, source, target, event in zip(transports, moves, sources, targets, events):
        transport.begin(move, source, target, event.set)
    assert all(event.wait(LIMIT_MS / 1000) for event in events)
    return targets


def by_lane(job, moves, sources, targets):
    """Return the targets as the lane writes them, after two runs with the same memory."""
    dtype = next(array.dtype for array in (*sources, *targets) if array is not None)
    transfers = [persistent_transfer_of(Channels(job, rank), move, dtype, getattr(source, 'shape', None),
                                        getattr(target, 'shape', None))
                 for rank, (move, source, target) in enumerate(zip(moves, sources, targets))]
    for _ in range(2):
        for target in targets:
            if target is not None:
                target.view(np.uint8)[...] = 0xaa
        wait_for(start(*arguments) for arguments in zip(transfers, sources, targets))
    return targets


def values(random, shape, dtype):
    if shape is None:
        return None
    found = random.normal(size=shape) * 100
    found[random.uniform(size=shape) < 0.2] = -0.0
    return found.astype(dtype)


def empty(shape, dtype):
    return None if shape is None else np.full(shape, 1, dtype)


_tags = iter(range(1 << 40))


@st.composite
def layouts(draw):
    """Draw a shape, the boxes that ranks have, and the boxes that they need."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))

    def box(beyond):
        ends = [(draw(st.integers(-beyond, count - 1)), draw(st.integers(1, count + beyond))) for count in shape]
        return tuple((min(pair), max(pair)) if pair[0] != pair[1] else (pair[0], pair[1] + 1) for pair in ends)
    ranks = st.sets(st.integers(0, RANKS - 1), min_size=1)
    if draw(st.booleans()):
        have = Layout(shape, {rank: box(0) for rank in draw(ranks)}, partial=True)
        return have, {rank: box(0) for rank in draw(ranks)}
    axis = draw(st.integers(0, len(shape) - 1))
    degree = min(shape[axis], RANKS)
    boxes = {rank: tuple(full(shape)[:axis]) + (cut,) + tuple(full(shape)[axis + 1:])
             for rank, cut in enumerate(split_range(shape[axis], degree))}
    return Layout(shape, boxes), {rank: box(2) for rank in draw(ranks)}


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(layouts(), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 99))
def test_results_are_those_of_the_socket_transport(job, transports, two, dtype, one_gradient, seed):
    layout, needed = two
    if layout.partial and dtype == 'bool':
        dtype = 'int8'
    random = np.random.RandomState(seed)
    number = next(_tags)
    redistributions = [Redistribution(number, rank, Movement(layout, needed, dtype, float(seed % 3), one_gradient))
                       for rank in range(RANKS)]
    shapes = [redistribution.shapes for redistribution in redistributions]
    directions = [([redistribution.forward for redistribution in redistributions], *map(list, zip(*shapes)))]
    if dtype in FLOATS:
        backward = [redistribution.backward for redistribution in redistributions]
        directions.append((backward, directions[0][2], directions[0][1]))
    for moves, source_shapes, target_shapes in directions:
        sources = [values(random, shape, dtype) for shape in source_shapes]
        expected = by_sockets(transports, moves, sources, [empty(shape, dtype) for shape in target_shapes])
        found = by_lane(job, moves, sources, [empty(shape, dtype) for shape in target_shapes])
        for result, reference in zip(found, expected):
            if reference is not None:
                assert result.tobytes() == reference.tobytes()


def moves_of(ranks, *movement):
    """Return the moves of ranks in a movement with a tag of its own."""
    number = next(_tags)
    return [Redistribution(number, rank, Movement(*movement)).forward for rank in ranks]


def swap(job, count):
    """Return transfers in which each worker sends its whole array to all others, which add the arrays up."""
    whole = dict.fromkeys(range(RANKS), ((0, count),))
    moves = moves_of(range(RANKS), Layout((count,), whole, partial=True), whole, 'float32')
    return [persistent_transfer_of(Channels(job, rank), move, 'float32', (count,), (count,))
            for rank, move in enumerate(moves)]


def one_way_moves(sender, receiver, count):
    whole = ((0, count),)
    return moves_of((sender, receiver), Layout((count,), {sender: whole}), {receiver: whole}, 'f4')


def one_way(job, sender, receiver, count):
    """Return the transfers of two workers, of which one sends its array to the other."""
    sending, receiving = one_way_moves(sender, receiver, count)
    return (persistent_transfer_of(Channels(job, sender), sending, 'f4', (count,), None),
            persistent_transfer_of(Channels(job, receiver), receiving, 'f4', None, (count,)))


#: A ring has 256 bytes to 1 MB; a message between hosts has at most 256 KB.
@pytest.mark.parametrize('count', [1, 63, 64, 65, 129, 1000, 131072, 262144, 262145, 1000003])
def test_sizes(job, count):
    transfers = swap(job, count)
    for step in range(3):
        sources = [np.random.RandomState([rank, step]).normal(size=count).astype('f4') for rank in range(RANKS)]
        targets = [np.full(count, np.nan, 'f4') for _ in range(RANKS)]
        wait_for(start(*arguments) for arguments in zip(transfers, sources, targets))
        expected = np.float32(0) + sources[0] + sources[1] + sources[2]
        for target in targets:
            np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize('count, fit', [(5, 10), (1000, 2), (100000, 2), (600000, 0)])
@pytest.mark.parametrize('receiver', [1, 2])
def test_writer_may_be_ahead_by_its_ring(job, receiver, count, fit):
    sending, receiving = one_way(job, 0, receiver, count)
    sources = [np.full(count, step, 'f4') for step in range(12)]
    sends = [start(sending, source, None) for source in sources]
    assert [run.done.is_set() for run in sends] == [step < fit for step in range(12)]
    for step in range(12):
        target = np.full(count, np.nan, 'f4')
        start(receiving, None, target).wait()
        assert (target == step).all()
    wait_for(sends)


def test_reader_may_start_many_runs_before_the_writer(job):
    sending, receiving = one_way(job, 0, 2, 1000)
    targets = [np.full(1000, np.nan, 'f4') for _ in range(20)]
    receives = [start(receiving, None, target) for target in targets]
    assert not any(run.done.wait(0.01) for run in receives)
    sends = [start(sending, np.full(1000, step, 'f4'), None) for step in range(20)]
    wait_for(receives + sends)
    assert [target[-1] for target in targets] == list(range(20))


def test_cancelled_runs_end_without_the_other_worker(job):
    """Runs under way, on either side, and runs that start later; other transfers are made."""
    sending, receiving = one_way(job, 0, 2, 600000)  # larger than its ring
    other_sending, other_receiving = one_way(job, 0, 2, 1000)
    assert not sending.is_under_way and not receiving.is_under_way
    runs = [start(sending, np.ones(600000, 'f4'), None), start(other_receiving, None, np.zeros(1000, 'f4'))]
    assert [run.done.wait(0.01) for run in runs] == [False, False]
    assert sending.is_under_way and other_receiving.is_under_way
    sending.cancel()
    runs[0].wait()
    receiving.cancel()
    for _ in range(2):
        target = np.zeros(600000, 'f4')
        start(receiving, None, target).wait()
        assert np.isnan(target).all()
    assert not sending.is_under_way and not receiving.is_under_way
    wait_for([start(other_sending, np.ones(1000, 'f4'), None), runs[1]])


def test_cancelled_transfers_by_sockets_end_without_the_other_worker(transports):
    """A transfer under way, one that begins later, and one of another tag."""
    moves = [one_way_moves(0, 1, 4) for _ in range(2)]
    targets, ended = [np.zeros(4, 'f4') for _ in range(3)], [threading.Event() for _ in range(3)]
    transports[1].begin(moves[0][1], None, targets[0], ended[0].set)
    transports[1].begin(moves[1][1], None, targets[1], ended[1].set)
    tags = moves[0][1].tag, moves[1][1].tag
    assert set(tags) <= set(transports[1].tags_under_way())
    transports[1].cancel(tags[0], tags[0] + 1)
    assert ended[0].wait(LIMIT_MS / 1000)
    transports[1].begin(moves[0][1], None, targets[2], ended[2].set)
    assert ended[2].wait(LIMIT_MS / 1000)
    assert np.isnan(targets[0]).all() and np.isnan(targets[2]).all()
    assert tags[0] not in transports[1].tags_under_way() and not ended[1].is_set()
    for move in moves:
        transports[0].begin(move[0], np.ones(4, 'f4'), None, lambda: None)
    assert ended[1].wait(LIMIT_MS / 1000)
    assert (targets[1] == 1).all() and np.isnan(targets[0]).all()


def test_waiting_data_of_one_tag_blocks_no_other_tag(job):
    """The first transfer is larger than its ring, and its reader does not start yet."""
    sending, receiving = one_way(job, 0, 1, 1 << 20)
    source = np.arange(1 << 20, dtype='f4')
    waiting = start(sending, source, None)
    for _ in range(3):
        transfers = swap(job, 50000)
        completions = [start(transfer, np.full(50000, rank, 'f4'), np.empty(50000, 'f4'))
                       for rank, transfer in enumerate(transfers)]
        wait_for(completions)
        assert all((run.arrays[1] == 3).all() for run in completions)
    assert not waiting.done.is_set()
    target = np.empty_like(source)
    wait_for([start(receiving, None, target), waiting])
    np.testing.assert_array_equal(target, source)


def test_many_tags_in_any_order(job):
    """Each worker starts transfers in its own order, some more often than others, all before any is complete."""
    random = np.random.RandomState(1)
    counts = [int(count) for count in random.choice([1, 100, 3000, 40000, 300000], 25)]
    moves = [swap(job, count) for count in counts]

    def run(rank):
        order = [which for which in range(len(moves)) for _ in range(1 + which % 4)]
        np.random.RandomState(rank).shuffle(order)
        steps = dict.fromkeys(order, 0)
        under_way = []
        for which in order:
            source = np.full(counts[which], rank + steps[which], 'f4')
            under_way.append((steps[which], start(moves[which][rank], source, np.empty_like(source))))
            steps[which] += 1
        for step, completion in under_way:
            completion.wait()
            assert (completion.arrays[1] == 3 + 3 * step).all()
    job.everywhere(run)


def test_rings_of_deleted_transfers_are_reused():
    with hosts([1, 1], [1, 1]) as job:
        job.link(room=8 << 10)  # two rings of 4 KB
        for _ in range(20):
            for pair in ((0, 1), (1, 0)):
                sending, receiving = one_way(job, *pair, 500)
                target = np.zeros(500, 'f4')
                wait_for([start(sending, np.ones(500, 'f4'), None), start(receiving, None, target)])
                assert (target == 1).all()
                del sending, receiving


def test_channel_without_room_is_reported():
    with hosts([2], [1]) as job:
        job.link(room=8 << 10)
        kept = [one_way(job, 0, 1, 500) for _ in range(2)]
        with pytest.raises(JobError, match='no room for another ring'):
            one_way(job, 0, 1, 500)
        assert kept


def test_second_transfer_with_a_tag_is_refused(job):
    """The reader finds the first ring with a tag, and would never read a second one."""
    move, _ = one_way_moves(0, 1, 5)
    kept = persistent_transfer_of(Channels(job, 0), move, 'f4', (5,), None)
    with pytest.raises(JobError, match='another transfer already has the tag %d' % move.tag):
        persistent_transfer_of(Channels(job, 0), move, 'f4', (5,), None)
    assert kept


def test_threads_that_create_one_transfer_share_it(job):
    """Backward passes of two calls of a network may run in any order, in two threads."""
    class SlowChannels(Channels):
        def transfer(self, *args):
            time.sleep(0.2)
            return super().transfer(*args)

    sending, receiving = one_way_moves(0, 1, 1000)
    sender, receiver = LaneTransport(SlowChannels(job, 0)), LaneTransport(SlowChannels(job, 1))
    after = [mx.nd.zeros(1) for _ in range(4)]
    source, targets = np.full(1000, 7, 'f4'), [np.zeros(1000, 'f4') for _ in range(2)]
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(sender.push_views, sending, source, None, [array], 0) for array in after[:2]]
        calls += [threads.submit(receiver.push_views, receiving, None, target, [array], 0)
                  for array, target in zip(after[2:], targets)]
    for call in calls:
        call.result()
    for array in after:
        array.wait_to_read()
    assert all((target == 7).all() for target in targets)


def test_transfer_between_unlinked_workers_is_refused():
    with hosts([2], [1]) as job:
        with pytest.raises(JobError, match='no channel to worker 1'):
            one_way(job, 0, 1, 5)
        with pytest.raises(JobError, match='before its channels are open'):
            lib.worker_link(job.workers[0][2], 1, 0, 0)


def test_unsupported_dtype_is_refused(job):
    with pytest.raises(JobError, match='complex64'):
        PersistentTransfer(job.workers[0][2], 0, next(_tags), 'complex64', (1,), None, False)


