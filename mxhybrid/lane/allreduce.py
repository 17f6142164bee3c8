"""Allreduces of dense arrays by the lane: operations of MXNet's engine that run without Python.

A worker writes its input to memory that it shares with an agent of its host, and finds the output in memory of the
agent.  The engine starts an allreduce when the input is complete, and runs operations that read the output once it is
there.  Both is compiled, ``src/dense/worker_allreduce.h``.
"""
import ctypes
import hashlib
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..kernels.library import memory_view
from ..native.engine import handles_of, push_native
from ..native.storage import lock_pages, unlock_pages
from . import library
from .worker import Lane

#: The types of arrays that the lane sums.
_DTYPES = ('float16', 'float32', 'float64', 'int32', 'int64')
_NO_ARRAYS = handles_of([])


class AllreduceBuffer:
    """The buffers of an allreduce that runs again and again: this worker's `input`, and the `output`, the sum over all.

    Both are flat arrays of MXNet, which are valid until the allreduce is dropped.  If `ends` has the end of the range
    of each worker, as for :meth:`Lane.open_allreduce`, a run may also be a reduce-scatter or an allgather of ranges.
    `quantized` values, of float32, travel between hosts as int8, with error feedback.
    """

    def __init__(self, lane: Lane, number: int, count: int, dtype: np.dtype, ends: Sequence[int] = (),
                 quantized: bool = False):
        self._library = library.load()
        self.number, self.dtype = number, dtype
        #: The compiled buffer, for compiled functions.
        more: Tuple[Any, ...] = (ends, quantized) if ends or quantized else ()
        self.pointer = lane.open_allreduce(number, self._library.dtypes[dtype.name], count, *more)
        self._addresses = self._library.allreduce_input(self.pointer), self._library.allreduce_output(self.pointer)
        #: The same memory as NumPy, for a script that waits for all operations on the arrays before it uses it.
        self.input_view, self.output_view = self._memory(count)
        self.input, self.output = [mx.nd.from_numpy(array, zero_copy=True) for array in self._memory(count)]
        #: Handles of both arrays, for the engine.
        self.handles = handles_of([self.input, self.output])
        self._views: Dict[Tuple[int, ...], Tuple[Any, Any]] = {}
        self._priority: Optional[int] = None
        #: The addresses of memory whose pages are locked; None before the first sum of an array on a GPU.
        self._locked: Optional[List[int]] = None

    def _memory(self, count: int) -> List[np.ndarray]:
        """Return input and output, as arrays that MXNet may make read-only."""
        return [memory_view(address, (count,), self.dtype) for address in self._addresses]

    def lock_pages(self, device: int) -> None:
        """Lock the pages of both arrays, unless that was tried before, for copies to and from GPU number `device`."""
        if self._locked is None:
            size_bytes = self.input.size * self.dtype.itemsize
            self._locked = [address for address in self._addresses if lock_pages(address, size_bytes, device)]

    def unlock_pages(self) -> None:
        """Unlock the pages, before the allreduce is dropped."""
        for address in self._locked or ():
            unlock_pages(address)

    def views(self, shape: Tuple[int, ...]) -> Tuple[Any, Any]:
        """Return `input` and `output` in another shape."""
        if shape not in self._views:
            self._views[shape] = self.input.reshape(shape), self.output.reshape(shape)
        return self._views[shape]

    def is_finite(self) -> bool:
        """Return whether all values of the last sum, of type float16, are finite; wait for that sum."""
        self.output.wait_to_read()
        return bool(self._library.finite_halves(self._addresses[1], self.output.size))

    def carried_error(self) -> Optional[float]:
        """Return the norm of the residuals that this host kept in the last run, relative to the norm of its values.

        None if it has rounded nothing.
        """
        squares = (ctypes.c_double * 2)()
        self._library.allreduce_squares(self.pointer, squares)
        return math.sqrt(squares[1] / squares[0]) if squares[0] else None

    def start(self, priority: int) -> None:
        """Push the allreduce to the engine; it starts when all operations that write `input` are complete."""
        self.set_priority(priority)
        push_native(self._library.allreduce_start, self.pointer, _NO_ARRAYS, self.handles, priority,
                    b'mxhybrid_allreduce')

    def gather(self, priority: int) -> None:
        """Push an allgather to the engine: `output` gets the range of each worker from that worker's `input`.

        It follows a sum or a reduce-scatter, without another allgather between: an agent that owns no range could
        otherwise get results of the second one before the first.
        """
        self.set_priority(priority)
        push_native(self._library.allreduce_gather, self.pointer, _NO_ARRAYS, self.handles, priority,
                    b'mxhybrid_allgather')

    def set_priority(self, priority: int) -> None:
        """Set the priority: of allreduces that are ready together, the highest starts first."""
        if priority != self._priority:
            self._library.allreduce_set_priority(self.pointer, priority)
            self._priority = priority


class LaneAllreduce:
    """Sums of dense arrays by `lane`: of arrays on CPUs, and with `serves_gpus` also of arrays on GPUs, which MXNet
    copies to the host and back.

    Names are unique among the sums under way, and equal on all workers.
    """

    def __init__(self, lane: Lane, serves_gpus: bool):
        self._lane, self._serves_gpus = lane, serves_gpus
        #: The ranks of all workers, in the order of hosts and then of ranks: the order of ranges.
        self.workers_by_host = lane.membership.workers_by_host
        self._buffers: Dict[str, AllreduceBuffer] = {}
        #: The buffers of sums whose values travel as int8, by name.
        self._quantized: Dict[str, AllreduceBuffer] = {}
        #: Counts :meth:`forget`: later sums with the same names are different ones.
        self._generation = 0

    def serves(self, array: Any) -> bool:
        """Return whether the lane sums an array; the result is equal on all workers."""
        return (self._serves_gpus or array.context.device_type == 'cpu') and np.dtype(array.dtype).name in _DTYPES

    def buffer(self, name: str, count: int, dtype: Any, ends: Sequence[int] = (), quantized: bool = False
               ) -> AllreduceBuffer:
        """Return the buffer of a sum.  The first call creates it on all workers and waits for an agent of this host.

        `ends` has the ends of the ranges of workers, in the order of :attr:`workers_by_host`, if they own ranges.
        `quantized` values, of float32, travel between hosts as int8.
        """
        dtype = np.dtype(dtype)
        key = '%s %s %d' % (name, 'int8' if quantized else dtype.name, count)
        buffer = self._buffers.get(key)
        if buffer is None:
            digest = hashlib.blake2b(('%d %s' % (self._generation, key)).encode(), digest_size=8).digest()
            buffer = self._buffers[key] = AllreduceBuffer(self._lane, int.from_bytes(digest, 'little'), count, dtype,
                                                          ends, quantized)
        if quantized:
            self._quantized[name] = buffer
        return buffer

    def carried_error(self, name: str) -> Optional[float]:
        """Return :meth:`AllreduceBuffer.carried_error` of a sum whose values travel as int8, None for others."""
        buffer = self._quantized.get(name)
        return None if buffer is None else buffer.carried_error()

    def allreduce_(self, array: Any, name: str, priority: int, quantized: bool = False) -> None:
        """Push a sum of a dense array over all workers, in place, to the engine."""
        if not array.size:
            return
        buffer = self.buffer(name, array.size, array.dtype, quantized=quantized)
        if array.context.device_type == 'gpu':
            buffer.lock_pages(array.context.device_id)
        source, result = buffer.views(array.shape)
        array.copyto(source)
        buffer.start(priority)
        result.copyto(array)

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        """Drop the sums whose names have these prefixes (on all workers, with no sum under way)."""
        self._generation += 1
        self._quantized = {name: buffer for name, buffer in self._quantized.items() if not name.startswith(prefixes)}
        for key in [key for key in self._buffers if key.startswith(prefixes)]:
            buffer = self._buffers.pop(key)
            buffer.unlock_pages()
            self._lane.drop_allreduce(buffer.number)
