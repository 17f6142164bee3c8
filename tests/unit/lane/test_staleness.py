"""Pulls of tables with staleness: their rows include all pushes of the worker, and all but the last k of the others.

Worker w pushes rows with 1 in column w and 0 elsewhere, and the servers add: a row counts the pushes of each worker.
"""
import time

import numpy as np
import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.lane.row_format import RowFormat

from ...helpers.counting_tables import check_rows, counts_by_step
from .hosts import FENCE, JOBS, SGD, UNCACHED, hosts

ROWS = 30
#: Rows of one element, as those of a job with one worker here, never travel as int8.
JOBS_AND_FORMS = [(workers, agents, form) for workers, agents in JOBS
                  for form in (RowFormat.EXACT, RowFormat.FLOAT16, RowFormat.INT8)
                  if form is not RowFormat.INT8 or sum(workers) > 1]


def add_table(job, staleness, parts=1, **options):
    """Add table 0, with a column for each worker, which counts pushes."""
    job.table(0, ROWS, len(job.workers), job.owners(parts), staleness=staleness, **options)
    job.rule(0, SGD, lr=1.0, rescale=-1.0)


def push(job, worker, ids):
    rows = np.zeros((len(ids), len(job.workers)))
    rows[:, worker] = 1
    assert job.push(worker, 0, ids, rows)


def pull(job, worker, ids, staleness, ahead=0):
    return job.wait(worker, 0, job.post(worker, 0, ids, 0, staleness, ahead), len(ids))


def pushed_ids(worker, step):
    return np.flatnonzero(np.random.RandomState(100 * worker + step).rand(ROWS) < 0.3)


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('staleness, parts', [(1, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize('workers, agents, form', JOBS_AND_FORMS)
def test_rows_lack_no_own_push_and_few_others(workers, agents, form, staleness, parts, dynamic):
    # Counts are exact in float16.  In int8, they are multiples of at most 12 / 127.
    steps, tolerance = 12, 0.1 if form is RowFormat.INT8 else 0.0
    with hosts(workers, agents) as job:
        counts = counts_by_step(len(job.workers), steps, ROWS, pushed_ids)
        add_table(job, staleness, parts, dynamic=dynamic, row_format=int(form))

        def train(worker):
            random = np.random.RandomState(worker)
            for step in range(steps):
                if random.rand() < 0.3:
                    time.sleep(0.003 * (worker + 1))
                requests = []
                if random.rand() < 0.5:  # rows for the next pull, before the push
                    ids = np.setdiff1d(np.flatnonzero(random.rand(ROWS) < 0.5), pushed_ids(worker, step))
                    requests.append((ids, job.post(worker, 0, ids, 0, staleness - 1, 1)))
                push(job, worker, pushed_ids(worker, step))
                for allowed in random.randint(0, staleness + 1, random.randint(3)):
                    ids = np.flatnonzero(random.rand(ROWS) < 0.5)
                    requests.append((ids, job.post(worker, 0, ids, 0, allowed)))
                for ids, request in requests:
                    rows = job.wait(worker, 0, request, len(ids))
                    check_rows(rows, ids, worker, step + 1, staleness, counts, tolerance)
                flags = [UNCACHED, FENCE, 0][step % 3]
                ids = np.arange(0 if flags == FENCE else ROWS)
                rows = job.pull(worker, 0, ids, flags)
                np.testing.assert_allclose(rows, counts[step + 1, :len(ids)], rtol=0, atol=tolerance)
        job.everywhere(train)


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('workers, agents', [([2], [1]), ([1, 1], [1, 1])])
def test_worker_waits_no_longer_than_it_must(workers, agents, dynamic):
    with hosts(workers, agents) as job:
        add_table(job, 1, len(agents), dynamic=dynamic)
        push(job, 0, np.arange(10))
        others = np.arange(10, 20)
        assert (pull(job, 0, others, 1) == 0).all()
        waiting = job.post(0, 0, np.arange(20), 0, 1)
        assert job.wait(0, 0, waiting, 20, 100) is None  # it has rows of the worker's push
        assert (pull(job, 0, others, 1) == 0).all()
        assert (pull(job, 1, others, 1) == 0).all()
        push(job, 1, others)
        rows = job.wait(0, 0, waiting, 20)
        assert (rows[:10] == [1, 0]).all() and (rows[10:, 0] == 0).all()
        push(job, 0, np.arange(5))
        assert (pull(job, 0, others, 1) == [0, 1]).all()
        if len(workers) == 1:
            return  # the workers of a host cannot be two pushes apart
        push(job, 0, [])
        bounded = job.post(0, 0, others, 0, 1)  # it must include the first two pushes of the other worker
        assert job.wait(0, 0, bounded, 10, 100) is None
        push(job, 1, others)
        assert (job.wait(0, 0, bounded, 10) == [0, 2]).all()
        push(job, 1, [])
        assert (pull(job, 1, np.arange(5), 0) == [2, 0]).all()


def test_lags_are_counted():
    with hosts([1, 1], [1, 1]) as job:
        add_table(job, 2, 2)
        assert job.lags(0, 0) == [0] * 17
        push(job, 0, np.arange(4))
        pull(job, 0, np.arange(10, 14), 2)
        assert job.lags(0, 0)[:3] == [0, 4, 0]
        push(job, 1, np.arange(4))
        pull(job, 0, np.arange(6), 2)
        # Rows 0 to 3 were pushed by this worker and wait; rows 4 and 5, of either partition, may lack the last push.
        fresh, before, older = job.lags(0, 0)[:3]
        assert fresh + before == 10 and 4 <= fresh <= 6 and older == 0
        pull(job, 0, np.arange(20, 24), 0, ahead=1)
        assert job.lags(0, 0)[1] == before + 4


def test_more_staleness_than_the_table_has_is_refused():
    with hosts([1], [1]) as job:
        add_table(job, 1)
        with pytest.raises(JobError, match='more staleness than its table'):
            job.post(0, 0, [1], 0, 2)
        with pytest.raises(JobError, match='staleness of 17'):
            add_table(job, 17)
