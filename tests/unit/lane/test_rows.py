"""Rows of tables in jobs of several shapes: sums of pushes, versions, pulls."""
import mmap

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.lane.row_format import RowFormat

from .hosts import ADAM, ASSIGN, FENCE, LIMIT_MS, SGD, UNCACHED, Hosts, hosts, lib, pointer

pytestmark = pytest.mark.both_pythons

#: The numbers of workers and agents of each host: one host, several servers on it, several hosts, one of them without a
#: worker.
JOBS = [([1], [1]), ([3], [2]), ([1, 1], [1, 1]), ([2, 3], [1, 2]), ([2, 1, 2], [1, 1, 1]), ([2, 0], [1, 1])]


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'float16'])
@pytest.mark.parametrize('parts', [1, 5])
@pytest.mark.parametrize('workers, agents', JOBS)
def test_pushes_are_summed_and_pulls_see_them(workers, agents, parts, dtype):
    rows, width, steps = 97, 3, 6
    with hosts(workers, agents) as job:
        job.table(7, rows, width, [part % len(job.agents) for part in range(parts)], dtype)
        job.rule(7, SGD if dtype != 'float16' else ASSIGN, lr=1.0, rescale=-1.0)

        def train(worker):
            random, seen = np.random.RandomState(worker), []
            for _ in range(steps):
                ids = np.flatnonzero(random.rand(rows) < 0.4)
                assert job.push(worker, 7, ids, random.randint(-8, 8, (len(ids), width)))
                row_ids = np.flatnonzero(random.rand(rows) < 0.5)
                seen.append((row_ids, job.pull(worker, 7, row_ids)))
            return seen
        pulls_by_worker = job.everywhere(train)

    value = np.zeros((rows, width), dtype)
    randoms = [np.random.RandomState(worker) for worker in range(len(pulls_by_worker))]
    for step in range(steps):
        total, touched = np.zeros_like(value), np.zeros(rows, bool)
        for random in randoms:
            ids = np.flatnonzero(random.rand(rows) < 0.4)
            total[ids] += random.randint(-8, 8, (len(ids), width)).astype(dtype)
            touched[ids] = True
            random.rand(rows)
        if dtype == 'float16':
            value[touched] = total[touched]
        else:
            value += total
        for seen in pulls_by_worker:
            row_ids, pulled = seen[step]
            np.testing.assert_array_equal(pulled, value[row_ids])


@pytest.mark.parametrize('parts', [1, 3])
@pytest.mark.parametrize('ids', [[1, 1], [2, 1], [-1, 3], [3, 9], list(range(9)) * 3, [0] * 1000, [1 << 40]])
def test_malformed_ids_are_refused_before_a_byte_is_written(ids, parts):
    with hosts([1], [1]) as job:
        job.table(0, 9, 3, [0] * parts)
        job.rule(0, ASSIGN)
        values = np.arange(27.0).reshape(9, 3)
        assert job.push(0, 0, np.arange(9), values)
        for call in (lambda: job.push(0, 0, ids, np.ones((len(ids), 3))), lambda: job.pull(0, 0, ids)):
            with pytest.raises(JobError, match='%d row ids for a table of 9 rows' % len(ids)):
                call()
        np.testing.assert_array_equal(job.pull(0, 0, np.arange(9)), values)


@pytest.mark.parametrize('workers, agents', [([1], [1]), ([1, 1], [1, 1])])
def test_values_that_overflow_float16_are_reported(workers, agents):
    with hosts(workers, agents) as job:
        job.table(0, 9, 3, [part % len(job.agents) for part in range(2)], row_format=RowFormat.FLOAT16)
        job.rule(0, ASSIGN)
        last = len(job.workers) - 1

        def reported(values, flags=0):
            rows = np.zeros((9, 3))
            rows[4, 1] = values
            for worker in range(last):
                assert job.push(worker, 0, [], np.empty((0, 3)))
            assert job.push(last, 0, np.arange(9), rows)
            pushed = job.overflows(last, 0)
            assert job.pull(last, 0, np.arange(9), flags) is not None
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
        job.table(0, rows, 2, [part % len(job.agents) for part in range(3)])
        job.rule(0, ASSIGN)

        def train(worker):
            deliveries = []
            for step in range(20):
                ids = np.arange(rows) if worker == 0 else np.empty(0, np.int64)
                assert job.push(worker, 0, ids, np.full((len(ids), 2), step))
                deliveries.append([job.deliver(worker, 0, np.arange(start, rows)) for start in range(4)])
                assert job.wait_for_deliveries(worker, 0)  # rows are delivered before the next push
                assert all(completion.done.wait(20) for _, completion in deliveries[-1])
            return deliveries
        for deliveries in job.everywhere(train):
            for step, delivered in enumerate(deliveries):
                for out, _ in delivered:
                    assert (out == step).all()


def test_deliveries_wait_for_pushes_of_other_workers():
    with hosts([2], [1]) as job:
        job.table(0, 10, 1, [0])
        job.rule(0, ASSIGN)
        assert job.push(0, 0, np.arange(10), np.ones((10, 1)))
        out, completion = job.deliver(0, 0, np.arange(10))
        assert not job.wait_for_deliveries(0, 0, 100) and not completion.done.is_set()
        assert job.push(1, 0, [], np.empty((0, 1)))
        assert job.wait_for_deliveries(0, 0) and completion.done.wait(20)
        assert (out == 1).all()


@pytest.mark.parametrize('workers, agents', JOBS)
def test_uncached_pulls_and_fences(workers, agents):
    with hosts(workers, agents) as job:
        job.table(1, 50, 4, [part % len(job.agents) for part in range(3)], row_format=RowFormat.FLOAT16)
        job.rule(1, ASSIGN)
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


class LateStart(Hosts):
    """Hosts whose agents the test starts."""

    def start(self):
        pass


def test_agent_without_partitions_reads_no_rounds():
    """Workers do not wait for this agent, so the memory that it would read may change at any time."""
    job = LateStart([2], [2])
    try:
        for table, owner in enumerate((0, 1)):
            job.table(table, 40, 2, [owner] * 4)
            job.rule(table, ASSIGN)
        job.start_agent(1)

        def train(worker, table):
            for step in range(3):
                assert job.push(worker, table, np.arange(40), np.full((40, 2), step))
                assert (job.pull(worker, table, np.arange(40)) == 2 * step).all()
            return True
        assert all(job.everywhere(lambda worker: train(worker, 1)))
        for memory in job.memories[1]:
            with mmap.mmap(memory, 0) as mapped:
                bounds = np.array([0, 10, 20, 30, 40], np.uint32).tobytes()
                offset = mapped.find(bounds)
                assert offset > 0
                mapped[offset:offset + len(bounds)] = np.array([0, 40, 3, 0, 7], np.uint32).tobytes()
        job.start_agent(0)
        assert all(job.everywhere(lambda worker: train(worker, 0)))
    finally:
        job.close()
    assert job.failures == []


#: The offset of `pull_waiting` in ``AgentTable``, see ``shared.h``.
PULL_WAITING_OFFSET = 3 * 64


def test_waiting_uncached_pull_survives_another_pull():
    """A worker that releases rows notifies the agent only while `pull_waiting` is set."""
    rows, other_rows = 2 * np.arange(600), 2 * np.arange(100) + 1
    with hosts([3, 1], [1, 1]) as job:
        job.table(0, 2000, 3, [1, 0])
        job.rule(0, ASSIGN)
        for worker in range(4):
            assert job.push(worker, 0, np.arange(2000) if worker == 3 else [], np.ones((2000 * (worker == 3), 3)))
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
    with hosts([1], [1]) as job:
        job.table(0, 4, 3, [0], 'float64')
        states = job.states(0, 3, 2)
        job.rule(0, ADAM, lr=rate, beta1=0.9, beta2=0.999, epsilon=1e-8)
        lib.agent_set_updates(job.agents[0], 0, 0, (1 << 32) - 2)
        mean, square, weight = (np.zeros((4, 3)) for _ in range(3))
        for _ in range(4):
            assert job.push(0, 0, np.arange(4), gradient)
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient ** 2
            weight = weight - rate * mean / (np.sqrt(square) + 1e-8)  # the bias corrections are 1 by now
            np.testing.assert_allclose(job.pull(0, 0, np.arange(4)), weight, rtol=1e-5)
        assert states


@pytest.mark.parametrize('workers', [1, 2])
def test_pushes_without_pulls_wait_for_a_late_host(workers):
    """A host may be a few pushes ahead of others; this number does not depend on the size of the rows."""
    rows, most = 5000, 10
    with hosts([workers, 1], [1, 1]) as job:
        job.table(0, rows, 4, [1, 1])
        job.rule(0, SGD, lr=1.0, rescale=-1.0)

        def push(worker, limit_ms=LIMIT_MS):
            ids, values = np.arange(rows), np.ones((rows, 4), np.float32)
            return lib.worker_push(job.workers[worker][2], 0, pointer(ids), rows, pointer(values),
                                   limit_ms, 0) == 0
        ahead = 0
        while ahead < 3 * most and all(push(worker, 500) for worker in range(workers)):
            ahead += 1
        assert 2 <= ahead <= most

        def push_the_rest(worker):
            pushed = all(push(worker) for _ in range(3 * most - ahead * (worker < workers)))
            return pushed and (job.pull(worker, 0, np.arange(rows)) == 3 * most * (workers + 1)).all()
        assert all(job.everywhere(push_the_rest))
