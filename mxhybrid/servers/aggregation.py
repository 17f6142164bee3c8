"""Local aggregation: one worker of a host, the leader, talks to the servers for all of them (Parallax, section 4.3).

The workers of a host write their gradients into shared memory; the leader sums them and pushes the union of their
rows once.  Likewise the leader pulls each row that any of them wants once a step and puts it where all can read
it.  Nothing waits for all workers in a pull: rows that come later join those already there.

A :class:`Direct` link serves a worker that is alone on its host, or all of them without aggregation.  Under
``launch.py`` every worker is a client of the servers, which wait for all their clients; there the followers
push empties.

Messages of a follower: ``push`` (table, rows, priority), ``pull`` (table, number of pushes to be in it and in its
family, ticket, rows, priority) and ``segment`` (purpose, table, bytes).  Those of the leader: ``merged`` (table),
``rows`` (table, ticket) and ``segment``.
"""
import collections
import os
import threading
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..base.errors import JobError
from ..base.local_sockets import Connection, Left
from ..comm.service import Service
from ..comm.shared_memory import Segment
from .client import Arrival, Client

_OFFSET = np.dtype(np.int64)
_SLOT = np.dtype(np.int32)

#: Times as many rows as in the step before after which the leader gives the memory back: a whole table, say.
_UNUSUAL = 4


class Direct:
    """A worker's own way to the servers; one without a `client` has nothing to push or pull."""

    def __init__(self, client: Optional[Client]):
        self._client: Any = client

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        """Push rows (collective); returns before the servers answer."""
        order = table.partitioning.order(ids)
        offsets = table.partitioning.offsets(ids[order])
        self._client.push(table, [(offsets, rows, order)], priority)

    def request(self, table: Any, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        """Ask for rows; the function returned waits for them and writes them to an array."""
        order = table.partitioning.order(ids)
        arrival = self._client.pull(table, table.partitioning.offsets(ids[order]), priority)
        return lambda result: arrival.write(result, order)

    def settle(self) -> None:
        """Wait until the servers have answered all pushes of this worker."""
        mx.nd.waitall()

    def forget(self, table: Any) -> None:
        """A table is gone: nothing is kept for it."""

    def close(self) -> None:
        """Make no more calls."""


class Follower:
    """The way to the servers of a worker whose host has another one as leader, which `connection` leads to.

    Its `client` is None unless the servers wait for this worker too; `on_loss` is called when the leader is gone,
    before the error of that is raised.
    """

    def __init__(self, connection: Connection, client: Optional[Client], on_loss: Callable[[], None]):
        self._connection = connection
        self._client = client
        self._on_loss = on_loss
        self._segments: Dict[Tuple[str, int], Segment] = {}
        self._caches: Dict[int, Segment] = {}
        self._unmerged: set = set()
        self._arrived: set = set()
        self._asking: set = set()
        #: Why nothing is heard of the leader any more.
        self._lost: Optional[BaseException] = None
        self._heard = threading.Condition()
        # Wherever the script is: the leader waits while too much is unread.
        self._thread = threading.Thread(target=self._listen, name='mxhybrid-follower', daemon=True)
        self._thread.start()

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        """Push rows (collective); returns before they are merged."""
        self._wait_until(lambda: table.index not in self._unmerged)
        partitioning, count = table.partitioning, len(ids)
        memory = self._segment('push', table.index, count * (_OFFSET.itemsize + partitioning.width
                                                             * table.dtype.itemsize))
        order = partitioning.order(ids)
        offsets, pushed = push_views(memory, count, partitioning.width, table.dtype)
        offsets[:] = partitioning.offsets(ids[order])
        if rows.dtype == pushed.dtype:
            np.take(rows, order, axis=0, out=pushed, mode='clip')
        else:
            pushed[:] = rows[order]
        self._unmerged.add(table.index)
        self._send(['push', table.index, count, priority])
        if self._client is not None:
            empty = np.empty(0, np.int64)
            self._client.push(table, [(empty, rows[:0], None)], priority, pulls=False)

    def request(self, table: Any, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        """Ask for rows; the function returned waits for them and writes them to an array."""
        ticket = 0
        while (table.index, ticket) in self._asking:
            ticket += 1
        question = (table.index, ticket)
        memory = self._segment('pull%d' % ticket, table.index, len(ids) * (_OFFSET.itemsize + _SLOT.itemsize))
        offsets, slots = pull_views(memory, len(ids))
        offsets[:] = table.partitioning.offsets(ids)
        self._asking.add(question)
        self._send(['pull', table.index, _pushes(table), ticket, len(ids), priority])

        def write(result: np.ndarray) -> None:
            self._wait_until(lambda: question in self._arrived)
            read_cache(self._caches[table.index], slots, result)
            self._arrived.discard(question)
            self._asking.discard(question)
        return write

    def settle(self) -> None:
        """Wait until the leader has taken all pushes of this worker."""
        self._wait_until(lambda: not self._unmerged)
        if self._client is not None:
            mx.nd.waitall()

    def forget(self, table: Any) -> None:
        """A table is gone (on all workers, with nothing under way)."""
        self._caches.pop(table.index, None)
        for purpose, index in list(self._segments):
            if index == table.index:
                del self._segments[purpose, index]

    def close(self) -> None:
        """Leave the host's aggregation."""
        self._connection.hang_up()
        self._thread.join()
        self._connection.close()

    def _segment(self, purpose: str, table: int, nbytes: int) -> Segment:
        memory = self._segments.get((purpose, table))
        if memory is None or memory.nbytes < nbytes:
            memory, descriptor = Segment.create(nbytes)
            self._segments[purpose, table] = memory
            try:
                self._send(['segment', purpose, table, memory.nbytes], descriptor)
            finally:
                os.close(descriptor)
        return memory

    def _send(self, message: List[Any], descriptor: Optional[int] = None) -> None:
        try:
            self._connection.send(message, descriptor)
        except OSError as error:
            self._on_loss()
            raise JobError('the leader of this host has left its local aggregation') from error

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until the leader has said what makes `done` true."""
        with self._heard:
            self._heard.wait_for(lambda: done() or self._lost is not None)
            if done():
                return
        self._on_loss()
        assert self._lost is not None
        raise self._lost

    def _listen(self) -> None:
        try:
            while True:
                message, descriptor = self._connection.receive()
                with self._heard:
                    self._take(message, descriptor)
                    self._heard.notify_all()
        except BaseException as error:
            with self._heard:
                self._lost = error
                self._heard.notify_all()

    def _take(self, message: List[Any], descriptor: Optional[int]) -> None:
        if message[0] == 'merged':
            self._unmerged.discard(message[1])
        elif message[0] == 'rows':
            self._arrived.add((message[1], message[2]))
        elif message[0] == 'segment' and descriptor is not None:
            self._caches[message[1]] = Segment(descriptor, message[2])


def _pushes(table: Any) -> int:
    """Pushes of this worker that the rows of a table must show; when they do, no merge is left to move the rows."""
    return sum(each.pushes for each in table.family)


def push_views(memory: Segment, count: int, width: int, dtype: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Offsets and rows of a push in a segment."""
    return (memory.view(0, (count,), _OFFSET), memory.view(count * _OFFSET.itemsize, (count, width), dtype))


def pull_views(memory: Segment, count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Wanted offsets of a pull in a segment, and the slots of the cache in which the leader answers."""
    return memory.view(0, (count,), _OFFSET), memory.view(count * _OFFSET.itemsize, (count,), _SLOT)


def read_cache(cache: Segment, slots: np.ndarray, result: np.ndarray) -> None:
    """Write rows of a cache to `result`, an array of the cache's dtype."""
    if result.size:
        rows = cache.view(0, (cache.nbytes // result[0].nbytes, result.shape[1]), result.dtype)
        np.take(rows, slots, axis=0, out=result, mode='clip')


class _Shared:
    """What the leader knows of one table."""

    def __init__(self, index: int):
        self.index = index
        self.table: Any = None
        #: What the offsets of rows in the cache refer to.
        self.partitioning: Any = None
        #: By local rank: offsets, rows, order; and the priority of the push.
        self.contributions: Dict[int, Tuple[tuple, int]] = {}
        self.questions: List['_Question'] = []
        self.cache: Optional[Segment] = None
        #: Slot + 1 of each offset that the cache holds or awaits, 0 where it does not.
        self.slots = np.zeros(0, _SLOT)
        self.held: List[np.ndarray] = []
        self.used = 0
        self.used_before = 0

    def forget_rows(self) -> None:
        """Empty the cache: the rows have changed, all workers have what they asked for."""
        for offsets in self.held:
            self.slots[offsets] = 0
        if self.cache is not None and self.used > _UNUSUAL * self.used_before:
            self.cache.give_back()
        self.used_before = self.used or self.used_before
        self.held, self.used = [], 0


class _Question:
    """A worker's wish for rows."""

    def __init__(self, pushes: int, offsets: np.ndarray, priority: int, answer: Callable[[np.ndarray], None]):
        self.pushes = pushes
        self.offsets = offsets
        self.priority = priority
        self.answer = answer
        self.slots: Any = None


class Leader(Service):
    """The link of the worker that talks to the servers for its host; its threads serve the others.

    Takes the followers' connections by rank; sums run in order of rank, this worker's part first.  Calls `on_failure`
    with an exception that ends it.
    """

    def __init__(self, client: Client, followers: Dict[int, Connection], on_failure: Callable[[BaseException], None]):
        super().__init__('merge', on_failure, patient=True)
        self._client = client
        self._followers = followers
        self._shared: Dict[int, _Shared] = {}
        self._segments: Dict[Tuple[int, str, int], Segment] = {}
        self._inbox: Deque[Tuple[Any, ...]] = collections.deque()
        self._tables: Dict[int, Any] = {}
        #: Pushes merged by table, under the condition.
        self._merged: Dict[int, int] = collections.defaultdict(int)
        self._progress = threading.Condition()
        self._arrivals: Deque[Optional[tuple]] = collections.deque()
        self._some_arrival = threading.Semaphore(0)
        for rank, connection in followers.items():
            self._listen(connection, rank)
        self._completing = self._new_thread('arrivals', self._complete)
        self._thread.start()
        self._completing.start()

    # -- called by this worker -----------------------------------------------------------------------------------

    def push(self, table: Any, ids: np.ndarray, rows: np.ndarray, priority: int) -> None:
        """Push rows (collective); returns before they are merged."""
        order = table.partitioning.order(ids)
        self._tables[table.index] = table
        self._wait_for_merges({table.index: table.pushes - 1})
        # A copy: the caller may overwrite its rows while others of the host are still under way with theirs.
        part = (table.partitioning.offsets(ids[order]), rows[order].astype(table.dtype, copy=False), None)
        self._post('push', table, part, priority)

    def request(self, table: Any, ids: np.ndarray, priority: int) -> Callable[[np.ndarray], None]:
        """Ask for rows; the function returned waits for them and writes them to an array."""
        arrived = threading.Event()
        question = _Question(_pushes(table), table.partitioning.offsets(ids), priority, lambda _: arrived.set())
        self._post('pull', table, question)

        def write(result: np.ndarray) -> None:
            arrived.wait()
            read_cache(self._state(table.index).cache, question.slots, result)  # type: ignore[arg-type]
        return write

    def settle(self) -> None:
        """Wait until all workers of the host have made the pushes that this one made, and the servers answered."""
        self._wait_for_merges({index: table.pushes for index, table in self._tables.items()})
        mx.nd.waitall()

    def _wait_for_merges(self, pushes: Dict[int, int]) -> None:
        with self._progress:
            self._progress.wait_for(lambda: all(self._merged[index] >= count for index, count in pushes.items()))

    def forget(self, table: Any) -> None:
        """A table is gone (on all workers, with nothing under way)."""
        known: Any
        for known in (self._tables, self._shared, self._merged):
            known.pop(table.index, None)
        for rank, purpose, index in list(self._segments):
            if index == table.index:
                del self._segments[rank, purpose, index]

    def close(self) -> None:
        """End the service; nothing may be under way."""
        super().close()
        self._arrivals.append(None)
        self._some_arrival.release()
        self._completing.join()
        for connection in self._followers.values():
            connection.close()

    def _post(self, *item: Any) -> None:
        self._inbox.append(item)
        self._bell.ring()

    # -- the service -----------------------------------------------------------------------------------------------

    def _state(self, index: int) -> _Shared:
        state = self._shared.get(index)
        if state is None:
            state = self._shared.setdefault(index, _Shared(index))
        return state

    def _take_own(self, kind: str, table: Any, what: Any, priority: int = 0) -> None:
        state = self._state(table.index)
        if kind == 'push':
            state.table = table
            state.contributions[-1] = (what, priority)
        else:
            state.questions.append(what)

    def _hear(self, rank: int, connection: Any, ready: int) -> None:
        try:
            message, descriptor = connection.receive()
        except Left:
            self._selector.unregister(connection)  # its death is the job monitor's business
            return
        kind = message[0]
        if kind == 'segment' and descriptor is not None:
            _, purpose, index, nbytes = message
            self._segments[rank, purpose, index] = Segment(descriptor, nbytes)
        elif kind == 'push':
            _, index, count, priority = message
            self._state(index).contributions[rank] = ((self._segments[rank, 'push', index], count), priority)
        elif kind == 'pull':
            _, index, pushes, ticket, count, priority = message
            offsets, slots = pull_views(self._segments[rank, 'pull%d' % ticket, index], count)

            def answer(found: np.ndarray) -> None:
                slots[:] = found
                connection.tell(['rows', index, ticket])
            self._state(index).questions.append(_Question(pushes, offsets, priority, answer))

    def _advance(self) -> None:
        while self._inbox:
            self._take_own(*self._inbox.popleft())
        ready = [state for state in list(self._shared.values()) if len(state.contributions) > len(self._followers)]
        for state in sorted(ready, key=lambda state: -state.contributions[-1][1]):
            self._merge(state)
        asked = [state for state in list(self._shared.values())
                 if any(question.pushes <= self._merged_into(state) for question in state.questions)]
        for state in sorted(asked, key=lambda state: -max(question.priority for question in state.questions)):
            self._pull(state)

    def _merge(self, state: _Shared) -> None:
        table = state.table
        parts = []
        _, priority = state.contributions[-1]
        for rank in sorted(state.contributions):
            part, _ = state.contributions[rank]
            if rank >= 0:
                memory, count = part
                part = push_views(memory, count, table.partitioning.width, table.dtype) + (None,)
            parts.append(part)
        self._client.push(table, [part for part in parts if len(part[0])] or parts[:1], priority)
        state.contributions = {}
        for changed in table.family:
            self._state(changed.index).forget_rows()
        with self._progress:
            self._merged[state.index] += 1
            self._progress.notify_all()
        for connection in self._followers.values():
            connection.tell(['merged', state.index])

    def _merged_into(self, state: _Shared) -> int:
        """How many pushes the rows of a table show."""
        return 0 if state.table is None else sum(self._merged[each.index] for each in state.table.family)

    def _pull(self, state: _Shared) -> None:
        merged = self._merged_into(state)
        now = [question for question in state.questions if question.pushes <= merged]
        state.questions = [question for question in state.questions if question.pushes > merged]
        table = state.table
        if state.partitioning is not table.partitioning:
            state.forget_rows()
            state.partitioning = table.partitioning
            state.slots = np.zeros(table.partitioning.count * table.partitioning.stride, _SLOT)
        missing = []
        for question in now:
            new = question.offsets[state.slots[question.offsets] == 0]
            state.slots[new] = 1
            missing.append(new)
        offsets = np.sort(np.concatenate(missing))
        first = state.used
        state.used += len(offsets)
        state.slots[offsets] = np.arange(first + 1, state.used + 1, dtype=_SLOT)
        state.held.append(offsets)
        for question in now:
            question.slots = state.slots[question.offsets] - 1
        arrival = self._client.pull(table, offsets, max(question.priority for question in now))
        self._arrivals.append((state, table, first, state.used, arrival, now))
        self._some_arrival.release()

    def _complete(self) -> None:
        """Put rows into the caches as they arrive, and answer."""
        while True:
            self._some_arrival.acquire()
            item = self._arrivals.popleft()
            if item is None:
                return
            self._arrive(*item)

    def _arrive(self, state: _Shared, table: Any, first: int, stop: int, arrival: Arrival,
                questions: List[_Question]) -> None:
        width, dtype = table.partitioning.width, table.dtype
        row_bytes = width * dtype.itemsize
        if state.cache is None or state.cache.nbytes < stop * row_bytes:
            larger, descriptor = Segment.create(stop * row_bytes)
            if state.cache is not None:
                larger.view(0, (first, width), dtype)[:] = state.cache.view(0, (first, width), dtype)
            # Not before it holds the rows: this worker may be reading.
            state.cache = larger
            try:
                for connection in self._followers.values():
                    connection.tell(['segment', state.index, larger.nbytes], descriptor)
            finally:
                os.close(descriptor)
        arrival.write(state.cache.view(first * row_bytes, (stop - first, width), dtype))
        for question in questions:
            question.answer(question.slots)
