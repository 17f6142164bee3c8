"""The route of a dense weight with dense gradients: allreduce sums them (:mod:`mxhybrid.comm.collective`).

All routes of a dense weight in the workers sum dense gradients in this way; :mod:`mxhybrid.routes.row_gradients` adds
row_sparse gradients.
"""
from typing import Any, Dict, List, Optional

import mxnet as mx
import numpy as np

from ..base.errors import InputError
from ..comm.float16 import HalfSum, OverflowAlarm
from .costs import dense_bytes, ring_share
from .route import Route, RouteContext


class DenseAllreduce(Route):
    """Sums gradients in place; an updater of the store updates the value that the store keeps in this process."""

    kind = 'allreduce'
    all_rows = True

    def __init__(self, key: Any, name: str, array: Any, context: RouteContext):
        super().__init__(key, name, array, context)
        self._collective = context.collective
        self._half_sum = HalfSum(OverflowAlarm(name)) if self.buffer_dtype != self.dtype else None
        #: The name of the last sum.
        self.sum_name = self.tag
        self._keeps = True
        self._stored: Any = None
        self._scratch: Any = None

    def take_over(self, former: Route) -> None:
        """Do as :meth:`Route.take_over`, with the value that the store keeps."""
        super().take_over(former)
        assert isinstance(former, DenseAllreduce)
        self._half_sum, self._keeps = former._half_sum, former._keeps
        self._stored, self._scratch = former._stored, former._scratch

    def init(self, value: Any, outs: List[Any], priority: int, keeps_dense: bool = True, was_set: bool = True) -> None:
        """Do as :meth:`Route.init`; a value that the store does not have to keep is broadcast in an output."""
        self._keeps = keeps_dense
        keep = keeps_dense or not outs or np.dtype(outs[0].dtype) != self.dtype
        if keep:
            self._stored = value.copy()
        target = self._stored if keep else outs[0]
        if not keep:
            _copy(value, [target])
        self._collective.broadcast_(target, self.tag + '.init', priority)
        _copy(target, outs)

    def keep(self, value: Any) -> None:
        """Keep a copy of `value` in the store (the same on all workers)."""
        self._stored = value.copy()

    def push(self, arrays: List[Any], updater: Any, priority: int) -> None:
        """Sum dense arrays; without an updater, the sum is the value."""
        if updater is None:
            self._stored = mx.nd.empty(self.shape, ctx=arrays[0].context, dtype=self.dtype)
            self._sum_into(self._stored, arrays, priority)
            return
        weight = self.held()
        if self._scratch is None or self._scratch.context != weight.context:  # an update needs both on one device
            self._scratch = mx.nd.empty(self.shape, ctx=weight.context, dtype=self.dtype)
        self._sum_into(self._scratch, arrays, priority)
        updater(self.key, self._scratch, weight)

    def pushpull(self, arrays: List[Any], outs: List[Any], updater: Any, priority: int) -> None:
        if updater is None:
            self._sum_into(self.value_of_sum(outs), arrays, priority)
        else:
            self.push(arrays, updater, priority)
        _copy(self._stored, outs)

    def value_of_sum(self, outs: List[Any]) -> Any:
        """Return the array for a sum that is the value from now on, and that `outs` receive."""
        # A Trainer that updates in the worker never reads the value again, so the store keeps no array of its own but
        # uses the output, as MXNet's local store uses the pushed value.
        if not self._keeps and (outs[0] is self._stored or np.dtype(outs[0].dtype) == self.dtype):
            self._stored = outs[0]
        else:
            self._stored = mx.nd.empty(self.shape, ctx=outs[0].context, dtype=self.dtype)
        return self._stored

    def pull(self, outs: List[Any], updater: Any, priority: int, ignore_sparse: bool) -> None:
        """Write the value to dense outputs, and the sum of row_sparse gradients to others."""
        gradients = [array for array in outs if array.stype == 'row_sparse']
        if gradients:
            self._pull_gradient(gradients, updater, priority)
        targets = [array for array in outs if array.stype != 'row_sparse']
        if targets:
            _copy(self._value(priority), targets)

    def _pull_gradient(self, outs: List[Any], updater: Any, priority: int) -> None:
        raise InputError('pull: %s is dense and no row_sparse value was pushed to it: give it a dense output'
                         % self.name)

    def _value(self, priority: int) -> Any:
        return self.held()

    @property
    def carried_error(self) -> Optional[float]:
        """The error that error feedback carries over from the last sum, or bucket of sums; None without."""
        reduction = self._collective.reduction
        return None if reduction is None or not self.is_quantized else reduction.carried_error(self.sum_name)

    @property
    def moved_by_sum(self) -> Dict[str, int]:
        """The bytes that a dense sum moves, and saves, as arguments of :meth:`Traffic.add`."""
        count = self.rows * self.width
        moved, exact = (ring_share(dense_bytes(count, dtype), self._collective.size)
                        for dtype in (self.wire_dtype, self.dtype))
        return {'pushed': moved, 'pulled': moved, 'saved': 2 * (exact - moved)}

    def held(self) -> Any:
        """Return the value that the store keeps."""
        if self._stored is None:
            raise InputError('%s: the store holds no value of it: set the optimizer before init or broadcast'
                             % self.name)
        return self._stored

    def _sum_into(self, target: Any, values: List[Any], priority: int) -> None:
        """Sum dense values over devices and workers into `target`."""
        if len(values) > 1:
            on_device = [value.as_in_context(target.context) for value in values]
            mx.nd.add_n(*on_device, out=target)
        else:
            _copy(values[0], [target])
        if self._half_sum is not None:
            self._half_sum.allreduce_(target, self._collective.allreduce_, self.tag, priority)
        else:
            self._collective.allreduce_(target, self.tag, priority, self.is_quantized)
        self.sum_name = self.tag
        self.traffic.add(rows=self.rows, **self.moved_by_sum)


def _copy(source: Any, targets: List[Any]) -> None:
    for target in targets:
        if target is not source:
            source.copyto(target)
