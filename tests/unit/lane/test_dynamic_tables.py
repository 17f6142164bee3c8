"""Dynamic tables in jobs of several shapes: keys, sums of pushes, versions, pulls, the cache."""
import os

import numpy as np
import pytest

from .hosts import FENCE, SGD, UNCACHED, hosts, lib, pointer
from .test_rows import JOBS

pytestmark = pytest.mark.both_pythons

#: Keys on both sides of limits of integer and float types.
KEYS = np.unique(np.array([-2 ** 63, -2 ** 63 + 1, -2 ** 53 - 1, -2 ** 31 - 1, -2 ** 31, -3, -1, 0, 1, 2, 2 ** 24 + 1,
                           2 ** 31 - 1, 2 ** 31, 2 ** 31 + 1, 2 ** 32, 2 ** 53, 2 ** 53 + 1, 2 ** 62, 2 ** 63 - 2,
                           2 ** 63 - 1] + list(range(100, 160)), np.int64))


def first_values(keys, width, dtype, kind, value, seed):
    """Return the first values of rows."""
    keys, rows = np.ascontiguousarray(keys, np.int64), np.empty((len(keys), width), dtype)
    lib.first_values(lib.first_value_kinds[kind], value, seed, lib.dtypes[np.dtype(dtype).name], pointer(keys),
                     len(keys), width, pointer(rows))
    return rows


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

    weight = first_values(KEYS, width, dtype, *first, 5)
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
        job.dynamic_table(0, 64, [0, 1], batch_rows=1 << 20, first=('normal', 1.0))
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
                    np.testing.assert_array_equal(rows, first_values(keys, 64, 'float32', 'normal', 1.0, 0))
            for keys, request in requests:
                assert job.wait(worker, 0, request, len(keys)) is not None
            return True
        assert all(job.everywhere(evaluate))
        assert [job.with_store(0, part, lib.row_store_size) for part in (0, 1)] == [0, 0]
        blocks = [_blocks(descriptor) for descriptor in job.agent_memories.values()]
    # Each request has 1000 rows of 256 bytes, all together 230 MB; 15 requests at most use the cache at a time.
    assert max(blocks) * 512 < 60e6


def _blocks(descriptor):
    return os.fstat(descriptor).st_blocks
