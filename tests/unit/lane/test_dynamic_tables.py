"""Dynamic tables: malformed and changed keys, errors, the cache and its memory; test_rows.py tests sums and pulls."""
import mmap
import os
import re

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.row_store.row_store import FirstValues

from ...helpers.row_stores import first_rows
from .hosts import SGD, UNCACHED, hosts, lib, partitions_of, wait_until


def cache_bytes(job):
    """Return the bytes of memory that each agent shares for the rows of its host."""
    return [os.fstat(descriptor).st_blocks * 512 for descriptor in job.agent_memories.values()]


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
        job.everywhere(evaluate)
        assert [job.with_store(0, part, lib.row_store_size) for part in (0, 1)] == [0, 0]
        # Each request has 1000 rows of 256 bytes, all together 230 MB; 15 requests at most use the cache at a time.
        assert max(cache_bytes(job)) < 60e6


@pytest.mark.parametrize('workers, agents', [([1], [1]), ([1, 1], [1, 1])])
def test_malformed_keys_are_refused_before_a_byte_is_written(workers, agents):
    with hosts(workers, agents) as job:
        job.dynamic_table(0, 3, job.owners(3), max_batch_rows=4)
        last = len(job.workers) - 1
        job.push_alone(last, 0, [-7, 2 ** 60], np.ones((2, 3)))
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
    with hosts([2], [1], may_fail=True) as job:
        job.dynamic_table(0, 3, [0, 0], max_batch_rows=10)
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
        job.push(1, 0, [], [])
        if request is not None:
            assert job.wait(0, 0, request, 3, limit=300) is None
        wait_until(lambda: job.failures)
        assert 'malformed' in job.failures[0]


@pytest.mark.parametrize('rule, text', [('callback', "items: rule 'callback' cannot update"),
                                        ('assign state', 'items: .*no optimizer state number 0'),
                                        ('adam', "items: rule 'adam' needs optimizer state")])
def test_errors_of_a_row_store_name_the_table(rule, text):
    with hosts([1], [1], may_fail=True) as job:
        job.dynamic_table(0, 3, [0])
        job.rule(0, lib.rules[rule])
        assert job.push(0, 0, [], [])
        assert job.pull(0, 0, [1], limit=300) is None
        assert re.match(text, job.failures[0]), job.failures


def test_rows_that_two_workers_request_travel_once():
    keys = np.arange(200) * 2 ** 40
    with hosts([2, 1], [1, 1]) as job:
        job.dynamic_table(0, 100, [1])
        job.push_alone(0, 0, [], [])
        before = sum(job.traffic(0)[1])
        first = job.pull(0, 0, keys)
        once = sum(job.traffic(0)[1]) - before
        assert once > first.nbytes
        np.testing.assert_array_equal(job.pull(1, 0, keys[50:150]), first[50:150])
        assert sum(job.traffic(0)[1]) - before == once
        job.pull(1, 0, keys, UNCACHED)
        assert sum(job.traffic(0)[1]) - before > once + first.nbytes
        # A push empties the cache.
        job.push_alone(0, 0, [], [])
        before = sum(job.traffic(0)[1])
        job.pull(0, 0, keys)
        assert sum(job.traffic(0)[1]) - before > first.nbytes


def test_a_large_round_gives_its_memory_back():
    with hosts([1], [1]) as job:
        job.dynamic_table(0, 64, [0], max_batch_rows=1 << 20)
        job.rule(0, SGD, lr=1.0)
        for step, count in enumerate((1000, 100000, 1000, 1000, 1000)):
            assert job.push(0, 0, [], [])
            assert job.pull(0, 0, np.arange(count)) is not None
            if step == 1:
                assert max(cache_bytes(job)) > 25e6
        assert max(cache_bytes(job)) < 5e6
