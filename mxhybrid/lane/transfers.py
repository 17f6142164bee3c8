"""Persistent transfers of pieces of arrays between workers, and the channels through which they go, compiled in
``src/dense/worker_transfers.h``.
"""
import os
import time
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..base.errors import JobError
from ..messaging.local_sockets import Connection, Listener, connect
from ..native.engine import handles_of, push_native
from . import library
from .worker import Lane

_NO_ARRAYS = handles_of([])
_VALUE = np.dtype(np.uint64)
#: Bytes of all rings of a channel.  They are address space; only pages that were written take memory.
_RING_BYTES = 1 << 32

#: The position of a piece in an array.
Slices = Sequence[slice]
#: Returns the JSON values of all workers by rank.
Exchange = Callable[[Any], List[Any]]


class Channels:
    """The channels between this worker and all others (collective).

    Workers of a host connect and exchange shared memory.  The agents of two hosts relay the channels between the hosts.
    `exchange` gives every worker the values of all; a worker that does not connect within `timeout` seconds has failed.
    """

    def __init__(self, lane: Lane, exchange: Exchange, timeout: float):
        self._library = library.load()
        self._lane, self.rank, self._timeout = lane, lane.rank, timeout
        domains = lane.membership.memory_domains
        self._others = [rank for rank in range(len(domains)) if rank != lane.rank]
        local_ranks = [rank for rank in self._others if domains[rank] == domains[lane.rank]]
        listener = Listener()
        try:
            self._link_local(local_ranks, listener, exchange(listener.name))
        finally:
            listener.close()
        for rank in self._others:
            if rank not in local_ranks:
                self._open_by_agent(rank)
        exchange(None)  # all workers have opened their channels before any is used

    def _link_local(self, local_ranks: List[int], listener: Listener, names: List[str]) -> None:
        connections = []
        deadline = time.monotonic() + self._timeout
        try:
            for rank in local_ranks:
                if rank < self.rank:
                    connections.append(connect(names[rank]))
                    self._share(rank, connections[-1])
            for rank in local_ranks:
                if rank > self.rank:
                    connections.append(listener.accept(deadline - time.monotonic()))
            for connection in connections:
                self._link(connection)
        finally:
            for connection in connections:
                connection.close()

    def _share(self, rank: int, connection: Connection) -> None:
        """Send another worker the memory that it needs of this one."""
        incoming = self._library.worker_open_channel(self._lane.pointer, rank, 0, _RING_BYTES)
        connection.send(['channel', self.rank], incoming)
        connection.send(['block', self.rank], self._library.worker_block(self._lane.pointer))

    def _link(self, connection: Connection) -> None:
        descriptors: List[int] = []
        try:
            for _ in range(2):
                (_, rank), descriptor = connection.receive(self._timeout)
                if descriptor is None:
                    raise JobError('worker %d sent no descriptor of shared memory to this worker: report this as a '
                                   'bug of mxhybrid' % rank)
                descriptors.append(descriptor)
            if rank > self.rank:
                self._share(rank, connection)
            self._library.worker_link(self._lane.pointer, rank, *descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _open_by_agent(self, rank: int) -> None:
        pointer = self._lane.pointer
        agent = self._library.worker_channel_agent(pointer, self.rank, rank)
        for outgoing, ranks in ((True, (self.rank, rank)), (False, (rank, self.rank))):
            channel = self._library.worker_open_channel(pointer, rank, int(outgoing), _RING_BYTES)
            self._lane.open_channel(agent, outgoing, *ranks, channel)
        self._library.worker_link_by_agents(pointer, rank, agent)

    def transfer(self, tag: int, dtype: Any, source: Optional[Tuple[int, ...]], target: Optional[Tuple[int, ...]],
                 adds: bool) -> 'PersistentTransfer':
        """Create a transfer, see :class:`PersistentTransfer`."""
        return PersistentTransfer(self._lane.pointer, self.rank, tag, dtype, source, target, adds)


class PersistentTransfer:
    """A transfer that runs again and again, as persistent requests of MPI do, from arrays of the shape `source` to
    arrays of the shape `target`.

    The arrays are on the CPU and contiguous; either may be None.  No other transfer has, or had, the same tag.  All
    workers describe the same pieces, and two workers describe the pieces between them in the same order.  With `adds`,
    the target is the sum of all received pieces, added in the order of ranks; otherwise every element is received once.
    """

    def __init__(self, worker: int, rank: int, tag: int, dtype: Any, source: Optional[Tuple[int, ...]],
                 target: Optional[Tuple[int, ...]], adds: bool):
        self._library = library.load()
        self._dtype = np.dtype(dtype)
        # Unsigned integers and booleans are added as signed integers of their size.
        name = self._dtype.name if self._dtype.kind == 'f' else 'int%d' % (8 * self._dtype.itemsize)
        if name not in self._library.dtypes or self._dtype.kind not in 'fiub':
            raise JobError('arrays of dtype %s cannot be sent between workers: use real numbers, integers or booleans' %
                           self._dtype)
        self._source, self._target = self._strides(source), self._strides(target)
        size = 0 if target is None else int(np.prod(target)) * self._dtype.itemsize
        #: A reference to the compiled transfer, for compiled functions.
        self.pointer = self._library.transfer_new(worker, rank, tag, self._library.dtypes[name], int(adds), size)
        weakref.finalize(self, self._library.transfer_close, self.pointer).atexit = False

    def _strides(self, shape: Optional[Tuple[int, ...]]) -> Tuple[int, ...]:
        return () if shape is None else tuple(int(np.prod(shape[axis + 1:], dtype=np.int64)) * self._dtype.itemsize
                                              for axis in range(len(shape)))

    @staticmethod
    def _piece(box: Slices, strides: Tuple[int, ...]) -> Tuple[int, Any, int, Any]:
        """Return dimensions, shape, offset and strides of a piece, for compiled functions."""
        return (len(box), library.counts([part.stop - part.start for part in box]),
                sum(part.start * stride for part, stride in zip(box, strides)), library.counts(strides))

    def send(self, rank: int, box: Slices) -> None:
        """Send a piece of the source to another worker."""
        self._library.transfer_send(self.pointer, rank, *self._piece(box, self._source))

    def receive(self, rank: int, box: Slices) -> None:
        """Receive a piece of the target from another worker."""
        self._library.transfer_receive(self.pointer, rank, *self._piece(box, self._target))

    def copy_local(self, source: Slices, target: Slices) -> None:
        """Copy a piece of the source to a piece of the target."""
        self._library.transfer_copy_local(self.pointer, *self._piece(source, self._source),
                                          *self._piece(target, self._target)[2:])

    def fill(self, box: Slices, value: float) -> None:
        """Fill a piece of the target with a value."""
        raw = np.array([value], self._dtype).tobytes().ljust(_VALUE.itemsize, b'\0')
        self._library.transfer_fill(self.pointer, *self._piece(box, self._target), int(np.frombuffer(raw, _VALUE)[0]))

    def open(self) -> None:
        """Complete the description."""
        self._library.transfer_open(self.pointer)

    @property
    def is_under_way(self) -> bool:
        """True while a run has begun and is not complete."""
        return bool(self._library.transfer_is_under_way(self.pointer))

    def cancel(self) -> None:
        """Complete the runs under way and all later ones at once, with arbitrary values, NaN if they are real numbers.
        """
        self._library.transfer_cancel(self.pointer)

    def start(self, source: Optional[int], target: Optional[int], writes: Any, priority: int = 0) -> None:
        """Push a run of the transfer to the engine, from the address `source` to the address `target`.  It writes the
        arrays `writes`, as :func:`mxhybrid.native.engine.handles_of` returns them.
        """
        run = self._library.transfer_run_new(self.pointer, source, target)
        push_native(self._library.transfer_start, run, _NO_ARRAYS, writes, priority, b'mxhybrid_transfer',
                    self._library.transfer_run_close)
