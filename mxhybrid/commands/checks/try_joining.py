"""Joins the job that a launcher started, as a training script would, and brings everybody's findings to worker 0.

A process of its own, started by :mod:`mxhybrid.commands.doctor` in each worker: what fails, crashes or hangs here is a
finding there.  Reads a JSON value and, in worker 0, writes one.
"""
import json
import os
import socket
import sys
import time
from typing import Any, Dict, List

import mxnet as mx

import mxhybrid

from ...job.join import current

#: What a line of standard output begins with that is meant for the process that started this one.
ANSWER = 'mxhybrid-answer '
#: Times that all look at their clocks.
_LOOKS = 5
#: Rows of the table that is summed for a try.
_ROWS, _WIDTH = 64, 4


def clock_offsets(looks: List[List[float]]) -> List[float]:
    """How far each worker's clock is ahead of worker 0's at most, in seconds.

    Each look holds the times of all workers right after a barrier.  They leave it at slightly different times, so that
    the look with the smallest difference tells most.
    """
    return [min((look[rank] - look[0] for look in looks), key=abs) for rank in range(len(looks[0]))]


def _sums_are_right(store: Any) -> bool:
    """Whether a dense array and some rows, different on each worker, are summed."""
    rank, workers = store.rank, store.num_workers
    dense = mx.nd.ones((3, 2)) * (rank + 1)
    store.init('doctor_dense', mx.nd.zeros((3, 2)))
    store.pushpull('doctor_dense', dense, out=dense)
    store.init('doctor_rows', mx.nd.sparse.row_sparse_array((mx.nd.zeros((_ROWS, _WIDTH)), mx.nd.arange(_ROWS)),
                                                            shape=(_ROWS, _WIDTH)))
    store.set_optimizer(mx.optimizer.create('sgd', learning_rate=1.0, wd=0.0, rescale_grad=-1.0))
    mine = mx.nd.array([0, 1 + rank % (_ROWS - 1)])
    values = mx.nd.ones((2, _WIDTH)) * (rank + 1)
    store.push('doctor_rows', mx.nd.sparse.row_sparse_array((values, mine), shape=(_ROWS, _WIDTH)))
    out = mx.nd.sparse.zeros('row_sparse', (_ROWS, _WIDTH))
    store.row_sparse_pull('doctor_rows', out=out, row_ids=mx.nd.array([0]))
    expected = workers * (workers + 1) / 2
    return bool((dense.asnumpy() == expected).all() and (out.data.asnumpy() == expected).all())


def main() -> None:
    """Join, exchange, write."""
    mine = json.load(sys.stdin)
    store = mxhybrid.create()
    job = current()
    assert job is not None
    right = _sums_are_right(store)
    answer: Dict[str, Any] = {'reports': [mine], 'offsets': [0.0]}
    if job.collective is not None and job.num_workers > 1:
        exchange = job.collective.exchange
        looks = []
        for _ in range(_LOOKS):
            job.collective.any(False, 'mxhybrid.doctor.meet')
            looks.append(exchange(time.time(), 'mxhybrid.doctor.clocks'))
        answer = {'reports': exchange(mine, 'mxhybrid.doctor.reports'), 'offsets': clock_offsets(looks)}
        right = not job.collective.any(not right, 'mxhybrid.doctor.right')
    answer.update(right=right, hosts=job.topology.hosts, servers=job.num_servers, workers=job.num_workers,
                  host=socket.gethostname(), files=len(os.listdir('/proc/self/fd')))
    if job.rank == 0:
        sys.stdout.write('\n' + ANSWER + json.dumps(answer) + '\n')
        sys.stdout.flush()


if __name__ == '__main__':
    main()
