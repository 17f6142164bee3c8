"""Dynamic tables in jobs of several shapes: keys, sums of pushes, versions, pulls, the cache."""
import mmap
import os
import re
import time

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.lane.row_format import RowFormat
from mxhybrid.row_store.row_store import FirstValues

from ...helpers.row_stores import first_rows
from .hosts import ASSIGN, FENCE, LIMIT_MS, SGD, UNCACHED, Hosts, hosts, lib, pointer
from .test_rows import JOBS

#: Keys on both sides of limits of integer and float types.
KEYS = np.unique(np.array([-2 ** 63, -2 ** 63 + 1, -2 ** 53 - 1, -2 ** 31 - 1, -2 ** 31, -3, -1, 0, 1, 2, 2 ** 24 + 1,
                           2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 2 ** 32, 2 ** 53, 2 ** 53 + 1, 2 ** 62, 2 ** 63 - 2,
                           2 ** 63 - 1] + list(range(100, 160)), np.int64))


def partitions_of(keys, count):
    """Return the partition of each key."""
    keys, parts = np.ascontiguousarray(keys, np.int64), np.empty(len(keys), np.uint32)
    lib.partitions_of(pointer(keys), len(keys), count, pointer(parts))
    return parts


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('parts', [1, 2, 5])
@pytest.mark.parametrize('workers, agents', JOBS)
def test_pushes_are_summed_and_pulls_see_them(workers, agents, parts, dtype):
    width, steps, first = 3, 6, ('uniform', 0.5)
    with hosts(workers, agents) as job:
        job.dynamic_table(7, width, [part % len(job.agents) for part in range(parts)], dtype, first=first, seed=5)
        job.rule(7, SGD, lr=1.0, rescale=-1.0)

        def train(worker):
            random, seen = np.random.RandomState(worker), []
            for step in range(steps):
                keys = KEYS[random.rand(len(KEYS)) < (0 if step == 3 else 0.4)]
                assert job.push(worker, 7, keys, random.randint(-8, 8, (len(keys), width)))
                for flags in (0, 0, UNCACHED):
                    wanted = KEYS[random.rand(len(KEYS)) < 0.5]
                    seen.append((wanted, job.pull(worker, 7, wanted, flags)))
                assert job.pull(worker, 7, [], FENCE) is not None
            return seen
        pulled_by_worker = job.everywhere(train)
        counts = [job.with_store(7, part, lib.row_store_size) for part in range(parts)]

    weight = first_rows(FirstValues(*first, 5), KEYS, width, dtype)
    pushed, randoms = np.zeros(len(KEYS), bool), [np.random.RandomState(worker) for worker in range(sum(workers))]
    for step in range(steps):
        total = np.zeros_like(weight)
        for random in randoms:
            is_pushed = random.rand(len(KEYS)) < (0 if step == 3 else 0.4)
            total[is_pushed] += random.randint(-8, 8, (np.count_nonzero(is_pushed), width))
            pushed |= is_pushed
            for _ in range(3):
                random.rand(len(KEYS))
        weight = weight + total
        for seen in pulled_by_worker:
            for keys, rows in seen[3 * step:3 * step + 3]:
                np.testing.assert_allclose(rows, weight[np.searchsorted(KEYS, keys)], rtol=0,
                                           atol=1e-14 if dtype == 'float64' else 1e-5)
    parts_of_pushed = partitions_of(KEYS[pushed], parts)
    assert counts == [np.count_nonzero(parts_of_pushed == part) for part in range(parts)]


def test_lookups_insert_no_rows_and_need_little_memory():
    """An evaluation without pushes recycles the cache."""
    with hosts([2, 1], [1, 1]) as job:
        job.dynamic_table(0, 64, [0, 1], max_batch_rows=1 << 20, first=('normal', 1.0))
        job.rule(0, SGD, lr=1.0)

        def evaluate(worker):
            random = np.random.RandomState(worker)
            requests = []
            for step in range(300):
                keys = np.unique(random.randint(-2 ** 62, 2 ** 62, 1000))
                requests.append((keys, job.post(worker, 0, keys, UNCACHED if step % 5 == 4 else 0)))
                while len(requests) > 5:
                    keys, request = requests.pop(random.randint(len(requests)))
                    rows = job.wait(worker, 0, request, len(keys))
                    np.testing.assert_array_equal(rows, first_rows(FirstValues('normal', 1.0), keys, 64))
            for keys, request in requests:
                assert job.wait(worker, 0, request, len(keys)) is not None
            return True
        assert all(job.everywhere(evaluate))
        assert [job.with_store(0, part, lib.row_store_size) for part in (0, 1)] == [0, 0]
        blocks = [_blocks(descriptor) for descriptor in job.agent_memories.values()]
    # Each request has 1000 rows of 256 bytes, all together 230 MB; 15 requests at most use the cache at a time.
    assert max(blocks) * 512 < 60e6


@pytest.mark.parametrize('workers, agents', [([1], [1]), ([1, 1], [1, 1])])
def test_malformed_keys_are_refused_before_a_byte_is_written(workers, agents):
    with hosts(workers, agents) as job:
        job.dynamic_table(0, 3, [part % len(job.agents) for part in range(3)], max_batch_rows=4)
        job.rule(0, ASSIGN)
        last = len(job.workers) - 1
        for worker in range(len(job.workers)):
            assert job.push(worker, 0, [-7, 2 ** 60] if worker == last else [], np.ones((2 * (worker == last), 3)))
        for keys, text in [([1, 1], 'not sorted or not unique'), ([2, 1], 'not sorted'), ([1, -1], 'not sorted'),
                           (range(5), '5 keys are too many for a dynamic table with max_batch_rows=4')]:
            for call in (lambda keys=keys: job.push(last, 0, keys, np.ones((len(keys), 3))),
                         lambda keys=keys: job.pull(last, 0, keys)):
                with pytest.raises(JobError, match=text):
                    call()
        assert (job.pull(last, 0, [-7, 0, 2 ** 60])[:, 0] == [1, 0, 1]).all()


@pytest.mark.parametrize('change', ['keys', 'bounds'])
@pytest.mark.parametrize('call', ['push', 'pull'])
def test_keys_that_a_worker_changes_end_the_agent(call, change):
    keys = np.array([-2 ** 40, 5, 2 ** 50 + 1])
    job = Hosts([2], [1])
    try:
        job.dynamic_table(0, 3, [0, 0], max_batch_rows=10)
        job.rule(0, ASSIGN)
        # The other worker completes the round after the change.
        assert job.push(0, 0, keys, np.ones((3, 3)))
        request = job.post(0, 0, keys) if call == 'pull' else None
        with mmap.mmap(job.memories[0][0], 0) as memory:
            parts = partitions_of(keys, 2)
            stored, first = keys[np.argsort(parts, kind='stable')].tobytes(), keys[np.argmin(parts)]
            others = first // 256 * 256 + np.arange(256)
            elsewhere = np.flatnonzero(partitions_of(others, 2) != parts.min())[0]
            bounds = np.array([0, np.count_nonzero(parts == 0), 3], np.uint32).tobytes()
            pattern = stored if change == 'keys' else bounds
            offset = memory.find(pattern)  # those of the push stand before those of requests
            offset = offset if call == 'push' else memory.find(pattern, offset + 1)
            assert offset > 0
            memory[offset + 4 * (change == 'bounds')] = elsewhere if change == 'keys' else 255
        job.push(1, 0, [], np.empty((0, 3)))
        if request is not None:
            assert job.wait(0, 0, request, 3, limit=300) is None
        for _ in range(200):
            if job.failures:
                break
            time.sleep(0.01)
        assert 'malformed' in job.failures[0]
    finally:
        job.close()


@pytest.mark.parametrize('rule, text', [('callback', "items: rule 'callback' cannot update"),
                                        ('assign state', 'items: .*no optimizer state number 0'),
                                        ('adam', "items: rule 'adam' needs optimizer state")])
def test_errors_of_a_row_store_name_the_table(rule, text):
    job = Hosts([1], [1])
    try:
        job.dynamic_table(0, 3, [0])
        job.rule(0, lib.rules[rule])
        assert job.push(0, 0, [], np.empty((0, 3)))
        assert job.pull(0, 0, [1], limit=300) is None
        assert re.match(text, job.failures[0]), job.failures
    finally:
        job.close()


def test_rows_that_two_workers_request_travel_once():
    keys = np.arange(200) * 2 ** 40
    with hosts([2, 1], [1, 1]) as job:
        job.dynamic_table(0, 100, [1])
        job.rule(0, ASSIGN)
        for worker in range(3):
            assert job.push(worker, 0, [], np.empty((0, 100)))
        before = sum(job.traffic(0)[1])
        first = job.pull(0, 0, keys)
        once = sum(job.traffic(0)[1]) - before
        assert once > first.nbytes
        np.testing.assert_array_equal(job.pull(1, 0, keys[50:150]), first[50:150])
        assert sum(job.traffic(0)[1]) - before == once
        job.pull(1, 0, keys, UNCACHED)
        assert sum(job.traffic(0)[1]) - before > once + first.nbytes
        # A push empties the cache.
        for worker in range(3):
            assert job.push(worker, 0, [], np.empty((0, 100)))
        before = sum(job.traffic(0)[1])
        job.pull(0, 0, keys)
        assert sum(job.traffic(0)[1]) - before > first.nbytes


def test_a_large_round_gives_its_memory_back():
    with hosts([1], [1]) as job:
        job.dynamic_table(0, 64, [0], max_batch_rows=1 << 20)
        job.rule(0, SGD, lr=1.0)
        memory = job.agent_memories[0, 0]
        for step, count in enumerate((1000, 100000, 1000, 1000, 1000)):
            assert job.push(0, 0, [], np.empty((0, 64)))
            assert job.pull(0, 0, np.arange(count)) is not None
            if step == 1:
                assert _blocks(memory) * 512 > 25e6
        assert _blocks(memory) * 512 < 5e6


@pytest.mark.parametrize('workers, agents', [([1], [1]), ([1, 1], [1, 1])])
def test_values_that_overflow_float16_are_reported(workers, agents):
    with hosts(workers, agents) as job:
        job.dynamic_table(0, 3, [part % len(job.agents) for part in range(2)], row_format=RowFormat.FLOAT16)
        job.rule(0, ASSIGN)
        last = len(job.workers) - 1

        def reported(value, flags=0):
            for worker in range(last):
                assert job.push(worker, 0, [], np.empty((0, 3)))
            assert job.push(last, 0, [-3, 4], np.full((2, 3), value))
            pushed = job.overflows(last, 0)
            assert job.pull(last, 0, [-3, 4], flags) is not None
            return pushed, job.overflows(last, 0)
        assert reported(65504) == reported(-1e-9) == (0, 0)
        assert reported(65520) == reported(-1e30) == (1, 2)
        assert reported(1e30, UNCACHED) == (1, 0)


def test_pushes_without_pulls_wait_for_a_late_host():
    keys, most = np.arange(3000) * 12345678901, 10
    with hosts([1, 1], [1, 1]) as job:
        job.dynamic_table(0, 4, [1, 1], max_batch_rows=3000)
        job.rule(0, SGD, lr=1.0, rescale=-1.0)
        rows = np.ones((len(keys), 4), np.float32)

        def push(worker, limit_ms=LIMIT_MS):
            return lib.worker_push(job.workers[worker][2], 0, pointer(keys), len(keys), pointer(rows),
                                   limit_ms, 0) == 0
        ahead = 0
        while ahead < 3 * most and push(0, 500):
            ahead += 1
        assert 2 <= ahead <= most

        def push_the_rest(worker):
            pushed = all(push(worker) for _ in range(3 * most - ahead * (worker < 1)))
            return pushed and (job.pull(worker, 0, keys) == 3 * most * 2).all()
        assert all(job.everywhere(push_the_rest))


def _blocks(descriptor):
    return os.fstat(descriptor).st_blocks
