"""What rows of tables take, by servers and by allreduce."""
import contextlib
from typing import Any, Callable, ContextManager, List

import mxnet as mx
import numpy as np

from ...job.job import Job
from ...kvstore.hybrid import Hybrid
from .trainer_benchmark import OPTIMIZER, SETTINGS

#: Rows of a table, and values of a row.
TABLE_ROWS, WIDTH = 1 << 15, 64
ROW_BYTES = 4 * WIDTH
#: Rows that each worker has in a sum of all.
SUMMED_ROWS = 64


def _rows_of(ids: Any, rows: int) -> Any:
    """Ones in some rows of a table."""
    return mx.nd.sparse.row_sparse_array((mx.nd.ones((len(ids), WIDTH), ctx=mx.cpu()),
                                          mx.nd.array(ids, ctx=mx.cpu(), dtype='int64')), shape=(rows, WIDTH))


class TableRows:
    """Rows of a table on the servers, which this worker pushes (collective)."""

    def __init__(self, job: Job, partitions: int):
        self._job, self._name = job, 'calibration%d' % partitions
        self._store = Hybrid(routes={'*': 'servers'}, partitions={'*': partitions})
        self._store.init(self._name, mx.nd.sparse.zeros('row_sparse', (TABLE_ROWS, WIDTH), ctx=mx.cpu()))
        self._store.set_optimizer(mx.optimizer.create(OPTIMIZER, **SETTINGS))
        self._one: Any = mx.nd.array([0], ctx=mx.cpu(), dtype='int64')
        self.draw(1)

    def draw(self, count: int) -> None:
        """What is pushed from now on: other rows for each worker."""
        self._some = _rows_of(own_ids(self._job, TABLE_ROWS, count), TABLE_ROWS)

    def push(self) -> None:
        """Push them (collective), and see that they have arrived."""
        self._store.push(self._name, self._some)
        self.pull_one()

    def pull_one(self) -> None:
        """Pull a single row."""
        out = mx.nd.sparse.zeros('row_sparse', (TABLE_ROWS, WIDTH), ctx=mx.cpu())
        self._store.row_sparse_pull(self._name, out=out, row_ids=self._one)
        out.data.wait_to_read()


class TableSums:
    """Gradients of a table of so many rows that all workers sum, as of an embedding (collective): by allreduce, or by
    servers, with a number of `partitions`; `around` is entered for each sum.
    """

    def __init__(self, job: Job, rows: int, around: Callable[[], ContextManager[None]] = contextlib.nullcontext,
                 partitions: int = 0):
        self._job, self._around, self._rows = job, around, rows
        self._name = 'calibration sums %d %d' % (rows, partitions)
        self._store = Hybrid(routes={'*': 'servers' if partitions else 'allreduce'},
                             partitions={'*': max(1, partitions)})
        self._store.init(self._name, mx.nd.zeros((rows, WIDTH), ctx=mx.cpu()))
        self.draw(SUMMED_ROWS)
        #: Bytes of the rows and their marks.
        self.size = 4 * rows * (WIDTH + 1)

    def draw(self, count: int) -> None:
        """What has gradients from now on: other rows for each worker."""
        self._some = _rows_of(own_ids(self._job, self._rows, count), self._rows)

    def sum(self) -> None:
        """Sum them, and take those rows that anyone touched."""
        with self._around():
            self._store.push(self._name, self._some)
        out = mx.nd.sparse.zeros('row_sparse', (self._rows, WIDTH), ctx=mx.cpu())
        self._store.pull(self._name, out=out, ignore_sparse=False)
        out.data.wait_to_read()


def own_ids(job: Job, rows: int, count: int) -> Any:
    """So many rows that no other worker has, or all of those, spread over a table."""
    mine = np.arange(job.rank, rows, job.num_workers)
    return np.sort(np.random.RandomState(job.rank).choice(mine, min(count, len(mine)), replace=False)).astype(np.int64)


def partitions_to_try(servers: int) -> List[int]:
    """Counts of partitions whose cost is measured."""
    return [servers, 4 * servers]
