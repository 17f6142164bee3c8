"""Joins the job that a launcher started, as a training script would, and gathers the findings of all workers.

:mod:`mxhybrid.commands.doctor` starts this program in each worker: there, a failure, crash or hang of it is a finding.
It reads a report as JSON and, in worker 0, writes those of all workers.
"""
import json
import os
import sys
import time
from typing import Any, Dict, List

import mxnet as mx

import mxhybrid

from ...job.join import current
from .processes import ANSWER

#: Number of times that all workers read their clocks.
_READINGS = 5
#: Shape of the table that is summed as a test.
_ROWS, _WIDTH = 64, 4


def clock_offsets(readings: List[List[float]]) -> List[float]:
    """Return the seconds by which each worker's clock is ahead of worker 0's.

    Each reading has the times of all workers right after a barrier.  Workers leave it at slightly different times, so
    the reading with the smallest difference is the best one.
    """
    return [min((times[rank] - times[0] for times in readings), key=abs) for rank in range(len(readings[0]))]


def _sums_are_right(store: Any) -> bool:
    """Return whether a dense array and some rows, different on each worker, are summed correctly."""
    rank, workers = store.rank, store.num_workers
    dense = mx.nd.ones((3, 2)) * (rank + 1)
    store.init('doctor_dense', mx.nd.zeros((3, 2)))
    store.pushpull('doctor_dense', dense, out=dense)
    store.init('doctor_rows', mx.nd.sparse.row_sparse_array((mx.nd.zeros((_ROWS, _WIDTH)), mx.nd.arange(_ROWS)),
                                                            shape=(_ROWS, _WIDTH)))
    store.set_optimizer(mx.optimizer.create('sgd', learning_rate=1.0, wd=0.0, rescale_grad=-1.0))
    row_ids = mx.nd.array([0, 1 + rank % (_ROWS - 1)])
    values = mx.nd.ones((2, _WIDTH)) * (rank + 1)
    store.push('doctor_rows', mx.nd.sparse.row_sparse_array((values, row_ids), shape=(_ROWS, _WIDTH)))
    out = mx.nd.sparse.zeros('row_sparse', (_ROWS, _WIDTH))
    store.row_sparse_pull('doctor_rows', out=out, row_ids=mx.nd.array([0]))
    expected = workers * (workers + 1) / 2
    return bool((dense.asnumpy() == expected).all() and (out.data.asnumpy() == expected).all())


def main() -> None:
    """Join the job, test sums, gather the reports and write the answer."""
    report = json.load(sys.stdin)
    store = mxhybrid.create()
    job = current()
    assert job is not None
    right = _sums_are_right(store)
    answer: Dict[str, Any] = {'reports': [report], 'offsets': [0.0]}
    if job.collective is not None and job.num_workers > 1:
        exchange = job.collective.allgather_json
        readings = []
        for _ in range(_READINGS):
            job.collective.any(False, 'mxhybrid.doctor.meet')
            readings.append(exchange(time.time(), 'mxhybrid.doctor.clocks'))
        answer = {'reports': exchange(report, 'mxhybrid.doctor.reports'), 'offsets': clock_offsets(readings)}
        right = not job.collective.any(not right, 'mxhybrid.doctor.right')
    answer.update(right=right, servers=job.num_servers, workers=job.num_workers,
                  files=len(os.listdir('/proc/self/fd')))
    if job.rank == 0:
        sys.stdout.write('\n' + ANSWER + json.dumps(answer) + '\n')
        sys.stdout.flush()


if __name__ == '__main__':
    main()
