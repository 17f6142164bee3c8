"""Allreduces by the compiled library: shapes of jobs, types and sizes; early and malformed contributions."""
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.base.errors import JobError

from .hosts import hosts, lib, sum_in_rank_order, wait_until

#: Workers and agents of each host.
SHAPES = {'one': ([1], [1]), 'host': ([3], [2]), 'two': ([1, 1], [1, 1]), 'uneven': ([3, 1, 2], [1, 2, 1]),
          'idle': ([2, 0, 1], [1, 1, 1])}


def values_of(worker, step, count, dtype):
    """Return small integers, whose sums are exact in any order and type."""
    return np.random.RandomState([worker, step, count]).randint(-40, 40, count).astype(dtype)


@pytest.mark.parametrize('dtype, ranged', [*((dtype, False) for dtype in lib.dtypes),
                                           ('float16', True), ('float32', True), ('float64', True)])
@pytest.mark.parametrize('shape', SHAPES)
def test_rounds_of_all_types_and_sizes(shape, dtype, ranged):
    """Rounds are sums and, if each worker has a range, which may be empty, also scatters and gathers."""
    # Less than a chunk, a chunk for each host and a remainder, and several chunks for each host.
    counts = [1, 7, 40001, 400003]
    with hosts(*SHAPES[shape]) as job:
        workers = len(job.workers)
        draw = np.random.RandomState(len(shape))
        ends = [sorted(draw.randint(0, count + 1, workers - 1).tolist()) + [count] for count in counts]
        buffers = [job.allreduce(number * 0x9e3779b97f4a7c15 % 2 ** 64, dtype, count, ends[number] if ranged else ())
                   for number, count in enumerate(counts)]

        def run(worker):
            for step in range(6 if ranged else 3):
                scatters = ranged and step % 3 == 0
                for which, count in enumerate(counts):
                    buffer, own_part = buffers[which][worker], slice(([0] + ends[which])[worker], ends[which][worker])
                    expected = sum(values_of(other, step, count, np.int64) for other in range(workers)).astype(dtype)
                    total = buffer.run(values_of(worker, step, count, dtype), 'scatter' if scatters else 'start')
                    part = own_part if scatters else slice(None)
                    np.testing.assert_array_equal(total[part], expected[part])
                    if ranged and step not in (2, 4):
                        buffer.input[own_part] = total[own_part] * 2 + 1
                        np.testing.assert_array_equal(buffer.run(None, 'gather'), expected * 2 + 1)
        job.everywhere(run)


@pytest.mark.parametrize('shape', ['host', 'uneven'])
def test_all_workers_get_the_bits_of_rank_order(shape):
    workers, agents = SHAPES[shape]
    with hosts(workers, agents) as job:
        sums = job.allreduce(5, 'float32', 100000)
        values = [np.random.RandomState(worker).normal(size=100000).astype('f4') for worker in range(sum(workers))]
        outputs = job.everywhere(lambda worker: sums[worker].run(values[worker]))
        for total in outputs:
            np.testing.assert_array_equal(total, sum_in_rank_order(values, workers))


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
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
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
                    buffer.wait()
                    np.testing.assert_array_equal(buffer.output, expected)


@pytest.mark.both_pythons
def test_early_contributions_wait_until_the_allreduce_is_open():
    with hosts([1, 1], [1, 1]) as job:
        early = job.open_allreduce(0, 3, 'float32', 50000)
        early.input[:] = 2
        early.start()
        assert not early.done.wait(0.2)
        late = job.open_allreduce(1, 3, 'float32', 50000)
        np.testing.assert_array_equal(late.run(5), np.full(50000, 7, 'f4'))
        early.wait()


@pytest.mark.both_pythons
def test_dropped_allreduce_can_be_opened_again():
    with hosts([2, 1], [1, 1]) as job:
        for dtype, count in (('float32', 10), ('int64', 90000)):
            sums = job.allreduce(8, dtype, count)
            for total in job.everywhere(lambda worker, sums=sums: sums[worker].run(worker + 1)):
                np.testing.assert_array_equal(total, np.full(count, 6))
            job.drop_allreduce(8)


@pytest.mark.both_pythons
@pytest.mark.parametrize('other', [{'count': 11}, {'dtype': 'int32'}, {'ends': [3, 5, 10]}, {'quantized': True}],
                         ids=str)
def test_workers_of_a_host_with_different_arrays_are_refused(other):
    with hosts([2, 1], [1, 1]) as job:
        shape = {'number': 1, 'dtype': 'float32', 'count': 10}
        job.open_allreduce(0, **shape)
        with pytest.raises(JobError, match='sum arrays of different sizes or types under one name'):
            job.open_allreduce(1, **{**shape, **other})


@pytest.mark.both_pythons
def test_hosts_with_different_sizes_end_the_job():
    with hosts([1, 1], [1, 1], may_fail=True) as job:
        buffers = [job.open_allreduce(worker, 2, 'float32', count) for worker, count in enumerate((50000, 60000))]
        for buffer in buffers:
            buffer.start()
        wait_until(lambda: job.failures)
        assert 'a chunk of an allreduce that has another size or type here' in job.failures[0]


@pytest.mark.both_pythons
@pytest.mark.parametrize('ends', [[5, 4, 10], [3, 10], [3, 4, 9]], ids=str)
def test_ranges_that_do_not_cover_the_array_are_refused(ends):
    with hosts([3], [1]) as job, pytest.raises(JobError, match='the ranges of an allreduce do not cover its array'):
        job.allreduce(1, 'float32', 10, ends)
