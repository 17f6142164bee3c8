"""Pushes, pulls and sums of rows of tables, by servers and by allreduce."""
from typing import Any

import mxnet as mx
import numpy as np

from ...job.job import Job
from ...kvstore.hybrid import Hybrid
from .trainer_benchmark import OPTIMIZER, SETTINGS

#: Rows of a table, and values of a row.
TABLE_ROWS, WIDTH = 1 << 15, 64
ROW_BYTES = 4 * WIDTH
#: Rows that each worker contributes to a sum of all workers.
SUMMED_ROWS = 64


def _own_rows(job: Job, rows: int, count: int) -> Any:
    """Return a row_sparse array of `rows` rows with ones in `count` rows, or fewer if there are not enough, that no
    other worker has, spread over the array.
    """
    own = np.arange(job.rank, rows, job.num_workers)
    ids = np.sort(np.random.RandomState(job.rank).choice(own, min(count, len(own)), replace=False))
    return mx.nd.sparse.row_sparse_array((mx.nd.ones((len(ids), WIDTH), ctx=mx.cpu()),
                                          mx.nd.array(ids, ctx=mx.cpu(), dtype='int64')), shape=(rows, WIDTH))


class TableRows:
    """A table on the servers, rows of which this worker pushes (collective)."""

    def __init__(self, job: Job, partitions: int):
        self._job, self._name = job, 'calibration%d' % partitions
        self._store = Hybrid(routes={'*': 'servers'}, partitions={'*': partitions})
        self._store.init(self._name, mx.nd.sparse.zeros('row_sparse', (TABLE_ROWS, WIDTH), ctx=mx.cpu()))
        self._store.set_optimizer(mx.optimizer.create(OPTIMIZER, **SETTINGS))
        self._first_id: Any = mx.nd.array([0], ctx=mx.cpu(), dtype='int64')
        self.draw(1)

    def draw(self, count: int) -> None:
        """Choose the rows that are pushed from now on: each worker has others."""
        self._rows = _own_rows(self._job, TABLE_ROWS, count)

    def push(self) -> None:
        """Push the rows (collective), and wait until they have arrived."""
        self._store.push(self._name, self._rows)
        self.pull_one()

    def pull_one(self) -> None:
        """Pull a single row."""
        out = mx.nd.sparse.zeros('row_sparse', (TABLE_ROWS, WIDTH), ctx=mx.cpu())
        self._store.row_sparse_pull(self._name, out=out, row_ids=self._first_id)
        out.data.wait_to_read()


class TableSums:
    """Gradients of a table that all workers sum, like those of an embedding (collective).

    They are summed by allreduce, or by servers if `partitions` is not 0.
    """

    def __init__(self, job: Job, rows: int, partitions: int = 0):
        self._job, self._table_rows = job, rows
        self._name = 'calibration sums %d %d' % (rows, partitions)
        self._store = Hybrid(routes={'*': 'servers' if partitions else 'allreduce'},
                             partitions={'*': max(1, partitions)})
        self._store.init(self._name, mx.nd.zeros((rows, WIDTH), ctx=mx.cpu()))
        self.draw(SUMMED_ROWS)
        #: Bytes of all rows and of the marks of those that have gradients.
        self.size = 4 * rows * (WIDTH + 1)

    def draw(self, count: int) -> None:
        """Choose the rows that have gradients from now on: each worker has others."""
        self._gradient = _own_rows(self._job, self._table_rows, count)

    def sum(self) -> None:
        """Sum the gradients, and pull the rows that any worker touched."""
        self._store.push(self._name, self._gradient)
        out = mx.nd.sparse.zeros('row_sparse', (self._table_rows, WIDTH), ctx=mx.cpu())
        self._store.pull(self._name, out=out, ignore_sparse=False)
        out.data.wait_to_read()
