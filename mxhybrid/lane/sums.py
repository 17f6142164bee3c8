"""Dense sums over all workers by the lane: operations of MXNet's engine, with no Python on their way.

A worker gives its values in memory that it shares with an agent of its host, and finds the result in memory of the
agent's.  The engine begins a sum when the values are in their place, and goes on with whatever needs the result when
that is there; both is compiled, ``src/worker_sums.h``.
"""
import ctypes
import hashlib
from typing import Any, Dict, Tuple

import mxnet as mx
import numpy as np

from ..native.engine import handles_of, push_native
from . import library
from .worker import Lane

#: Types by their numbers in ``src/shared.h``; gradients have no others.
DTYPES = ('float16', 'float32', 'float64', 'int32', 'int64')
_NO_ARRAYS = handles_of([])


class Place:
    """Where one sum is made again and again: `given` takes this worker's values, `total` shows the sum.

    Both are flat arrays of MXNet's; they are valid until the place is dropped.
    """

    def __init__(self, lane: Lane, number: int, count: int, dtype: np.dtype):
        self._library = library.load()
        self.number, self.dtype = number, dtype
        #: What the compiled functions know it by.
        self.pointer = lane.open_sum(number, DTYPES.index(dtype.name), count)
        self.given = _array(self._library.sum_given(self.pointer), count, dtype)
        self.total = _array(self._library.sum_total(self.pointer), count, dtype)
        #: Of both, for the engine.
        self.handles = handles_of([self.given, self.total])
        self._views: Dict[Tuple[int, ...], Tuple[Any, Any]] = {}

    def views(self, shape: Tuple[int, ...]) -> Tuple[Any, Any]:
        """`given` and `total` in another shape."""
        if shape not in self._views:
            self._views[shape] = self.given.reshape(shape), self.total.reshape(shape)
        return self._views[shape]

    def is_finite(self) -> bool:
        """Whether all values of the last sum, of float16, are finite; waits for it."""
        self.total.wait_to_read()
        return bool(self._library.finite_halves(self._library.sum_total(self.pointer), self.total.size))

    def make(self, priority: int) -> None:
        """Have the engine make the sum: it begins when all is done that writes `given`."""
        self.set_priority(priority)
        push_native(self._library.sum_begin, self.pointer, _NO_ARRAYS, self.handles, priority, b'mxhybrid_sum')

    def set_priority(self, priority: int) -> None:
        """Of sums that are ready together, the one with the highest is made first."""
        self._library.sum_set_priority(self.pointer, priority)


class LaneSums:
    """Sums of arrays by `lane`: of those on CPUs, and where it `serves_gpus` of any, whose values MXNet copies to the
    host and back.

    Names are unique among what is under way, and the same on all workers.
    """

    def __init__(self, lane: Lane, serves_gpus: bool):
        self._lane, self._serves_gpus = lane, serves_gpus
        self._places: Dict[str, Place] = {}
        #: How often sums were forgotten: one of the same name is another one from then on.
        self._generation = 0

    def serves(self, array: Any) -> bool:
        """Whether an array goes this way; depends on what is equal on all workers only."""
        return (self._serves_gpus or array.context.device_type == 'cpu') and np.dtype(array.dtype).name in DTYPES

    def place(self, name: str, count: int, dtype: Any) -> Place:
        """The place of a sum; made at the first call, which waits for a process of this host (on all workers)."""
        dtype = np.dtype(dtype)
        key = '%s %s %d' % (name, dtype.name, count)
        found = self._places.get(key)
        if found is None:
            digest = hashlib.blake2b(('%d %s' % (self._generation, key)).encode(), digest_size=8).digest()
            found = self._places[key] = Place(self._lane, int.from_bytes(digest, 'little'), count, dtype)
        return found

    def allreduce_(self, array: Any, name: str, priority: int) -> None:
        """Sum a dense array over all workers in place; returns before the sum is there."""
        if not array.size:
            return
        place = self.place(name, array.size, array.dtype)
        given, total = place.views(array.shape)
        array.copyto(given)
        place.make(priority)
        total.copyto(array)

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        """Keep nothing of sums with names that begin so (on all workers, with nothing under way)."""
        self._generation += 1
        for key in [key for key in self._places if key.startswith(prefixes)]:
            self._lane.drop_sum(self._places.pop(key).number)


def _array(address: int, count: int, dtype: np.dtype) -> Any:
    """An array of MXNet's on memory that stays."""
    raw: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return mx.nd.from_numpy(np.frombuffer(raw, dtype), zero_copy=True)
