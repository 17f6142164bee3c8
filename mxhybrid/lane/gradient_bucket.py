"""Several dense gradients in one allreduce, and the update of their weights, see ``src/dense/gradient_bucket.h``."""
import ctypes
import weakref
from typing import Any, List, Optional, Sequence

import numpy as np
from mxnet.base import check_call

from ..native.arrays import is_same
from ..native.dense_rules import Update
from ..native.engine import function_address, handles_of, own_handle, push_native, push_native_sync
from ..native.forks import fork_guard
from ..native.storage import are_separate, layout_function, storage_of
from . import library
from .allreduce import AllreduceBuffer
from .row_arrays import mxnet_functions


class GradientBucket:
    """Gradients that are summed together: arrays of `dtype` on the CPU, which `buffer` holds one after the other.

    None in place of a gradient leaves its part of the buffer as it is, and has no weight in updates; `sizes` then has
    the elements of all gradients.  Operations that are under way need neither this object nor the arrays.
    """

    def __init__(self, buffer: AllreduceBuffer, gradients: Sequence[Any], dtype: np.dtype,
                 sizes: Optional[Sequence[int]] = None):
        self._library = library.load()
        self.buffer, self.gradients = buffer, list(gradients)
        count = len(self.gradients)
        self._gradients = handles_of([array for array in self.gradients if array is not None])
        #: The sums, for operations of the engine that read them.
        self.output_handles = handles_of([buffer.output])
        #: The compiled bucket.
        self.pointer = self._library.bucket_new(
            buffer.pointer, self._library.dtypes[dtype.name], int(dtype != buffer.dtype), *_array_functions(), count,
            _own_handles(self.gradients), library.counts(sizes or [array.size for array in self.gradients]))
        weakref.finalize(self, self._library.bucket_close, self.pointer).atexit = False

    def start(self, priority: int, scatter: bool = False) -> None:
        """Push the allreduce to the engine; it starts once the gradients are computed, and does not change them.

        With `scatter` it is a reduce-scatter: this worker gets the sums of its own range, see :class:`AllreduceBuffer`.
        """
        self.buffer.set_priority(priority)
        share = self._library.bucket_share(self.pointer)
        push_native(self._library.bucket_scatter if scatter else self._library.bucket_start, share, self._gradients,
                    self.buffer.handles, priority, b'mxhybrid_bucket', self._library.bucket_close)


class DenseUpdate:
    """The update of weights by a compiled kernel.

    - `states`: two arrays of optimizer state for each weight, None if it has fewer.
    - `gradients`: those of the weights: updates with the sums of a bucket write the sums there, other updates read
      them.
    - `copies`: an array for each weight, or None, which an update also sets to the weight if it can, see
      `writes_copies`.
    - `base`: the array of which all weights are views, if they are.

    All arrays are on the CPU and of one type.  Operators of oneDNN may change their layouts.
    """

    def __init__(self, weights: Sequence[Any], states: Sequence[Any], gradients: Sequence[Any] = (),
                 copies: Sequence[Any] = (), base: Any = None):
        self._library = compiled = library.load()
        self._arrays = [*weights, *states, *copies]
        count = len(weights)
        #: Whether updates write the copies.
        self.writes_copies = bool(copies) and _can_copy(weights, states, copies)
        written_copies = copies if self.writes_copies else [None] * count
        self._number = compiled.dtypes[np.dtype(weights[0].dtype).name]
        self._sizes = library.counts([weight.size for weight in weights])
        # Views of one array are one variable of the engine, which must occur once.
        written = {storage_of(array): array for array in [
            *(weights if base is None else [base]), *gradients, *states, *written_copies] if array is not None}
        self._written = list(written.values())
        self._handles, self._reads = handles_of(self._written), handles_of([])
        arrays = [array for slots in zip(weights, gradients or [None] * count, states[::2], states[1::2],
                                         written_copies) for array in slots]
        #: The compiled references to the arrays, as long as this object lives.
        self._pointer = compiled.arrays_new(*_array_functions(), layout_function(), len(arrays), _own_handles(arrays))
        weakref.finalize(self, compiled.arrays_close, self._pointer).atexit = False

    def is_of(self, weights: Sequence[Any], states: Sequence[Any], copies: Sequence[Any] = ()) -> bool:
        """Return whether these are the same objects."""
        return is_same(self._arrays, [*weights, *states, *copies])

    def start(self, update: Update, priority: int, bucket: Optional[GradientBucket] = None) -> None:
        """Push an update to the engine, with the sums of `bucket`, if there is one: then the weights are those of its
        gradients that are not None.
        """
        count = len(update.rates[0])
        lrs, wds = [(ctypes.c_double * count)(*values) for values in update.rates]
        parameter = self._library.update_new(
            None if bucket is None else bucket.pointer, self._number, self._library.rules[update.rule],
            self._library.rule_settings(update.settings), int(update.in_lists), count, self._pointer, self._sizes, lrs,
            wds)
        push_native_sync(self._library.update_run, parameter, self._reads if bucket is None else bucket.output_handles,
                         self._handles, priority, b'mxhybrid_update', self._library.update_close)


def _can_copy(weights: Sequence[Any], states: Sequence[Any], copies: Sequence[Any]) -> bool:
    """Return whether an update can also write `copies`: separate arrays on the CPU that are like the weights."""
    arrays = [array for array in [*weights, *states, *copies] if array is not None]
    return layout_function() is not None and are_separate(arrays) and all(
        copy is None or (copy.context.device_type, copy.stype, copy.shape, copy.dtype) == (
            'cpu', 'default', weight.shape, weight.dtype) for weight, copy in zip(weights, copies))


class Copies:
    """Copies of arrays to others, which MXNet's engine makes again and again."""

    def __init__(self) -> None:
        self._library = library.load()
        self._sources: List[Any] = []
        self._targets: List[Any] = []
        self._from = self._to = handles_of([])

    def run(self, sources: List[Any], targets: List[Any]) -> None:
        """Push copies to the engine; it takes less time if the arrays are those of the last call."""
        if not (is_same(self._sources, sources) and is_same(self._targets, targets)):
            self._sources, self._targets = list(sources), list(targets)
            self._from, self._to = handles_of(self._sources), handles_of(self._targets)
        with fork_guard:  # a fork by another thread waits until the engine has all copies
            check_call(self._library.copy_arrays(mxnet_functions(), len(self._sources), self._from, self._to))


def _array_functions() -> List[Any]:
    return [function_address(name) for name in ('MXNDArrayGetData', 'MXNDArrayFree')]


def _own_handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[None if array is None else own_handle(array) for array in arrays])
