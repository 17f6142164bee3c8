"""Dense sums over all workers by the lane: operations of MXNet's engine, with no Python on their way.

A worker gives its values in memory that it shares with an agent of its host, and finds the result in memory of the
agent's.  The engine begins a sum when the values are in their place, and goes on with whatever needs the result when
that is there; both is compiled, ``src/worker_allreduce.h``.
"""
import ctypes
import hashlib
from typing import Any, Dict, Tuple

import mxnet as mx
import numpy as np

from ..native.engine import handles_of, push_native
from . import library
from .worker import Lane

#: The types of gradients.
_DTYPES = ('float16', 'float32', 'float64', 'int32', 'int64')
_NO_ARRAYS = handles_of([])


class AllreduceBuffer:
    """Where one sum is made again and again: `input` takes this worker's values, `output` shows the sum.

    Both are flat arrays of MXNet's; they are valid until the place is dropped.
    """

    def __init__(self, lane: Lane, number: int, count: int, dtype: np.dtype):
        self._library = library.load()
        self.number, self.dtype = number, dtype
        #: What the compiled functions know it by.
        self.pointer = lane.open_allreduce(number, self._library.dtypes[dtype.name], count)
        self.input = _array(self._library.allreduce_input(self.pointer), count, dtype)
        self.output = _array(self._library.allreduce_output(self.pointer), count, dtype)
        #: Of both, for the engine.
        self.handles = handles_of([self.input, self.output])
        self._views: Dict[Tuple[int, ...], Tuple[Any, Any]] = {}

    def views(self, shape: Tuple[int, ...]) -> Tuple[Any, Any]:
        """`input` and `output` in another shape."""
        if shape not in self._views:
            self._views[shape] = self.input.reshape(shape), self.output.reshape(shape)
        return self._views[shape]

    def is_finite(self) -> bool:
        """Whether all values of the last sum, of float16, are finite; waits for it."""
        self.output.wait_to_read()
        return bool(self._library.finite_halves(self._library.allreduce_output(self.pointer), self.output.size))

    def start(self, priority: int) -> None:
        """Have the engine make the sum: it begins when all is done that writes `input`."""
        self.set_priority(priority)
        push_native(self._library.allreduce_start, self.pointer, _NO_ARRAYS, self.handles, priority,
                    b'mxhybrid_allreduce')

    def set_priority(self, priority: int) -> None:
        """Of sums that are ready together, the one with the highest is made first."""
        self._library.allreduce_set_priority(self.pointer, priority)


class LaneAllreduce:
    """Sums of arrays by `lane`: of those on CPUs, and where it `serves_gpus` of any, whose values MXNet copies to the
    host and back.

    Names are unique among what is under way, and the same on all workers.
    """

    def __init__(self, lane: Lane, serves_gpus: bool):
        self._lane, self._serves_gpus = lane, serves_gpus
        self._buffers: Dict[str, AllreduceBuffer] = {}
        #: How often sums were forgotten: one of the same name is another one from then on.
        self._generation = 0

    def serves(self, array: Any) -> bool:
        """Whether an array goes this way; depends on what is equal on all workers only."""
        return (self._serves_gpus or array.context.device_type == 'cpu') and np.dtype(array.dtype).name in _DTYPES

    def buffer(self, name: str, count: int, dtype: Any) -> AllreduceBuffer:
        """The place of a sum; made at the first call, which waits for a process of this host (on all workers)."""
        dtype = np.dtype(dtype)
        key = '%s %s %d' % (name, dtype.name, count)
        found = self._buffers.get(key)
        if found is None:
            digest = hashlib.blake2b(('%d %s' % (self._generation, key)).encode(), digest_size=8).digest()
            found = self._buffers[key] = AllreduceBuffer(self._lane, int.from_bytes(digest, 'little'), count, dtype)
        return found

    def allreduce_(self, array: Any, name: str, priority: int) -> None:
        """Sum a dense array over all workers in place; returns before the sum is there."""
        if not array.size:
            return
        buffer = self.buffer(name, array.size, array.dtype)
        source, result = buffer.views(array.shape)
        array.copyto(source)
        buffer.start(priority)
        result.copyto(array)

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        """Keep nothing of sums with names that begin so (on all workers, with nothing under way)."""
        self._generation += 1
        for key in [key for key in self._buffers if key.startswith(prefixes)]:
            self._lane.drop_allreduce(self._buffers.pop(key).number)


def _array(address: int, count: int, dtype: np.dtype) -> Any:
    """An array of MXNet's on memory that stays."""
    raw: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return mx.nd.from_numpy(np.frombuffer(raw, dtype), zero_copy=True)
