"""Allreduces by the compiled library: shapes of jobs, types and sizes; early and malformed contributions."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import JobError

from .hosts import SUM_DTYPES, WorkerBuffer, hosts, lib

#: Workers and agents of each host.
SHAPES = {'one': ([1], [1]), 'host': ([3], [2]), 'two': ([1, 1], [1, 1]), 'uneven': ([3, 1, 2], [1, 2, 1]),
          'idle': ([2, 0, 1], [1, 1, 1])}


def values_of(worker, step, count, dtype):
    """Return small integers, whose sums are exact in any order and type."""
    return np.random.RandomState([worker, step, count]).randint(-40, 40, count).astype(dtype)


@pytest.mark.parametrize('dtype', SUM_DTYPES, ids=str)
@pytest.mark.parametrize('shape', SHAPES)
def test_sums_of_all_types_and_sizes(shape, dtype):
    # Less than a chunk, a chunk for each host and a remainder, and several chunks for each host.
    counts = [1, 7, 40001, 400003]
    with hosts(*SHAPES[shape]) as job:
        sums = [job.allreduce(number * 0x9e3779b97f4a7c15 % 2 ** 64, dtype, count)
                for number, count in enumerate(counts)]

        def run(worker):
            for step in range(3):
                for which, count in enumerate(counts):
                    total = sums[which][worker].run(values_of(worker, step, count, dtype))
                    expected = sum(values_of(other, step, count, np.int64) for other in range(len(job.workers)))
                    np.testing.assert_array_equal(total, expected.astype(dtype))
            return True
        assert job.everywhere(run) == [True] * len(job.workers)


@pytest.mark.parametrize('shape', ['host', 'uneven'])
def test_all_workers_get_the_bits_of_rank_order(shape):
    workers, agents = SHAPES[shape]
    with hosts(workers, agents) as job:
        sums = job.allreduce(5, 'float32', 100000)
        values = [np.random.RandomState(worker).normal(size=100000).astype('f4') for worker in range(sum(workers))]
        outputs = job.everywhere(lambda worker: sums[worker].run(values[worker]))
        inputs = iter(values)
        host_sums = []
        for count in workers:
            first, *others = [next(inputs) for _ in range(count)]
            host_sums.append(sum(others, first))
        expected = sum(host_sums[1:], host_sums[0])
        for total in outputs:
            np.testing.assert_array_equal(total, expected)


@pytest.mark.both_pythons
def test_float16_is_added_in_float32_and_overflows():
    with hosts([3], [1]) as job:
        sums = job.allreduce(1, 'float16', 3)
        values = [[2048, 60000, 1], [1, 60000, 2], [1, 0, 3]]
        outputs = job.everywhere(lambda worker: sums[worker].run(values[worker]))
        for total in outputs:
            np.testing.assert_array_equal(total, np.array([2050, np.inf, 6], 'f2'))


@given(st.lists(st.permutations(range(4)), min_size=2, max_size=2),
       st.lists(st.integers(-3, 3), min_size=4, max_size=4))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_allreduces_in_any_order_and_priority(orders, priorities):
    with hosts([1, 1], [1, 1]) as job:
        counts = [5, 70000, 1, 9000]
        sums = [job.allreduce(number, 'float64', count) for number, count in enumerate(counts)]
        for step in range(2):
            for worker, order in enumerate(orders):
                for which in order:
                    buffer = sums[which][worker]
                    buffer.input[:] = values_of(worker, step, counts[which], 'f8')
                    buffer.start(priorities[which])
            for which, count in enumerate(counts):
                expected = sum(values_of(worker, step, count, 'f8') for worker in range(2))
                for buffer in sums[which]:
                    assert buffer.done.wait(20)
                    np.testing.assert_array_equal(buffer.output, expected)


@pytest.mark.both_pythons
def test_early_contributions_wait_until_the_allreduce_is_open():
    with hosts([1, 1], [1, 1]) as job:
        descriptors = []
        for _, local, worker in job.workers[:1]:
            input_memory = lib.worker_open_allreduce(worker, 3, 1, 50000)
            output = lib.agent_open_allreduce(job.agents[0], 3, local, 1, 50000, 0, None, 0, input_memory)
            descriptors.append(lib.worker_attach_allreduce(worker, 3, output))
        early = WorkerBuffer(descriptors[0], np.dtype('f4'), 50000)
        early.input[:] = 2
        early.start()
        assert not early.done.wait(0.2)
        _, local, worker = job.workers[1]
        input_memory = lib.worker_open_allreduce(worker, 3, 1, 50000)
        output = lib.agent_open_allreduce(job.agents[1], 3, local, 1, 50000, 0, None, 0, input_memory)
        late = WorkerBuffer(lib.worker_attach_allreduce(worker, 3, output), np.dtype('f4'), 50000)
        np.testing.assert_array_equal(late.run(5), np.full(50000, 7, 'f4'))
        assert early.done.wait(20)


@pytest.mark.both_pythons
def test_dropped_allreduce_can_be_opened_again():
    with hosts([2, 1], [1, 1]) as job:
        for dtype, count in (('float32', 10), ('int64', 90000)):
            sums = job.allreduce(8, dtype, count)
            for total in job.everywhere(lambda worker, sums=sums: sums[worker].run(worker + 1)):
                np.testing.assert_array_equal(total, np.full(count, 6))
            job.drop_allreduce(8)


@pytest.mark.both_pythons
def test_workers_of_a_host_with_different_sizes_are_refused():
    with hosts([2], [1]) as job:
        input_memory = lib.worker_open_allreduce(job.workers[0][2], 1, 1, 10)
        lib.agent_open_allreduce(job.agents[0], 1, 0, 1, 10, 0, None, 0, input_memory)
        other = lib.worker_open_allreduce(job.workers[1][2], 1, 1, 11)
        with pytest.raises(JobError, match='sum arrays of different sizes or types under one name'):
            lib.agent_open_allreduce(job.agents[0], 1, 1, 1, 11, 0, None, 0, other)


@pytest.mark.both_pythons
def test_hosts_with_different_sizes_end_the_job():
    job = None
    with pytest.raises(AssertionError):
        with hosts([1, 1], [1, 1]) as job:
            opened = []
            for (_, local, worker), agent, count in zip(job.workers, job.agents, (50000, 60000)):
                input_memory = lib.worker_open_allreduce(worker, 2, 1, count)
                output = lib.agent_open_allreduce(agent, 2, local, 1, count, 0, None, 0, input_memory)
                pointer = lib.worker_attach_allreduce(worker, 2, output)
                opened.append(WorkerBuffer(pointer, np.dtype('f4'), count))
            for buffer in opened:
                buffer.start()
            opened[0].done.wait(2)
            assert job.failures == []
    assert 'a chunk of an allreduce that has another size or type here' in job.failures[0]


def ranges_of(draw, count, workers):
    """Return the ends of the ranges of workers; some ranges are empty."""
    return sorted(draw.randint(0, count + 1, workers - 1).tolist()) + [count]


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
@pytest.mark.parametrize('shape', SHAPES)
def test_rounds_of_sum_scatter_and_gather(shape, dtype):
    counts = [1, 7, 40001, 400003]
    with hosts(*SHAPES[shape]) as job:
        workers = len(job.workers)
        draw = np.random.RandomState(len(shape))
        ends = [ranges_of(draw, count, workers) for count in counts]
        buffers = [job.allreduce(number * 0x9e3779b97f4a7c15 % 2 ** 64, dtype, count, ends[number])
                   for number, count in enumerate(counts)]

        def run(worker):
            for step in range(6):
                for which in range(len(counts)):
                    count, buffer = counts[which], buffers[which][worker]
                    own_part = slice(([0] + ends[which])[worker], ends[which][worker])
                    expected = sum(values_of(other, step, count, np.int64) for other in range(workers)).astype(dtype)
                    values = values_of(worker, step, count, dtype)
                    if step % 3:
                        total = buffer.run(values)
                        np.testing.assert_array_equal(total, expected)
                    else:
                        total = buffer.run(values, 'scatter')
                        np.testing.assert_array_equal(total[own_part], expected[own_part])
                    buffer.input[own_part] = total[own_part] * 2 + 1
                    if step % 2:
                        buffer.run(None, 'gather')
                        np.testing.assert_array_equal(buffer.output, expected * 2 + 1)
                    elif step % 3 == 0:
                        np.testing.assert_array_equal(buffer.run(None, 'gather'), expected * 2 + 1)
            return True
        assert job.everywhere(run) == [True] * workers


@pytest.mark.both_pythons
@pytest.mark.parametrize('ends', [[5, 4, 10], [3, 10], [3, 4, 9]], ids=str)
def test_ranges_that_do_not_cover_the_array_are_refused(ends):
    with hosts([3], [1]) as job, pytest.raises(JobError, match='the ranges of an allreduce do not cover its array'):
        job.allreduce(1, 'float32', 10, ends)
