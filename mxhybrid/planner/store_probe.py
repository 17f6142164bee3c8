"""What the store takes: steps of a Trainer with dense weights, and rows of tables by servers and by allreduce."""
import contextlib
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..kvstore.hybrid import Hybrid
from ..kvstore.parts import set_part
from ..parallel.boxes import Box
from ..parallel.held import WeightBox
from ..parallel.team import Team
from .step_model import BUNDLE_BYTES

#: Rows of a table, and values of a row.
TABLE_ROWS, WIDTH = 1 << 15, 64
ROW_BYTES = 4 * WIDTH
#: Rows that each worker has in a sum of all.
SUMMED_ROWS = 64
#: The optimizer whose updates count.
OPTIMIZER, SETTINGS = 'sgd', {'learning_rate': 0.0, 'momentum': 0.9}


class DenseWeights(NamedTuple):
    """So many weights of so many values."""

    number: int
    values: int

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return 4 * self.number * self.values

    @property
    def sums(self) -> int:
        """How many sums a step makes of them, see :mod:`mxhybrid.routes.dense_bundles`."""
        return -(-self.number // max(1, BUNDLE_BYTES // (4 * self.values)))


class TrainerSteps:
    """Steps of a Trainer (collective); `around` is entered for each.  With a `team` each worker has weights of its own,
    as where a network is split, and nothing is summed.
    """

    def __init__(self, weights: DenseWeights, around: Callable[[], ContextManager[None]] = contextlib.nullcontext,
                 team: Optional[Team] = None):
        self._around = around
        self._params = [gluon.Parameter('calibration%d' % at, shape=(weights.values,)) for at in range(weights.number)]
        for param in self._params:
            param.initialize(mx.init.Zero(), ctx=mx.cpu())
            if team is not None:
                boxes: Dict[int, Box] = {rank: ((rank * weights.values, (rank + 1) * weights.values),)
                                         for rank in range(team.size)}
                set_part(param, WeightBox(team, (team.size * weights.values,), 'write', boxes, team.reserve(2)))
        self._trainer = gluon.Trainer(self._params, OPTIMIZER, dict(SETTINGS), kvstore=Hybrid(),
                                      update_on_kvstore=False)

    def compute(self) -> None:
        """Gradients, so that there is something to sum."""
        with autograd.record():
            heads = [param.data() * 1 for param in self._params]
        autograd.backward(heads)

    def step(self, updates: bool) -> None:
        """Sum, and update or not."""
        with self._around():
            if updates:
                self._trainer.step(1)
            else:
                self._trainer.allreduce_grads()


class TableRows:
    """Rows of a table, which this worker pushes and pulls (collective)."""

    def __init__(self, rank: int, partitions: int):
        self._name = 'calibration%d' % partitions
        self._store = Hybrid(routes={'*': 'servers'}, partitions={'*': partitions})
        self._random = np.random.RandomState(rank)
        self._store.init(self._name, mx.nd.sparse.zeros('row_sparse', (TABLE_ROWS, WIDTH), ctx=mx.cpu()))
        self._store.set_optimizer(mx.optimizer.create(OPTIMIZER, **SETTINGS))
        self._some: Any = None
        self.draw(1)

    def draw(self, count: int) -> None:
        """What is pushed and pulled from now on: other rows for each worker, now and then the same."""
        ids: Any = np.sort(self._random.choice(TABLE_ROWS, count, replace=False)).astype(np.int64)
        self._ids: Any = mx.nd.array(ids, ctx=mx.cpu(), dtype='int64')
        values = mx.nd.zeros((count, WIDTH), ctx=mx.cpu())
        self._some = mx.nd.sparse.row_sparse_array((values, self._ids), shape=(TABLE_ROWS, WIDTH))
        self._one: Any = mx.nd.array([0], ctx=mx.cpu(), dtype='int64')

    def push(self) -> None:
        """Push them (collective), and see that they have arrived."""
        self._store.push(self._name, self._some)
        self._pull(self._one)

    def pull(self) -> None:
        """Pull them; the second time since a push they lie on this host."""
        self._pull(self._ids)

    def _pull(self, ids: Any) -> None:
        out = mx.nd.sparse.zeros('row_sparse', (TABLE_ROWS, WIDTH), ctx=mx.cpu())
        self._store.row_sparse_pull(self._name, out=out, row_ids=ids)
        out.data.wait_to_read()


class TableSums:
    """Rows of a table of so many, that all workers sum by allreduce (collective); `around` is entered for each sum."""

    def __init__(self, rank: int, rows: int, around: Callable[[], ContextManager[None]] = contextlib.nullcontext):
        self._around = around
        self._name, self._shape = 'calibration sums %d' % rows, (rows, WIDTH)
        self._store = Hybrid(routes={'*': 'allreduce'})
        self._store.init(self._name, mx.nd.zeros(self._shape, ctx=mx.cpu()))
        ids = np.sort(np.random.RandomState(rank).choice(rows, SUMMED_ROWS, replace=False)).astype(np.int64)
        self._some: Any = mx.nd.sparse.row_sparse_array(
            (mx.nd.ones((SUMMED_ROWS, WIDTH), ctx=mx.cpu()), mx.nd.array(ids, ctx=mx.cpu(), dtype='int64')),
            shape=self._shape)
        #: Bytes of the rows and their marks.
        self.size = 4 * rows * (WIDTH + 1)

    def sum(self) -> None:
        """Sum a few rows, and take those that anyone touched."""
        with self._around():
            self._store.push(self._name, self._some)
        out = mx.nd.sparse.zeros('row_sparse', self._shape, ctx=mx.cpu())
        self._store.pull(self._name, out=out, ignore_sparse=False)
        out.data.wait_to_read()


def partitions_to_try(servers: int) -> List[int]:
    """Counts of partitions whose cost is measured."""
    return [servers, 4 * servers]
