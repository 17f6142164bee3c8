"""The base of routes for dense weights with row_sparse gradients: it gives the summed rows to optimizer or script."""
from typing import Any, List

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..base.settings import variable
from .dense_allreduce import DenseAllreduce
from .route import Route


class RowGradients(DenseAllreduce):
    """The common part of server gradients and row allreduce.

    Without an updater the last sum is the value, as in MXNet.
    """

    all_rows = False

    def __init__(self, former: Route):
        super().__init__(former.key, former.name, former, former.context)
        self.take_over(former)
        if self.context.settings.may_travel_as('float16') and self.dtype == np.float64:
            raise InputError('push: %s is %s, but with %s=float16 servers compute in float32 only: make it float32, '
                             'or leave %s out' % (self.name, self.dtype, variable('wire_dtype'),
                                                  variable('wire_dtype')))

    def push_rows(self, ids: np.ndarray, rows: np.ndarray, updater: Any, priority: int) -> None:
        """Sum rows over all workers; an updater gets the rows that any worker touched."""
        self._sum_rows(ids, rows, priority)
        if updater is not None:
            updater(self.key, self._summed(priority, self.held().context), self.held())
        else:
            self._stored = None  # the sum is the value now

    def _sum_rows(self, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        """Start to sum rows."""
        raise NotImplementedError

    def _write_sum(self, outs: List[Any], priority: int) -> None:
        """Write the last sum to row_sparse outputs."""
        raise NotImplementedError

    def _summed(self, priority: int, context: Any) -> Any:
        out = mx.nd.sparse.zeros('row_sparse', self.shape, dtype=self.dtype, ctx=context)
        self._write_sum([out], priority)
        return out

    def _pull_gradient(self, outs: List[Any], updater: Any, priority: int) -> None:
        if updater is None and self._stored is not None:
            raise InputError('pull: %s is dense and no row_sparse value was pushed to it last: give it a dense output'
                             % self.name)
        self._write_sum(outs, priority)

    def _value(self, priority: int) -> Any:
        return self._summed(priority, mx.cpu()).tostype('default') if self._stored is None else self._stored
