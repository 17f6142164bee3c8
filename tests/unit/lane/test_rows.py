"""Rows through nodes and workers of several hosts: sums, versions, pulls, in every shape of a job."""
import numpy as np
import pytest

from .hosts import ASSIGN, EXACT, FENCE, SGD, hosts

#: Workers and nodes by host: one host, several servers on it, several hosts, a host without server, one without worker.
JOBS = [([1], [1]), ([3], [2]), ([1, 1], [1, 1]), ([2, 3], [1, 2]), ([2, 1, 2], [1, 1, 1]), ([2, 0], [1, 1])]


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'float16'])
@pytest.mark.parametrize('parts', [1, 5])
@pytest.mark.parametrize('workers, nodes', JOBS)
def test_pushes_are_summed_and_pulls_see_them(workers, nodes, parts, dtype):
    rows, width, steps = 97, 3, 6
    with hosts(workers, nodes) as job:
        job.table(7, rows, width, [part % len(job.nodes) for part in range(parts)], dtype)
        job.rule(7, SGD if dtype != 'float16' else ASSIGN, lr=1.0, rescale=-1.0)

        def train(worker):
            random, seen = np.random.RandomState(worker), []
            for _ in range(steps):
                ids = np.flatnonzero(random.rand(rows) < 0.4)
                assert job.push(worker, 7, ids, random.randint(-8, 8, (len(ids), width)))
                wanted = np.flatnonzero(random.rand(rows) < 0.5)
                seen.append((wanted, job.pull(worker, 7, wanted)))
            return seen
        found = job.everywhere(train)

    value = np.zeros((rows, width), dtype)
    randoms = [np.random.RandomState(worker) for worker in range(len(found))]
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
        for seen in found:
            wanted, pulled = seen[step]
            np.testing.assert_array_equal(pulled, value[wanted])


@pytest.mark.parametrize('workers, nodes', JOBS)
def test_exact_pulls_and_fences(workers, nodes):
    with hosts(workers, nodes) as job:
        job.table(1, 50, 4, [part % len(job.nodes) for part in range(3)], halves=True)
        job.rule(1, ASSIGN)
        values = np.random.RandomState(0).rand(50, 4).astype(np.float32)

        def read(worker):
            first = worker == 0
            assert job.push(worker, 1, np.arange(50 * first), values[:50 * first])
            assert job.pull(worker, 1, [], FENCE) is not None
            return [job.pull(worker, 1, np.arange(50), flags) for flags in (EXACT, 0, EXACT)]
        found = job.everywhere(read)
        for exact, rounded, again in found:
            np.testing.assert_allclose(exact, values, rtol=1e-3)  # rounded, where they were pushed from another host
            np.testing.assert_array_equal(rounded, exact.astype(np.float16))
            np.testing.assert_array_equal(rounded, found[0][1])
            np.testing.assert_array_equal(exact, again)
