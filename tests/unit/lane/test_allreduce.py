"""Dense sums by the compiled part: any shape of job, type and size; what comes early, twice, or with other sizes."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import JobError

from .hosts import SUM_DTYPES, WorkerBuffer, hosts, lib

pytestmark = pytest.mark.both_pythons

#: Workers and agents of each host.
SHAPES = {'one': ([1], [1]), 'host': ([3], [2]), 'two': ([1, 1], [1, 1]), 'uneven': ([3, 1, 2], [1, 2, 1]),
          'idle': ([2, 0, 1], [1, 1, 1])}


def values_of(worker, step, count, dtype):
    """Small whole numbers: exact in any order, and as float16."""
    return np.random.RandomState([worker, step, count]).randint(-40, 40, count).astype(dtype)


@pytest.mark.parametrize('dtype', SUM_DTYPES, ids=str)
@pytest.mark.parametrize('shape', SHAPES)
def test_sums_of_all_types_and_sizes(shape, dtype):
    # Less than a piece, a piece of each host with a rest, and several of each.
    counts = [1, 7, 40001, 400003]
    with hosts(*SHAPES[shape]) as made:
        sums = [made.allreduce(number * 0x9e3779b97f4a7c15 % 2 ** 64, dtype, count)
                for number, count in enumerate(counts)]

        def run(worker):
            for step in range(3):
                for which, count in enumerate(counts):
                    total = sums[which][worker].run(values_of(worker, step, count, dtype))
                    expected = sum(values_of(other, step, count, np.int64) for other in range(len(made.workers)))
                    np.testing.assert_array_equal(total, expected.astype(dtype))
            return True
        assert made.everywhere(run) == [True] * len(made.workers)


@pytest.mark.parametrize('shape', ['host', 'uneven'])
def test_all_workers_get_the_same_bits_in_the_order_of_hosts_and_ranks(shape):
    workers, agents = SHAPES[shape]
    with hosts(workers, agents) as made:
        sums = made.allreduce(5, 'float32', 100000)
        values = [np.random.RandomState(worker).normal(size=100000).astype('f4') for worker in range(sum(workers))]
        found = made.everywhere(lambda worker: sums[worker].run(values[worker]))
        mine = iter(values)
        of_hosts = []
        for count in workers:
            first, *others = [next(mine) for _ in range(count)]
            of_hosts.append(sum(others, first))
        expected = sum(of_hosts[1:], of_hosts[0])
        for total in found:
            np.testing.assert_array_equal(total, expected)


def test_float16_is_added_in_float32_and_becomes_infinite_beyond_its_range():
    with hosts([3], [1]) as made:
        sums = made.allreduce(1, 'float16', 3)
        values = [[2048, 60000, 1], [1, 60000, 2], [1, 0, 3]]
        found = made.everywhere(lambda worker: sums[worker].run(values[worker]))
        for total in found:
            np.testing.assert_array_equal(total, np.array([2050, np.inf, 6], 'f2'))


@given(st.lists(st.permutations(range(4)), min_size=2, max_size=2),
       st.lists(st.integers(-3, 3), min_size=4, max_size=4))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_at_once_in_any_order_and_priority(orders, priorities):
    with hosts([1, 1], [1, 1]) as made:
        counts = [5, 70000, 1, 9000]
        sums = [made.allreduce(number, 'float64', count) for number, count in enumerate(counts)]
        for step in range(2):
            for worker, order in enumerate(orders):
                for which in order:
                    one = sums[which][worker]
                    one.input[:] = values_of(worker, step, counts[which], 'f8')
                    one.begin(priorities[which])
            for which, count in enumerate(counts):
                expected = sum(values_of(worker, step, count, 'f8') for worker in range(2))
                for one in sums[which]:
                    assert one.there.wait(20)
                    np.testing.assert_array_equal(one.output, expected)


def test_parts_that_come_before_a_sum_is_opened_here_wait():
    with hosts([1, 1], [1, 1]) as made:
        descriptors = []
        for _, local, worker in made.workers[:1]:
            mine = lib.checked(lib.worker_open_allreduce(worker, 3, 1, 50000))
            theirs = lib.checked(lib.agent_open_allreduce(made.agents[0], 3, local, 1, 50000, mine))
            descriptors.append(lib.checked(lib.worker_attach_allreduce(worker, 3, theirs)))
        early = WorkerBuffer(descriptors[0], np.dtype('f4'), 50000)
        early.input[:] = 2
        early.begin()
        assert not early.there.wait(0.2)
        _, local, worker = made.workers[1]
        mine = lib.checked(lib.worker_open_allreduce(worker, 3, 1, 50000))
        theirs = lib.checked(lib.agent_open_allreduce(made.agents[1], 3, local, 1, 50000, mine))
        late = WorkerBuffer(lib.checked(lib.worker_attach_allreduce(worker, 3, theirs)), np.dtype('f4'), 50000)
        np.testing.assert_array_equal(late.run(5), np.full(50000, 7, 'f4'))
        assert early.there.wait(20)


def test_a_sum_that_was_dropped_can_be_opened_anew():
    with hosts([2, 1], [1, 1]) as made:
        for dtype, count in (('float32', 10), ('int64', 90000)):
            sums = made.allreduce(8, dtype, count)
            for total in made.everywhere(lambda worker, sums=sums: sums[worker].run(worker + 1)):
                np.testing.assert_array_equal(total, np.full(count, 6))
            made.drop_allreduce(8)


def test_workers_of_a_host_with_other_sizes_are_refused():
    with hosts([2], [1]) as made:
        mine = lib.checked(lib.worker_open_allreduce(made.workers[0][2], 1, 1, 10))
        lib.checked(lib.agent_open_allreduce(made.agents[0], 1, 0, 1, 10, mine))
        other = lib.checked(lib.worker_open_allreduce(made.workers[1][2], 1, 1, 11))
        with pytest.raises(JobError, match='sum arrays of different sizes or types under one name'):
            lib.checked(lib.agent_open_allreduce(made.agents[0], 1, 1, 1, 11, other))


def test_hosts_with_other_sizes_end_the_job():
    made = None
    with pytest.raises(AssertionError):
        with hosts([1, 1], [1, 1]) as made:
            opened = []
            for (_, local, worker), agent, count in zip(made.workers, made.agents, (50000, 60000)):
                mine = lib.checked(lib.worker_open_allreduce(worker, 2, 1, count))
                theirs = lib.checked(lib.agent_open_allreduce(agent, 2, local, 1, count, mine))
                pointer = lib.checked(lib.worker_attach_allreduce(worker, 2, theirs))
                opened.append(WorkerBuffer(pointer, np.dtype('f4'), count))
            for one in opened:
                one.begin()
            opened[0].there.wait(2)
            assert made.failures == []
    assert 'a chunk of an allreduce that has another size or type here' in made.failures[0]
