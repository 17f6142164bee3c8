"""Rows of tables and dynamic tables in jobs of several shapes: sums of pushes, versions, pulls."""
import itertools
import mmap

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.lane.row_format import RowFormat
from mxhybrid.row_store.row_store import FirstValues

from ...helpers.row_stores import first_rows
from .hosts import FENCE, JOBS, KEYS, LIMIT_MS, SGD, UNCACHED, hosts, lib, partitions_of, pointer

pytestmark = pytest.mark.both_pythons


def steps_of(worker, ids, steps):
    """Draw the steps of a worker: positions of the ids that it pushes, their rows, and lists of positions to pull.

    In the fourth step no worker pushes rows.
    """
    random = np.random.RandomState(worker)
    for step in range(steps):
        pushed = np.flatnonzero(random.rand(len(ids)) < (0 if step == 3 else 0.4))
        yield (pushed, random.randint(-8, 8, (len(pushed), 3)),
               [np.flatnonzero(random.rand(len(ids)) < 0.5) for _ in range(3)])


@pytest.mark.parametrize('dynamic, parts, dtype', [
    *itertools.product([False], [1, 5], ['float32', 'float64', 'float16']),
    *itertools.product([True], [1, 2, 5], ['float32', 'float64'])])
@pytest.mark.parametrize('workers, agents', JOBS)
def test_pushes_are_summed_and_pulls_see_them(workers, agents, dynamic, parts, dtype):
    """Pushes overwrite rows of float16; dynamic tables begin with other rows than zeros."""
    ids, first = KEYS if dynamic else np.arange(97), ('uniform', 0.5)
    steps_by_worker = [list(steps_of(worker, ids, 6)) for worker in range(sum(workers))]
    with hosts(workers, agents) as job:
        job.table(7, len(ids), 3, job.owners(parts), dtype, dynamic=dynamic, first=first, seed=5)
        if dtype != 'float16':
            job.rule(7, SGD, lr=1.0, rescale=-1.0)

        def train(worker):
            pulled = []
            for pushed, rows, wanted in steps_by_worker[worker]:
                assert job.push(worker, 7, ids[pushed], rows)
                pulled.append([job.pull(worker, 7, ids[positions], flags)
                               for positions, flags in zip(wanted, (0, 0, UNCACHED))])
                assert job.pull(worker, 7, [], FENCE) is not None
            return pulled
        pulled_by_worker = job.everywhere(train)
        counts = [job.with_store(7, part, lib.row_store_size) for part in range(parts)] if dynamic else None

    value = first_rows(FirstValues(*first, 5), ids, 3, dtype) if dynamic else np.zeros((len(ids), 3), dtype)
    tolerance = {'float64': 1e-14, 'float32': 1e-5}[dtype] if dynamic else 0
    ever_pushed = np.zeros(len(ids), bool)
    for step in range(6):
        total, touched = np.zeros_like(value), np.zeros(len(ids), bool)
        for steps in steps_by_worker:
            pushed, rows, _ = steps[step]
            total[pushed] += rows.astype(dtype)
            touched[pushed] = True
        value = np.where(touched[:, None], total, value) if dtype == 'float16' else value + total
        ever_pushed |= touched
        for steps, pulled in zip(steps_by_worker, pulled_by_worker):
            for positions, rows in zip(steps[step][2], pulled[step]):
                np.testing.assert_allclose(rows, value[positions], rtol=0, atol=tolerance)
    if dynamic:
        parts_of_pushed = partitions_of(ids[ever_pushed], parts)
        assert counts == [np.count_nonzero(parts_of_pushed == part) for part in range(parts)]


@pytest.mark.parametrize('parts', [1, 3])
@pytest.mark.parametrize('ids', [[1, 1], [2, 1], [-1, 3], [3, 9], list(range(9)) * 3, [0] * 1000, [1 << 40]])
def test_malformed_ids_are_refused_before_a_byte_is_written(ids, parts):
    with hosts([1], [1]) as job:
        job.table(0, 9, 3, [0] * parts)
        values = np.arange(27.0).reshape(9, 3)
        assert job.push(0, 0, np.arange(9), values)
        for call in (lambda: job.push(0, 0, ids, np.ones((len(ids), 3))), lambda: job.pull(0, 0, ids)):
            with pytest.raises(JobError, match='%d row ids for a table of 9 rows' % len(ids)):
                call()
        np.testing.assert_array_equal(job.pull(0, 0, np.arange(9)), values)


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('workers, agents', [([1], [1]), ([1, 1], [1, 1])])
def test_values_that_overflow_float16_are_reported(workers, agents, dynamic):
    with hosts(workers, agents) as job:
        job.table(0, 9, 3, job.owners(2), row_format=RowFormat.FLOAT16, dynamic=dynamic)
        last, ids = len(job.workers) - 1, np.arange(9)

        def reported(value, flags=0):
            rows = np.zeros((9, 3))
            rows[4, 1] = value
            job.push_alone(last, 0, ids, rows)
            pushed = job.overflows(last, 0)
            assert job.pull(last, 0, ids, flags) is not None
            return pushed, job.overflows(last, 0)
        for fits in (65504, -65519, 1e-9, 0):
            assert reported(fits) == (0, 0)
        for large in (65520, -1e30):
            assert reported(large) == (1, 2)
            assert reported(0) == (0, 0)
        for already in (np.inf, -np.inf, np.nan):
            assert reported(already) == (0, 2)
        assert reported(1e30, UNCACHED) == (1, 0)


@pytest.mark.parametrize('workers, agents', [([2], [1]), ([2, 1], [1, 1])])
def test_rows_are_delivered_without_a_waiting_thread(workers, agents):
    rows = 40
    with hosts(workers, agents) as job:
        job.table(0, rows, 2, job.owners(3))

        def train(worker):
            deliveries = []
            for step in range(20):
                ids = np.arange(rows) if worker == 0 else np.empty(0, np.int64)
                assert job.push(worker, 0, ids, np.full((len(ids), 2), step))
                deliveries.append([job.deliver(worker, 0, np.arange(start, rows)) for start in range(4)])
                assert job.wait_for_deliveries(worker, 0)  # rows are delivered before the next push
                for _, completion in deliveries[-1]:
                    completion.wait()
            return deliveries
        for deliveries in job.everywhere(train):
            for step, delivered in enumerate(deliveries):
                for out, _ in delivered:
                    assert (out == step).all()


def test_deliveries_wait_for_pushes_of_other_workers():
    with hosts([2], [1]) as job:
        job.table(0, 10, 1, [0])
        assert job.push(0, 0, np.arange(10), np.ones((10, 1)))
        out, completion = job.deliver(0, 0, np.arange(10))
        assert not job.wait_for_deliveries(0, 0, 100) and not completion.done.is_set()
        assert job.push(1, 0, [], [])
        assert job.wait_for_deliveries(0, 0)
        completion.wait()
        assert (out == 1).all()


@pytest.mark.parametrize('workers, agents', JOBS)
def test_uncached_pulls_and_fences(workers, agents):
    with hosts(workers, agents) as job:
        job.table(1, 50, 4, job.owners(3), row_format=RowFormat.FLOAT16)
        values = np.random.RandomState(0).rand(50, 4).astype(np.float32)

        def read(worker):
            first = worker == 0
            assert job.push(worker, 1, np.arange(50 * first), values[:50 * first])
            assert job.pull(worker, 1, [], FENCE) is not None
            return [job.pull(worker, 1, np.arange(50), flags) for flags in (UNCACHED, 0, UNCACHED)]
        found = job.everywhere(read)
        for uncached, rounded, again in found:
            np.testing.assert_allclose(uncached, values, rtol=1e-3)  # pushes from another host were rounded
            np.testing.assert_array_equal(rounded, uncached.astype(np.float16))
            np.testing.assert_array_equal(rounded, found[0][1])
            np.testing.assert_array_equal(uncached, again)


def test_agent_without_partitions_reads_no_rounds():
    """Workers do not wait for this agent, so the memory that it would read may change at any time."""
    with hosts([2], [2], started=False) as job:
        for table, owner in enumerate((0, 1)):
            job.table(table, 40, 2, [owner] * 4)
        lib.agent_start(job.agents[1])

        def train(worker, table):
            for step in range(3):
                assert job.push(worker, table, np.arange(40), np.full((40, 2), step))
                assert (job.pull(worker, table, np.arange(40)) == 2 * step).all()
        job.everywhere(lambda worker: train(worker, 1))
        for memory in job.memories[1]:
            with mmap.mmap(memory, 0) as mapped:
                bounds = np.array([0, 10, 20, 30, 40], np.uint32).tobytes()
                offset = mapped.find(bounds)
                assert offset > 0
                mapped[offset:offset + len(bounds)] = np.array([0, 40, 3, 0, 7], np.uint32).tobytes()
        lib.agent_start(job.agents[0])
        job.everywhere(lambda worker: train(worker, 0))


#: The offset of `pull_waiting` in ``AgentTable``, see ``shared.h``.
PULL_WAITING_OFFSET = 3 * 64


def test_waiting_uncached_pull_survives_another_pull():
    """A worker that releases rows notifies the agent only while `pull_waiting` is set."""
    rows, other_rows = 2 * np.arange(600), 2 * np.arange(100) + 1
    with hosts([3, 1], [1, 1]) as job:
        job.table(0, 2000, 3, [1, 0])
        job.push_alone(3, 0, np.arange(2000), np.ones((2000, 3)))
        requests = [job.post(0, 0, rows, UNCACHED)]
        assert (job.pull(0, 0, rows[:1]) == 1).all()  # its answer comes after that of the first one
        requests += [job.post(1, 0, rows, UNCACHED), job.post(2, 0, other_rows, UNCACHED)]
        with mmap.mmap(job.agent_memories[0, 0], 0) as shared:
            assert (job.wait(2, 0, requests[2], len(other_rows)) == 1).all()
            assert np.frombuffer(shared[PULL_WAITING_OFFSET:PULL_WAITING_OFFSET + 4], np.uint32) == 1
            for worker in (0, 1):
                assert (job.wait(worker, 0, requests[worker], len(rows)) == 1).all()
            assert (job.pull(0, 0, other_rows, UNCACHED) == 1).all()
            assert np.frombuffer(shared[PULL_WAITING_OFFSET:PULL_WAITING_OFFSET + 4], np.uint32) == 0


def test_adam_counts_more_updates_than_32_bits_hold():
    gradient, rate = np.full((4, 3), 0.5), 0.1
    states = [np.zeros((4, 3)) for _ in range(2)]
    with hosts([1], [1]) as job:
        job.table(0, 4, 3, [0], 'float64')
        for slot, state in enumerate(states):
            lib.agent_set_state(job.agents[0], 0, 0, slot, pointer(state), 3 * state.itemsize)
        job.rule(0, lib.rules['adam'], lr=rate, beta1=0.9, beta2=0.999, epsilon=1e-8)
        lib.agent_set_updates(job.agents[0], 0, 0, (1 << 32) - 2)
        mean, square, weight = (np.zeros((4, 3)) for _ in range(3))
        for _ in range(4):
            assert job.push(0, 0, np.arange(4), gradient)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient ** 2
            weight = weight - rate * mean / (np.sqrt(square) + 1e-8)  # the bias corrections are 1 by now
            np.testing.assert_allclose(job.pull(0, 0, np.arange(4)), weight, rtol=1e-5)


@pytest.mark.parametrize('workers, dynamic, rows, staleness, most', [
    (1, False, 5000, 0, 10), (2, False, 5000, 0, 10), (1, True, 5000, 0, 10),
    (1, False, 5, 0, 6), (1, False, 5, 1, 7), (1, False, 5, 3, 9)])
def test_pushes_without_pulls_wait_for_a_late_host(workers, dynamic, rows, staleness, most):
    """A host may be a few pushes ahead of others; this number does not depend on the size of the rows."""
    ids = np.arange(rows) * (12345678901 if dynamic else 1)
    with hosts([workers, 1], [1, 1]) as job:
        job.table(0, rows, 4, [1, 1], staleness=staleness, dynamic=dynamic)
        job.rule(0, SGD, lr=1.0, rescale=-1.0)

        def push(worker, limit=LIMIT_MS):
            return job.push(worker, 0, ids, np.ones((rows, 4)), limit=limit)
        ahead = 0
        while ahead < 3 * most and all(push(worker, 500) for worker in range(workers)):
            ahead += 1
        assert 2 <= ahead <= most

        def push_the_rest(worker):
            assert all(push(worker) for _ in range(3 * most - ahead * (worker < workers)))
            assert (job.pull(worker, 0, ids) == 3 * most * (workers + 1)).all()
        job.everywhere(push_the_rest)
