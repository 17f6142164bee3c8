"""Dense sums that cross each host's link once: in shared memory within a host, over the network between leaders.

Horovod's ring over Gloo knows no hosts: within one, its workers pass the sums to each other over TCP.  Here every
worker of a host writes its values into shared memory, where the leader adds them up in order of rank; leaders sum
among themselves (:mod:`mxhybrid.comm.leader_sums`), and all read the result.  No script waits: the engine starts a
sum when the values are there, and goes on with whatever needs it when the result is.

Who has given how many values of each sum, and how many results there are, are counters in shared memory: a line for
results, one for each worker, a column for each sum.  Whoever has moved one rings the other side.

Messages: the leader tells each follower its line, with a descriptor of the counters.  A follower opens a sum
with ``open`` (key, where its values will be) and is answered ``result`` (key, column, where the result will be).
``segment`` (number, bytes) and ``bell`` come with the descriptor of a piece of memory, or of the sender's bell.
"""
import collections
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import JobError
from ..base.local_sockets import Connection, Left
from ..native.engine import Deferred
from .leader_sums import Mesh, add_up
from .service import Service
from .shared_memory import Bell, Segment

#: Types that are summed here; gradients have no others.
DTYPES = (np.float16, np.float32, np.float64, np.int32, np.int64)

#: Sums that a job has at most; further ones are left to Horovod.
COLUMNS = 8192

#: Bytes of a segment that holds several arrays.
_SEGMENT_BYTES = 16 << 20

#: Arrays begin at multiples of it, as MXNet's own do.
_ALIGNMENT = 64

#: Seconds after which a worker looks at the counters though nobody rang.
_LOOK_S = 1.0

#: Bytes of a result that is announced at once, not with others that follow.
_LARGE_BYTES = 1 << 20

_COUNTER = np.dtype(np.int64)


class _Arena:
    """Memory that grows by segments; `share` gives each, by its number, descriptor and size, to the other processes."""

    def __init__(self, share: Callable[[int, int, int], None]):
        self._share = share
        self._segments: List[Segment] = []
        self._used = 0
        #: Places that are used no more, by bytes.
        self._spare: Dict[int, List[Tuple[int, int]]] = collections.defaultdict(list)

    def take(self, nbytes: int) -> Tuple[int, int]:
        """Room for an array: number of the segment, offset there."""
        if self._spare[nbytes]:
            return self._spare[nbytes].pop()
        if not self._segments or self._used + nbytes > self._segments[-1].nbytes:
            segment, descriptor = Segment.create(max(nbytes, _SEGMENT_BYTES))
            self._segments.append(segment)
            self._used = 0
            try:
                self._share(len(self._segments) - 1, descriptor, segment.nbytes)
            finally:
                os.close(descriptor)
        offset = self._used
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return len(self._segments) - 1, offset

    def give_back(self, nbytes: int, place: Tuple[int, int]) -> None:
        """Keep room for another array of that size."""
        self._spare[nbytes].append(place)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]


class _HostSum:
    """One sum over the workers of a host, and on to other hosts, that is made again and again."""

    def __init__(self, key: str, shape: Tuple[int, ...], dtype: Any):
        self.key = key
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.column = -1
        self.priority = 0
        #: This worker's values, and the result; as NumPy and as MXNet sees them.
        self.values: Any = None
        self.values_array: Any = None
        self.result: Any = None
        self.result_array: Any = None
        self.arrays: List[Any] = []
        #: What ends the operation that is under way.
        self.complete: Optional[Callable[[], None]] = None
        #: A follower: set once it knows its column and the place of the result.
        self.opened = threading.Event()
        self.where: Tuple[int, int] = (-1, -1)
        #: A follower: the place of its values.
        self.own: Tuple[int, int] = (-1, -1)
        #: The leader: the values of all workers of the host, in order of rank.
        self.sources: List[np.ndarray] = []

    def view(self, segment: Segment, offset: int) -> np.ndarray:
        """The array at a place of a segment."""
        return segment.view(offset, self.shape, self.dtype)

    def install(self, values: np.ndarray, result: np.ndarray) -> None:
        """Settle where values and result are, which may be the same."""
        self.values, self.values_array = values, _on(values)
        self.result, self.result_array = (result, _on(result)) if result is not values else (values, self.values_array)
        self.arrays = [self.values_array] if result is values else [self.values_array, self.result_array]

    def finish(self) -> None:
        """The result is there: go on with what needs it."""
        assert self.complete is not None
        complete, self.complete = self.complete, None
        complete()


class HostReduction(Service):
    """Sums of dense arrays over all workers, by way of the host's leader: what leaders and followers share.

    Takes over its `peers`, a leader's followers by rank or a follower's leader, and calls `on_failure` with an
    exception that ends it; a new sum may take `timeout` seconds to be opened.
    """

    def __init__(self, peers: Dict[int, Connection], on_failure: Callable[[BaseException], None], timeout: float):
        super().__init__('sums', on_failure, _LOOK_S)
        self._peers = peers
        self._timeout = timeout
        self._sums: Dict[str, _HostSum] = {}
        self._arena = _Arena(self._share)
        #: The segments of others, by rank and number.
        self._segments: Dict[Tuple[int, int], Segment] = {}
        #: Those of others, by rank.
        self._bells: Dict[int, Bell] = {}
        self._counters: Any = None
        self._line = 1
        self._fence = threading.Lock()
        self._deferred = Deferred(self._given)
        for rank, connection in peers.items():
            self._listen(connection, rank)
            connection.tell(['bell'], self._bell.descriptor)

    # -- called by this worker -----------------------------------------------------------------------------------

    def serves(self, array: Any) -> bool:
        """Whether a sum goes this way; depends on what is equal on all workers only."""
        return (array.context.device_type == 'cpu' and array.dtype in DTYPES and array.size > 0
                )

    def allreduce_(self, array: Any, name: str, priority: int) -> None:
        """Sum a dense array on the CPU over all workers in place; returns before the sum is there."""
        key = _key(array, name)
        state = self._sums.get(key)
        if state is None:
            state = _HostSum(key, array.shape, array.dtype)
            self._open(state)
            self._sums[key] = state
        state.priority = priority
        array.copyto(state.values_array)
        self._deferred.push(state.arrays, state, priority)
        state.result_array.copyto(array)

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        """Let others have the room of sums with names that begin so (on all workers, with nothing under way).  Their
        counters, equal everywhere, go on.
        """
        for key in [key for key in self._sums if key.startswith(prefixes)]:
            self._free(self._sums.pop(key))

    def close(self) -> None:
        """End the service; nothing may be under way."""
        super().close()
        for bell in self._bells.values():
            bell.close()
        for connection in self._peers.values():
            connection.close()

    def _open(self, state: _HostSum) -> None:
        raise NotImplementedError

    def _free(self, state: _HostSum) -> None:
        raise NotImplementedError

    def _given(self, state: _HostSum, complete: Callable[[], None]) -> None:
        """In an engine thread: this worker's values are in their place."""
        state.complete = complete
        count = self._counters[self._line, state.column] + 1
        self._counters[self._line, state.column] = count
        with self._fence:
            pass
        # Only the last one wakes the leader.  Of several at the same time, each sees the others, or they see it: an
        # uncontended lock is a full memory barrier on x86.  Where it is not, the leader's next look helps.
        if self._counters[1:, state.column].min() >= count:
            self._wake_leader()

    def _wake_leader(self) -> None:
        raise NotImplementedError

    def _take_message(self, rank: int, message: List[Any], descriptor: Optional[int]) -> None:
        raise NotImplementedError

    # -- the service -----------------------------------------------------------------------------------------------

    def _share(self, number: int, descriptor: int, nbytes: int) -> None:
        for connection in self._peers.values():
            connection.tell(['segment', number, nbytes], descriptor)

    def _hear(self, rank: int, connection: Any, ready: int) -> None:
        try:
            message, descriptor = connection.receive()
        except Left:
            self._selector.unregister(connection)  # its death is the job monitor's business
            return
        if message[0] == 'bell' and descriptor is not None:
            self._bells[rank] = Bell.of_other(descriptor)
        elif message[0] == 'segment' and descriptor is not None:
            self._segments[rank, message[1]] = Segment(descriptor, message[2])
        else:
            self._take_message(rank, message, descriptor)


class LeaderReduction(HostReduction):
    """The leader of a host, with a mesh that connects it to the others, None where there is one host."""

    def __init__(self, peers: Dict[int, Connection], on_failure: Callable[[BaseException], None], timeout: float,
                 mesh: Optional[Mesh]):
        super().__init__(peers, on_failure, timeout)
        self._mesh = mesh
        self._lock = threading.Lock()
        #: Whether there are results of which the followers do not know; for the thread that publishes them.
        self._unannounced = False
        #: By key: column, where the result is, and where each follower's values are.
        self._columns: Dict[str, int] = {}
        self._places: Dict[str, Tuple[int, int]] = {}
        self._offers: Dict[str, Dict[int, Tuple[int, int]]] = collections.defaultdict(dict)
        self._by_column: Dict[int, _HostSum] = {}
        #: Columns that were ever used, and those that are used no more.
        self._known = 0
        self._spare: List[int] = []
        #: How often each sum was begun.
        self._begun = np.zeros(COLUMNS, _COUNTER)
        lines = len(peers) + 2
        segment, descriptor = Segment.create(lines * COLUMNS * _COUNTER.itemsize)
        self._counters = segment.view(0, (lines, COLUMNS), _COUNTER)
        try:
            for line, rank in enumerate(sorted(peers)):
                peers[rank].tell(['counters', line + 2, lines, segment.nbytes], descriptor)
        finally:
            os.close(descriptor)
        if mesh is not None:
            mesh.after_results(self._announce)
        self._thread.start()

    def close(self) -> None:
        super().close()
        if self._mesh is not None:
            self._mesh.close()

    def _open(self, state: _HostSum) -> None:
        state.column, (number, offset) = self._place(state.key, state.nbytes)
        result = state.view(self._arena[number], offset)
        state.install(np.empty(state.shape, state.dtype) if self._peers else result, result)
        self._by_column[state.column] = state

    def _place(self, key: str, nbytes: int) -> Tuple[int, Tuple[int, int]]:
        """Column and place of the result, settled by whoever opens the sum first."""
        with self._lock:
            if key not in self._columns:
                self._places[key] = self._arena.take(nbytes)
                if not self._spare:
                    self._spare.append(self._known)
                    self._known += 1
                self._columns[key] = self._spare.pop()
            return self._columns[key], self._places[key]

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        super().forget(prefixes)
        if self._mesh is not None:
            self._mesh.forget(prefixes)

    def _free(self, state: _HostSum) -> None:
        with self._lock:
            self._arena.give_back(state.nbytes, self._places.pop(state.key))
            self._spare.append(self._columns.pop(state.key))
            del self._by_column[state.column]

    def _wake_leader(self) -> None:
        self._bell.ring()

    def _take_message(self, rank: int, message: List[Any], descriptor: Optional[int]) -> None:
        _, key, number, offset, nbytes = message
        self._offers[key][rank] = (number, offset)
        column, place = self._place(key, nbytes)
        self._peers[rank].tell(['result', key, column, place])

    def _advance(self) -> None:
        known = self._known
        given = self._counters[1:, :known].min(axis=0)
        ready = [self._by_column[column] for column in np.flatnonzero(given > self._begun[:known])]
        for state in sorted(ready, key=lambda state: -state.priority):
            self._begun[state.column] += 1
            self._add_up(state)
        if self._mesh is None:
            self._announce()

    def _add_up(self, state: _HostSum) -> None:
        if not state.sources:
            offers = self._offers.pop(state.key, {})
            views = [state.values] + [state.view(self._segments[rank, number], offset)
                                      for rank, (number, offset) in sorted(offers.items())]
            state.sources = [view.reshape(-1) for view in views]
        result = state.result.reshape(-1)
        if self._peers:
            add_up(state.sources, result)
        if self._mesh is None:
            self._publish(state)
        else:
            self._mesh.allreduce_(state.key, result, lambda: self._publish(state))

    def _publish(self, state: _HostSum) -> None:
        """The result is there, for all workers of the host."""
        self._counters[0, state.column] += 1
        self._unannounced = True
        if state.nbytes >= _LARGE_BYTES:
            self._announce()
        state.finish()

    def _announce(self) -> None:
        """Have the followers look at the results."""
        if self._unannounced:
            self._unannounced = False
            for bell in self._bells.values():
                bell.ring()


class FollowerReduction(HostReduction):
    """A worker whose host has another one as leader; parameters as above."""

    def __init__(self, peers: Dict[int, Connection], on_failure: Callable[[BaseException], None], timeout: float):
        super().__init__(peers, on_failure, timeout)
        (self._leader, self._connection), = peers.items()
        self._by_column: Dict[int, _HostSum] = {}
        self._opening: Dict[str, _HostSum] = {}
        #: How many results of each sum were seen.
        self._known = 0
        self._seen = np.zeros(COLUMNS, _COUNTER)
        self._thread.start()

    def _open(self, state: _HostSum) -> None:
        number, offset = state.own = self._arena.take(state.nbytes)
        self._opening[state.key] = state
        self._connection.tell(['open', state.key, number, offset, state.nbytes])
        if not state.opened.wait(self._timeout):
            raise JobError('the leader of this host, worker %d, did not answer within %g s' % (self._leader,
                                                                                              self._timeout))
        place, where = state.where
        state.install(state.view(self._arena[number], offset), state.view(self._segments[self._leader, place], where))
        self._by_column[state.column] = state

    def _free(self, state: _HostSum) -> None:
        self._arena.give_back(state.nbytes, state.own)
        del self._by_column[state.column]

    def _wake_leader(self) -> None:
        self._bells[self._leader].ring()

    def _take_message(self, rank: int, message: List[Any], descriptor: Optional[int]) -> None:
        if message[0] == 'counters' and descriptor is not None:
            _, self._line, lines, nbytes = message
            self._counters = Segment(descriptor, nbytes).view(0, (lines, COLUMNS), _COUNTER)
        elif message[0] == 'result':
            _, key, column, where = message
            state = self._opening.pop(key)
            state.column, state.where = column, (where[0], where[1])
            self._known = max(self._known, column + 1)
            state.opened.set()

    def _advance(self) -> None:
        if self._counters is None:
            return
        known = self._known
        for column in np.flatnonzero(self._counters[0, :known] > self._seen[:known]):
            self._seen[column] += 1
            self._by_column[column].finish()


def _key(array: Any, name: str) -> str:
    return '%s %s %s' % (name, np.dtype(array.dtype).name, 'x'.join(map(str, array.shape)))


def _on(view: np.ndarray) -> Any:
    """An array of MXNet's on the memory of a NumPy one."""
    return mx.nd.from_numpy(view.view(), zero_copy=True)
