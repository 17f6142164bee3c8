"""Sums of dense arrays over the leaders of all hosts, each connected with every other.

Each array is cut into as many chunks as there are hosts, small ones are one chunk.  A leader sends each chunk to the
leader that owns it (``PART``); that one adds the parts up, always in the same order, and sends the sum to all
(``RESULT``).  So an array crosses a host's link as often as in a ring, 2(H-1)/H times each way, in two hops; nobody
has to agree with the others on an order of arrays, and each sum begins and ends by itself.

Horovod's sums over some of the workers are no help here: its process sets, unless known to ``hvd.init``, make all
workers of the job gather numbers in each of its cycles, a thousand times a second
(``InitializeRegisteredAndRemoveMarkedIfReady_`` of ``horovod/common/process_set.cc``).

On the wire, each message is a header (kind, number of the array, bytes) and its payload.  A number means what the
``NAME`` message of the same sender said.
"""
import collections
import itertools
import os
import selectors
import socket
import struct
import zlib
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import numpy as np

from ..base.errors import JobError
from .service import Service

#: Arrays of fewer bytes are one chunk: a message costs more than the bytes that it saves.
WHOLE_BYTES = 32 << 10

#: Elements that are added at once, so that they stay in the processor's cache.
BLOCK = 1 << 15

#: Buffers handed to the system at once, and reads from one connection before others have their turn.
_BUFFERS, _READS = 64, 16

_HEADER = struct.Struct('<IIQ')
_NAME, _PART, _RESULT = 1, 2, 3


def add_up(sources: List[np.ndarray], result: np.ndarray) -> None:
    """Write the sum of one-dimensional arrays, in their order, to `result`, which may be the first one; float16 is
    added in float32 and rounded once, to infinity beyond its range.
    """
    if result.dtype == np.float16:
        with np.errstate(over='ignore', invalid='ignore'):
            for start in range(0, len(result), BLOCK):
                block = slice(start, start + BLOCK)
                total = sources[0][block].astype(np.float32)
                for source in sources[1:]:
                    total += source[block]
                result[block] = total
        return
    if len(sources) > 1 and len(result) <= BLOCK:  # the usual case, without cutting
        total = sources[0]
        for source in sources[1:]:
            total = np.add(total, source, out=result)
        return
    for start in range(0, len(result), BLOCK):
        block = slice(start, start + BLOCK)
        total = sources[0][block]
        for source in sources[1:]:
            total = np.add(total, source[block], out=result[block])
        if len(sources) == 1:
            result[block] = total


def cut(name: str, size: int, itemsize: int, places: int) -> List[slice]:
    """Which elements each place owns."""
    if size * itemsize < WHOLE_BYTES:
        owner = zlib.crc32(name.encode()) % places
        return [slice(0, size if place == owner else 0) for place in range(places)]
    return [slice(size * place // places, size * (place + 1) // places) for place in range(places)]


class _Exchange:
    """One sum over leaders that is made again and again."""

    def __init__(self, name: str, number: int):
        self.name = name
        self.number = number
        #: While it is under way: the array, and what to call at the end.
        self.values: Optional[np.ndarray] = None
        self.done: Optional[Callable[[], None]] = None
        self.chunks: List[slice] = []
        #: Messages to be sent or to come, and the own chunk to be added up, before the sum is done.
        self.pending = 0
        self.added = False
        #: What came of the own chunk, for this round or, once that is added up, for the next one.
        self.parts: Dict[int, np.ndarray] = {}
        self.buffers: Dict[int, np.ndarray] = {}

    def chunk(self, place: int) -> np.ndarray:
        """What a place owns."""
        assert self.values is not None
        return self.values[self.chunks[place]]

    def buffer(self, place: int, nbytes: int) -> np.ndarray:
        """Memory for a part from a place."""
        found = self.buffers.get(place)
        if found is None or found.nbytes != nbytes:
            found = self.buffers[place] = np.empty(nbytes, np.uint8)
        return found


class _OtherPlace:
    """The connection with another place."""

    def __init__(self, place: int, sock: socket.socket):
        self.place = place
        self.sock = sock
        self.outgoing: Deque[Tuple[memoryview, Optional[_Exchange]]] = collections.deque()
        self.writing = False
        self.lost = False
        self.sums: Dict[int, _Exchange] = {}
        self.announced: set = set()
        self.expect(None, 0, memoryview(bytearray(_HEADER.size)))

    def expect(self, kind: Optional[int], number: int, target: memoryview) -> None:
        """What comes next: a header, or the payload of a message."""
        self.kind, self.number, self.target, self.got = kind, number, target, 0


class Mesh(Service):
    """Sums over places, numbered from 0, one process each.  Takes over the sockets that connect it with all others, by
    place, and calls `on_failure` with an exception that ends it.
    """

    def __init__(self, place: int, sockets: Dict[int, socket.socket], on_failure: Callable[[BaseException], None]):
        super().__init__('leaders', on_failure)
        self._place = place
        self._places = len(sockets) + 1
        self._sums: Dict[str, _Exchange] = {}
        self._numbers = itertools.count()
        self._peers = {other: _OtherPlace(other, sock) for other, sock in sockets.items()}
        self._inbox: Deque[Tuple[str, np.ndarray, Callable[[], None]]] = collections.deque()
        self._after_results: Callable[[], None] = _nothing
        for peer in self._peers.values():
            peer.sock.setblocking(False)
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._listen(peer.sock, peer)
        os.register_at_fork(after_in_child=self._close_sockets)
        self._thread.start()

    def after_results(self, act: Callable[[], None]) -> None:
        """Have the service's thread call `act` once it has made the calls `done` that it can make for now."""
        self._after_results = act

    def allreduce_(self, name: str, values: np.ndarray, done: Callable[[], None]) -> None:
        """Sum a one-dimensional array over all places in place; nobody else may touch it until `done` is called.

        The name is the same everywhere and never twice under way; equal names have equal types and lengths.  `done` is
        called from the service's thread: it must be short.
        """
        self._inbox.append((name, values, done))
        self._bell.ring()

    def forget(self, prefixes: Tuple[str, ...]) -> None:
        """Keep nothing of sums with names that begin so (in all places, with nothing under way)."""
        for name in [name for name in self._sums if name.startswith(prefixes)]:
            del self._sums[name]
        for peer in self._peers.values():
            for number, state in list(peer.sums.items()):
                if state.name.startswith(prefixes):
                    del peer.sums[number]

    def close(self) -> None:
        """End the service; nothing may be under way."""
        super().close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for peer in self._peers.values():
            peer.sock.close()

    # -- the service -----------------------------------------------------------------------------------------------

    def _hear(self, peer: _OtherPlace, _: Any, ready: int) -> None:
        if ready & selectors.EVENT_READ:
            self._read(peer)

    def _advance(self) -> None:
        while self._inbox:
            self._begin(*self._inbox.popleft())
        for peer in self._peers.values():
            if (peer.outgoing or peer.writing) and not peer.lost:
                self._write(peer)
        self._after_results()

    def _state(self, name: str) -> _Exchange:
        state = self._sums.get(name)
        if state is None:
            state = self._sums[name] = _Exchange(name, next(self._numbers))
        return state

    def _begin(self, name: str, values: np.ndarray, done: Callable[[], None]) -> None:
        state = self._state(name)
        if len(state.chunks) == 0:
            state.chunks = cut(name, len(values), values.itemsize, self._places)
        state.values, state.done, state.added = values, done, False
        state.pending = 1
        for place, peer in self._peers.items():
            chunk = state.chunk(place)
            if len(chunk):
                state.pending += 1  # its result
                self._send(peer, _PART, state, chunk)
        if len(state.chunk(self._place)):
            self._add(state)
        self._release(state)

    def _add(self, state: _Exchange) -> None:
        """Add up the own chunk, once all parts are there."""
        if state.values is None or state.added or len(state.parts) < len(self._peers):
            return
        mine = state.chunk(self._place)
        for place, part in state.parts.items():
            if part.nbytes != mine.nbytes:
                raise JobError('%s has %d bytes on host %d and %d on host %d: build the same model on every worker'
                               % (state.name, mine.nbytes, self._place, part.nbytes, place))
        add_up([mine] + [state.parts[place].view(mine.dtype) for place in sorted(state.parts)], mine)
        state.parts.clear()
        state.added = True
        for peer in self._peers.values():
            self._send(peer, _RESULT, state, mine)

    def _release(self, state: _Exchange) -> None:
        state.pending -= 1
        if not state.pending and (state.added or not len(state.chunk(self._place))):
            done, state.done, state.values = state.done, None, None
            assert done is not None
            done()

    # -- messages --------------------------------------------------------------------------------------------------

    def _send(self, peer: _OtherPlace, kind: int, state: _Exchange, values: np.ndarray) -> None:
        if state.number not in peer.announced:
            peer.announced.add(state.number)
            name = state.name.encode()
            peer.outgoing.append((memoryview(_HEADER.pack(_NAME, state.number, len(name)) + name), None))
        state.pending += 1
        peer.outgoing.append((memoryview(_HEADER.pack(kind, state.number, values.nbytes)), None))
        peer.outgoing.append((values.view(np.uint8).data, state))

    def _write(self, peer: _OtherPlace) -> None:
        while peer.outgoing:
            try:
                sent = peer.sock.sendmsg([view for view, _ in itertools.islice(peer.outgoing, _BUFFERS)])
            except BlockingIOError:
                break
            except OSError:
                self._lost(peer)
                return
            while sent:
                view, state = peer.outgoing[0]
                if sent < len(view):
                    peer.outgoing[0] = (view[sent:], state)
                    break
                sent -= len(view)
                peer.outgoing.popleft()
                if state is not None:
                    self._release(state)
        if bool(peer.outgoing) != peer.writing:
            peer.writing = bool(peer.outgoing)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.writing else 0)
            self._selector.modify(peer.sock, events, peer)

    def _lost(self, peer: _OtherPlace) -> None:
        """A leader has left, or died, which the job monitor notices."""
        peer.lost = True
        self._selector.unregister(peer.sock)

    def _read(self, peer: _OtherPlace) -> None:
        for _ in range(_READS):
            try:
                count = peer.sock.recv_into(peer.target[peer.got:])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                self._lost(peer)
                return
            peer.got += count
            if peer.got == len(peer.target):
                self._take(peer)

    def _take(self, peer: _OtherPlace) -> None:
        """A header, or the payload of a message, is complete."""
        kind, target = peer.kind, peer.target
        if kind is None:
            kind, number, nbytes = _HEADER.unpack(target)
            peer.expect(kind, number, self._where(peer, kind, number, nbytes))
            return
        number = peer.number
        peer.expect(None, 0, memoryview(bytearray(_HEADER.size)))
        if kind == _NAME:
            peer.sums[number] = self._state(bytes(target).decode())
            return
        state = peer.sums[number]
        if kind == _PART:
            state.parts[peer.place] = state.buffers[peer.place]
            self._add(state)
        else:
            self._release(state)

    def _where(self, peer: _OtherPlace, kind: int, number: int, nbytes: int) -> memoryview:
        """Where the payload of a message goes."""
        if kind == _NAME:
            return memoryview(bytearray(nbytes))
        state = peer.sums[number]
        if kind == _PART:
            return state.buffer(peer.place, nbytes).data
        chunk = state.chunk(peer.place)
        if chunk.nbytes != nbytes:
            raise JobError('%s: the leader of host %d sends %d bytes instead of %d' % (state.name, peer.place, nbytes,
                                                                                      chunk.nbytes))
        return chunk.view(np.uint8).data


def _nothing() -> None:
    pass
