"""Collective operations by Horovod: sums, broadcasts and gathers, always with names, never on row_sparse arrays.

Another transport may make the sums, :class:`mxhybrid.lane.allreduce.LaneAllreduce`; gathers are then made of sums.
Horovod that was built without NCCL takes the memory of a GPU for memory of the host, so it gets copies on the host in
place of such arrays.

Horovod reads any array as a dense block, so a row_sparse array would corrupt memory.  Two operations with the same name
in flight are an error.  Gathers block.
"""
import atexit
import functools
import json
import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import InputError, JobError
from ..native.arrays import host_view
from ..native.engine import address_of, when_ready
from ..native.forks import fork_guard
from ..telemetry.recorder import OFF, AnyRecorder
from ..watchdog.lifeline import Lifeline

#: Texts are padded to multiples of this size.
_TEXT_BYTES = 512
#: Bytes of an array that are copied at once, between buffers that stay.
_PIECE_BYTES = 1 << 23


class Collective:
    """The collective operations of a job, by an initialised ``horovod.mxnet``."""

    def __init__(self, hvd: Any):
        self._hvd = hvd
        #: Ends Horovod in this process, once workers are connected.
        self.shutdown: Callable[[], None] = _nothing
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self._lifeline: Optional[Lifeline] = None
        self._trace: AnyRecorder = OFF
        #: Whether Horovod gets arrays on GPUs without copies, on all workers.
        self.reaches_gpus = False
        #: The :class:`mxhybrid.lane.allreduce.LaneAllreduce` that sums arrays in place of Horovod, once workers are
        #: connected; None if Horovod sums them.
        self.reduction: Any = None

    def refuse_new_connections(self, launcher: str) -> None:
        """Make calls of the script that connect Horovod's workers once more raise JobError.

        They are for jobs without a rendezvous server: ``hvd.init()`` after ``hvd.shutdown()``, after which this worker
        would be alone, and ``hvd.add_process_set()``, which would wait for ever.
        """
        started, added = self._hvd.init, self._hvd.add_process_set

        @functools.wraps(started)
        def init(*args: Any, **keywords: Any) -> Any:
            if not self._hvd.is_initialized():
                raise JobError('hvd.init() after hvd.shutdown(): %s starts no server at which the workers could meet '
                               'once more, so each of them would be alone: call hvd.shutdown() at the end of the '
                               'script only, or start the job by horovodrun' % launcher)
            return started(*args, **keywords)

        @functools.wraps(added)
        def add_process_set(*args: Any, **keywords: Any) -> Any:
            raise JobError('hvd.add_process_set(): %s starts no server at which the workers of the set could meet: '
                           'start the job by horovodrun, with HOROVOD_DYNAMIC_PROCESS_SETS=1' % launcher)
        self._hvd.init, self._hvd.add_process_set = init, add_process_set

    def announce(self, lifeline: Lifeline, trace: AnyRecorder) -> None:
        """Report blocking calls over `lifeline`, and record operations in `trace`, from now on."""
        self._lifeline, self._trace = lifeline, trace
        self.shutdown = _wait_before_shutdown(self._hvd)

    @property
    def _horovod(self) -> Any:
        """The module ``horovod.mxnet``; JobError if the script has ended Horovod."""
        if not self._hvd.is_initialized():
            raise JobError('the script has called hvd.shutdown(), but this call needs Horovod: call hvd.shutdown() '
                           'after the last step and the last call of the store, or leave it out')
        return self._hvd

    def allreduce_(self, array: Any, name: str, priority: int = 0, quantized: bool = False) -> None:
        """Sum a dense array over all workers in place; returns before the sum is complete.

        `quantized` values of float32 travel between hosts as int8; InputError if Horovod carries them.
        """
        by_lane = self.reduction is not None and self.reduction.serves(array)
        if quantized and not by_lane:
            raise InputError("%s: its sums are to travel as int8, but Horovod carries them: use "
                             "dense_transport='lane', or another wire_dtype for it" % name)
        ends = self._begins('allreduce', array, name, priority)
        if by_lane:
            self.reduction.allreduce_(array, name, priority, quantized)
        else:
            self._reach(array, lambda same: self._horovod.allreduce_(same, op=self._hvd.Sum, name=name,
                                                                     priority=priority))
        ends()

    def _reach(self, array: Any, operate: Callable[[Any], Any]) -> None:
        """Let Horovod operate on an array; if it cannot reach that, on a copy on the host, which overwrites the array.
        """
        is_reached = array.context.device_type == 'cpu' or self.reaches_gpus
        same = array if is_reached else array.as_in_context(mx.cpu())
        with fork_guard:
            operate(same)
            if not is_reached:
                same.copyto(array)

    @property
    def sums_together(self) -> bool:
        """True if several arrays on CPUs can be summed in a bucket; Horovod itself combines arrays."""
        return self.reduction is not None

    def allreduce_bucket(self, bucket: Any, values: Any, name: str, priority: int, scatter: bool = False) -> None:
        """Sum a bucket, whose values will be in `values`; returns before the sum is complete.

        With `scatter` each worker gets the sums of its range only.
        """
        ends = self._begins('reduce-scatter' if scatter else 'allreduce', values, name, priority)
        bucket.start(priority, scatter)
        ends()

    def gather_ranges(self, buffer: Any, name: str, priority: int) -> None:
        """Give all workers each worker's range of ``buffer.input``, in ``buffer.output``; returns before they arrive.
        """
        ends = self._begins('allgather', buffer.input, name, priority)
        buffer.gather(priority)
        ends()

    def broadcast_(self, array: Any, name: str, priority: int = 0) -> None:
        """Overwrite a dense array by worker 0's, in place; waits for operations that write it, not for the result."""
        if array.context.device_type == 'cpu':
            # Convolutions leave weights in layouts of oneDNN, in which Horovod would send them; this restores the
            # layout.
            address_of(array)
        ends = self._begins('broadcast', array, name, priority)
        self._reach(array, lambda same: self._horovod.broadcast_(same, root_rank=0, name=name, priority=priority))
        ends()

    def copy_from_worker_0(self, array: Any, name: str) -> None:
        """Overwrite a dense array by worker 0's (blocks).

        The lane sums worker 0's bytes and zeros, in pieces: each link carries a part at the same time, while Horovod
        sends the whole array from host to host.
        """
        if self.reduction is None or array.context.device_type != 'cpu':
            self.broadcast_(array, name)
        else:
            values = host_view(array).copy() if self.rank == 0 else np.zeros(array.shape, array.dtype)
            content = values.reshape(-1).view(np.uint8)
            for start in range(0, len(content), _PIECE_BYTES):
                content[start:start + _PIECE_BYTES] = self.add_bytes(content[start:start + _PIECE_BYTES], name)
            if self.rank:
                mx.nd.from_numpy(values, zero_copy=True).copyto(array)
        array.wait_to_read()

    def _begins(self, kind: str, array: Any, name: str, priority: int) -> Callable[[], None]:
        """Record the time at which the input of an operation is ready, so that it begins.

        Call the function that is returned after the operation was pushed: it records the time of the result.
        """
        trace: Any = self._trace
        if not trace.enabled:
            return _nothing
        number, label = trace.new_id(), '%s %s' % (kind, name)
        args = {'bytes': int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize}
        when_ready(array, lambda: trace.begin(label, number, kind, args), priority)
        return lambda: when_ready(array, lambda: trace.end(label, number, kind), priority)

    def any(self, flag: bool, name: str) -> bool:
        """Return whether `flag` is true on any worker (blocks)."""
        return self.any_of([flag], name)[0]

    def any_of(self, flags: List[bool], name: str, waiting: str = '') -> List[bool]:
        """Return which of `flags`, equally many on all workers, are true on any worker (blocks).

        `waiting` names the call in messages about workers that wait.
        """
        with self.waiting(waiting or name):
            return (self.start_sum(np.array(flags, np.float32), name)() > 0).tolist()

    def start_sum(self, values: np.ndarray, name: str) -> Callable[[], np.ndarray]:
        """Start to sum a few values over all workers; return a function that waits for the sums.

        The next sum of this name overwrites them.
        """
        if self.reduction is None:
            array = mx.nd.array(values, dtype=values.dtype, ctx=mx.cpu())
            self.allreduce_(array, name)
            return array.asnumpy
        if not len(values):
            return values.copy
        # Without copies by MXNet's engine, which take several times as long as the sum.
        buffer = self.reduction.buffer(name, len(values), values.dtype)
        buffer.output.wait_to_read()  # the last sum of this name has read its input by then
        buffer.input_view[:] = values
        ends = self._begins('allreduce', buffer.input, name, 0)
        buffer.start(0)
        ends()

        def sums() -> np.ndarray:
            buffer.output.wait_to_read()
            return buffer.output_view.copy()
        return sums

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Surround a call that blocks until all workers make it."""
        if self._lifeline is None:
            yield
            return
        with self._lifeline.waiting(name), self._trace.span('all workers: ' + name, 'wait'):
            yield

    def allgather(self, values: np.ndarray, name: str, dtype: Any = np.int32) -> List[np.ndarray]:
        """Return the one-dimensional integer `values` of all workers, in rank order, on every worker (blocks).

        Lengths may differ and be zero.  Values travel as `dtype`, the same on all workers.
        """
        if self.reduction is not None:
            with self.waiting(name):
                return self._allgather_by_sums(values, name, dtype)
        # An empty array cannot be gathered, so every contribution begins with its count.
        framed = np.empty(len(values) + 1, dtype)
        framed[0] = len(values)
        framed[1:] = values
        with self.waiting(name):
            contributions = host_view(self._horovod.allgather(mx.nd.from_numpy(framed), name=name)).astype(np.int64)
        gathered, start = [], 0
        for _ in range(self.size):
            count = int(contributions[start])
            gathered.append(contributions[start + 1:start + 1 + count])
            start += count + 1
        return gathered

    def _allgather_by_sums(self, values: np.ndarray, name: str, dtype: Any) -> List[np.ndarray]:
        """Do as :meth:`allgather`: each worker adds its values, at positions of its own, to zeros."""
        counts = np.zeros(self.size, np.int64)
        counts[self.rank] = len(values)
        ends = np.cumsum(self.start_sum(counts, name + '.counts')())
        contributions = np.zeros(_round_up(int(ends[-1])), dtype)
        contributions[ends[self.rank] - len(values):ends[self.rank]] = values
        if len(contributions):
            contributions = self.start_sum(contributions, name)()
        return np.split(contributions[:ends[-1]].astype(np.int64), ends[:-1])

    def add_bytes(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the sum of arrays of one shape and type, each byte of which is zero on all workers but one (blocks).
        """
        padded = np.zeros(_round_up(-(-values.nbytes // 4)), np.int32)
        padded.view(np.uint8)[:values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        with self.waiting(name):
            summed = self.start_sum(padded, name)()
        return summed.view(np.uint8)[:values.nbytes].view(values.dtype).reshape(values.shape)

    def allgather_json(self, value: Any, name: str) -> List[Any]:
        """Return the JSON `value` of all workers, in rank order, on every worker (blocks)."""
        text = json.dumps(value).encode()
        # Padded to few lengths, since each length that is gathered keeps memory; JSON allows spaces at the end.
        padded = text.ljust(-(-len(text) // _TEXT_BYTES) * _TEXT_BYTES)
        values = np.frombuffer(padded, np.uint8).astype(np.int64)
        return [json.loads(part.astype(np.uint8).tobytes().decode()) for part in self.allgather(values, name)]

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        """Free the memory of operations whose names begin with a prefix (on all workers, with nothing under way)."""
        if self.reduction is not None:
            self.reduction.forget(prefixes)

    def leave_in_child(self) -> None:
        """Keep a forked process from ending Horovod at exit, where it would wait for a thread that it does not have."""
        atexit.unregister(self.shutdown)


def _wait_before_shutdown(hvd: Any) -> Callable[[], None]:
    """Make ``hvd.shutdown()`` wait for operations under way, which would fail; return Horovod's own function."""
    shutdown, pid = hvd.shutdown, os.getpid()

    @functools.wraps(shutdown)
    def wait_and_shut_down() -> None:
        if os.getpid() == pid:
            mx.nd.waitall()
        shutdown()
    hvd.shutdown = wait_and_shut_down
    return shutdown


def _round_up(count: int) -> int:
    """Return one of few lengths that is at least `count`: each length that is summed keeps memory."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


def _nothing() -> None:
    pass
