"""Moves between workers by the compiled part: bit for bit what the carrier of Python gives, in jobs of any shape."""
import socket
import threading
import time

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import JobError
from mxhybrid.lane.transfers import PersistentTransfer
from mxhybrid.parallel.redistribution.lane_transport import LaneTransport, persistent_transfer_of
from mxhybrid.parallel.redistribution.redistribution import Redistribution
from mxhybrid.parallel.redistribution.socket_transport import SocketCarrier
from mxhybrid.parallel.sharding.box import full, split_range
from mxhybrid.parallel.sharding.layout import Layout

from .hosts import LIMIT_MS, begin, hosts, lib

#: Workers and agents of each host; three workers, so that sums have an order.
SHAPES = {'host': ([3], [1]), 'two': ([2, 1], [1, 1]), 'three': ([1, 1, 1], [1, 1, 1]), 'agents': ([1, 2], [2, 3])}
FLOATS = ['float16', 'float32', 'float64']
DTYPES = FLOATS + ['int8', 'uint8', 'int32', 'int64', 'bool']
RANKS = 3


class Channels:
    """What persistent_transfer_of() asks of the channels of a worker."""

    def __init__(self, job, rank):
        self._worker, self._rank = job.workers[rank][2], rank

    def transfer(self, *args):
        return PersistentTransfer(self._worker, self._rank, *args)


@pytest.fixture(scope='module', params=SHAPES)
def job(request):
    with hosts(*SHAPES[request.param]) as made:
        made.link()
        yield made


@pytest.fixture(scope='module')
def mails():
    sockets = [{} for _ in range(RANKS)]
    for one in range(RANKS):
        for other in range(one):
            with socket.create_server(('127.0.0.1', 0)) as door:
                sockets[one][other] = socket.create_connection(door.getsockname())
                sockets[other][one], _ = door.accept()
    failures = []
    made = [SocketCarrier(rank, sockets[rank], failures.append) for rank in range(RANKS)]
    yield made
    for mail in made:
        mail.close()
    assert failures == []


def by_mail(mails, moves, sources, targets):
    """What the carrier of Python gives."""
    there = [threading.Event() for _ in moves]
    for mail, move, source, target, event in zip(mails, moves, sources, targets, there):
        mail.begin(move, source, target, event.set)
    assert all(event.wait(LIMIT_MS / 1000) for event in there)
    return targets


def by_lane(job, moves, sources, targets, times=1):
    """What the lane gives; memory is used again at once."""
    transfers = []
    for rank, (move, source, target) in enumerate(zip(moves, sources, targets)):
        dtype = next(array.dtype for array in (*sources, *targets) if array is not None)
        transfers.append(persistent_transfer_of(Channels(job, rank), move, dtype,
                                                None if source is None else source.shape,
                                                None if target is None else target.shape))
    for _ in range(times):
        for target in targets:
            if target is not None:
                target.view(np.uint8)[...] = 0xaa
        called = [begin(*one) for one in zip(transfers, sources, targets)]
        assert all(one.there.wait(LIMIT_MS / 1000) for one in called)
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
    """Shape, what ranks have, what is wanted."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))

    def box(beyond):
        ends = [(draw(st.integers(-beyond, count - 1)), draw(st.integers(1, count + beyond))) for count in shape]
        return tuple((min(pair), max(pair)) if pair[0] != pair[1] else (pair[0], pair[1] + 1) for pair in ends)
    some = st.sets(st.integers(0, RANKS - 1), min_size=1)
    if draw(st.booleans()):
        have = Layout(shape, {rank: box(0) for rank in draw(some)}, partial=True)
        return have, {rank: box(0) for rank in draw(some)}
    axis = draw(st.integers(0, len(shape) - 1))
    degree = min(shape[axis], RANKS)
    boxes = {rank: tuple(full(shape)[:axis]) + (cut,) + tuple(full(shape)[axis + 1:])
             for rank, cut in enumerate(split_range(shape[axis], degree))}
    return Layout(shape, boxes), {rank: box(2) for rank in draw(some)}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layouts(), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 99))
def test_what_the_carrier_of_python_gives(job, mails, two, dtype, one_gradient, seed):
    have, wanted = two
    if have.partial and dtype == 'bool':
        dtype = 'int8'
    random = np.random.RandomState(seed)
    number = next(_tags)
    exchanges = [Redistribution(number, rank, have, wanted, np.dtype(dtype), fill=float(seed % 3),
                                one_gradient=one_gradient)
                 for rank in range(RANKS)]
    shapes = [exchange.shapes for exchange in exchanges]
    directions = [([one.forward for one in exchanges], [here for here, _ in shapes], [there for _, there in shapes])]
    if dtype in FLOATS:
        directions.append(([one.backward for one in exchanges], directions[0][2], directions[0][1]))
    for moves, given_shapes, taken_shapes in directions:
        sources = [values(random, shape, dtype) for shape in given_shapes]
        expected = by_mail(mails, moves, sources, [empty(shape, dtype) for shape in taken_shapes])
        found = by_lane(job, moves, sources, [empty(shape, dtype) for shape in taken_shapes], times=2)
        for mine, other in zip(found, expected):
            if other is not None:
                assert mine.tobytes() == other.tobytes()


def swap(job, count, dtype='float32', adds=False):
    """A move in which each worker gives all it has to all others."""
    whole = dict.fromkeys(range(RANKS), ((0, count),))
    number = next(_tags)
    exchanges = [Redistribution(number, rank, Layout((count,), whole, partial=True), whole, np.dtype(dtype))
                 for rank in range(RANKS)]
    return [persistent_transfer_of(Channels(job, rank), one.forward, dtype, (count,), (count,))
            for rank, one in enumerate(exchanges)]


#: A ring has 256 bytes to 1 MB; messages between hosts 256 KB at most.
@pytest.mark.parametrize('count', [1, 63, 64, 65, 129, 1000, 131072, 262144, 262145, 1000003])
def test_sizes(job, count):
    transfers = swap(job, count)
    for step in range(3):
        sources = [np.random.RandomState([rank, step]).normal(size=count).astype('f4') for rank in range(RANKS)]
        targets = [np.full(count, np.nan, 'f4') for _ in range(RANKS)]
        called = [begin(*one) for one in zip(transfers, sources, targets)]
        assert all(one.there.wait(LIMIT_MS / 1000) for one in called)
        expected = np.float32(0) + sources[0] + sources[1] + sources[2]
        for target in targets:
            np.testing.assert_array_equal(target, expected)


def one_way(job, giver, taker, count):
    whole = ((0, count),)
    number = next(_tags)
    exchanges = [Redistribution(number, rank, Layout((count,), {giver: whole}), {taker: whole}, np.dtype('f4'))
                 for rank in (giver, taker)]
    return (persistent_transfer_of(Channels(job, giver), exchanges[0].forward, 'f4', (count,), None),
            persistent_transfer_of(Channels(job, taker), exchanges[1].forward, 'f4', None, (count,)))


@pytest.mark.parametrize('count, fit', [(5, 10), (1000, 2), (100000, 2), (600000, 0)])
@pytest.mark.parametrize('taker', [1, 2])
def test_who_gives_may_be_far_ahead(job, taker, count, fit):
    give, take = one_way(job, 0, taker, count)
    sources = [np.full(count, step, 'f4') for step in range(12)]
    given_ = [begin(give, source, None) for source in sources]
    assert [one.there.is_set() for one in given_] == [step < fit for step in range(12)]
    for step in range(12):
        target = np.full(count, np.nan, 'f4')
        assert begin(take, None, target).there.wait(LIMIT_MS / 1000)
        assert (target == step).all()
    assert all(one.there.wait(LIMIT_MS / 1000) for one in given_)


def test_who_takes_may_wait_for_long(job):
    give, take = one_way(job, 0, 2, 1000)
    targets = [np.full(1000, np.nan, 'f4') for _ in range(20)]
    taken = [begin(take, None, target) for target in targets]
    assert not any(one.there.wait(0.01) for one in taken)
    given_ = [begin(give, np.full(1000, step, 'f4'), None) for step in range(20)]
    assert all(one.there.wait(LIMIT_MS / 1000) for one in taken + given_)
    assert [target[-1] for target in targets] == list(range(20))


def test_a_tag_that_waits_holds_up_no_other(job):
    """Here one that is begun first is too large for its ring, and nobody takes it."""
    give, take = one_way(job, 0, 1, 1 << 20)
    source = np.arange(1 << 20, dtype='f4')
    waiting = begin(give, source, None)
    for _ in range(3):
        transfers = swap(job, 50000)
        called = [begin(transfer, np.full(50000, rank, 'f4'), np.empty(50000, 'f4'))
                  for rank, transfer in enumerate(transfers)]
        assert all(one.there.wait(LIMIT_MS / 1000) for one in called)
        assert all((one.arrays[1] == 3).all() for one in called)
    assert not waiting.there.is_set()
    target = np.empty_like(source)
    assert begin(take, None, target).there.wait(LIMIT_MS / 1000) and waiting.there.wait(LIMIT_MS / 1000)
    np.testing.assert_array_equal(target, source)


def test_many_tags_in_any_order(job):
    """Each worker begins them in an order of its own, some more often than others, from several threads."""
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
            under_way.append((steps[which], begin(moves[which][rank], source, np.empty_like(source))))
            steps[which] += 1
        for step, called in under_way:
            assert called.there.wait(LIMIT_MS / 1000)
            assert (called.arrays[1] == 3 + 3 * step).all()
        return True
    assert job.everywhere(run) == [True] * RANKS


def test_rings_of_transfers_that_are_gone_are_used_again():
    with hosts([1, 1], [1, 1]) as made:
        made.link(room=8 << 10)  # two rings of 4 KB
        for _ in range(20):
            for pair in ((0, 1), (1, 0)):
                give, take = one_way(made, *pair, 500)
                target = np.zeros(500, 'f4')
                both = begin(give, np.ones(500, 'f4'), None), begin(take, None, target)
                assert all(one.there.wait(LIMIT_MS / 1000) for one in both) and (target == 1).all()
                del give, take


def test_a_channel_without_room_says_so():
    with hosts([2], [1]) as made:
        made.link(room=8 << 10)
        kept = [one_way(made, 0, 1, 500) for _ in range(2)]
        with pytest.raises(JobError, match='no room for another ring'):
            one_way(made, 0, 1, 500)
        assert kept


def test_a_tag_belongs_to_one_transfer(job):
    """The reader finds the first ring with a tag: what went by another one would never come."""
    move = Redistribution(next(_tags), 0, Layout((5,), {0: ((0, 5),)}), {1: ((0, 5),)}, np.dtype('f4')).forward
    kept = persistent_transfer_of(Channels(job, 0), move, 'f4', (5,), None)
    with pytest.raises(JobError, match='another transfer already has the tag %d' % move.tag):
        persistent_transfer_of(Channels(job, 0), move, 'f4', (5,), None)
    assert kept


def test_threads_that_come_with_a_transfer_at_the_same_time(job):
    """As of backward passes of two calls of a network whose order is not the calls': they share a transfer."""
    class SlowChannels(Channels):
        def transfer(self, *args):
            time.sleep(0.2)
            return super().transfer(*args)

    number, count, whole = next(_tags), 1000, ((0, 1000),)
    give, take = [Redistribution(number, rank, Layout((count,), {0: whole}), {1: whole}, np.dtype('f4')).forward
                  for rank in (0, 1)]
    giver, taker = LaneTransport(SlowChannels(job, 0)), LaneTransport(SlowChannels(job, 1))
    after = [mx.nd.zeros(1) for _ in range(4)]
    source, targets = np.full(count, 7, 'f4'), [np.zeros(count, 'f4') for _ in range(2)]
    threads = [threading.Thread(target=giver.push_views, args=(give, source, None, [one], 0))
               for one in after[:2]]
    threads += [threading.Thread(target=taker.push_views, args=(take, None, target, [one], 0))
                for one, target in zip(after[2:], targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in after:
        one.wait_to_read()
    assert all((target == 7).all() for target in targets)


def test_workers_that_are_not_linked():
    with hosts([2], [1]) as made:
        with pytest.raises(JobError, match='no channel to worker 1'):
            one_way(made, 0, 1, 5)
        with pytest.raises(JobError, match='before its channels are open'):
            lib.checked(lib.worker_link(made.workers[0][2], 1, 0, 0))


def test_types_that_are_none(job):
    with pytest.raises(JobError, match='complex64'):
        PersistentTransfer(job.workers[0][2], 0, next(_tags), 'complex64', (1,), None, False)


