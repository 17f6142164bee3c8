"""Transfers by sockets in Python, for jobs without the compiled lane.

One thread in each process sends and receives for all transfers under way, so that no other thread waits.
"""
import collections
import functools
import selectors
import socket
import struct
import threading
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import numpy as np

from ...native.engine import Deferred
from ...native.forks import fork_guard
from .redistribution import Transfer, shape_at
from .redistribution_operator import Transport

#: In front of a piece: the transfer's tag, and the number of bytes.
_HEAD = struct.Struct('<QQ')
#: Bytes that are sent or received at a time.
_CHUNK = 1 << 20


class _Connection:
    """A connection to a rank: the queue of bytes to send, and the piece that arrives."""

    def __init__(self, rank: int, sock: socket.socket):
        self.rank, self.sock = rank, sock
        self.queue: Deque[memoryview] = collections.deque()
        self.head = bytearray()
        self.tag = 0
        self.piece: Optional[np.ndarray] = None
        self.filled = 0
        #: Whether the other rank has closed it; the job monitor finds out why.
        self.is_closed = False


class _PendingTransfer:
    """A transfer that has begun."""

    def __init__(self, transfer: Transfer, target: Optional[np.ndarray], done: Callable[[], None]):
        self.transfer, self.target, self.done = transfer, target, done
        self.pieces: Dict[int, List[np.ndarray]] = collections.defaultdict(list)
        self.missing = len(transfer.receives)


class SocketTransport(Transport):
    """Moves pieces of arrays over a socket to each other rank.

    - `sockets`: a connection to each other rank.
    - `on_failure`: called with an exception that ends the thread.
    """

    def __init__(self, rank: int, sockets: Dict[int, socket.socket], on_failure: Callable[[BaseException], None]):
        self._rank, self._on_failure = rank, on_failure
        self._deferred = Deferred(lambda begin, done: begin(done))
        self._peers = {other: _Connection(other, sock) for other, sock in sockets.items()}
        self._lock = threading.Lock()
        #: The ranges of tags of transfers that are cancelled.
        self._cancelled: List[range] = []
        self._new: List[Tuple[Transfer, Optional[np.ndarray], Optional[np.ndarray], Callable[[], None]]] = []
        self._jobs: Dict[int, Deque[_PendingTransfer]] = collections.defaultdict(collections.deque)
        self._early: Dict[Tuple[int, int], Deque[np.ndarray]] = collections.defaultdict(collections.deque)
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        for peer in self._peers.values():
            peer.sock.setblocking(False)
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)
        threading.Thread(target=self._run, name='mxhybrid-sockets', daemon=True).start()

    def push_views(self, transfer: Transfer, source: Any, target: Any, arrays: List[Any], priority: int) -> None:
        self._deferred.push(arrays, functools.partial(self.begin, transfer, source, target), priority)

    def begin(self, transfer: Transfer, source: Optional[np.ndarray], target: Optional[np.ndarray],
              done: Callable[[], None]) -> None:
        """Begin a transfer between two arrays, which nobody changes before ``done()`` is called."""
        with self._lock:
            self._new.append((transfer, source, target, done))
            first = len(self._new) == 1
        if first:
            self._wake_sender.send(b'!')

    def tags_under_way(self) -> List[int]:
        with self._lock:
            new = [arguments[0].tag for arguments in self._new]
        return new + [tag for tag, jobs in list(self._jobs.items()) if jobs]

    def cancel(self, first: int, end: int) -> None:
        with self._lock:
            self._cancelled.append(range(first, end))
        self._wake_sender.send(b'!')

    def _run(self) -> None:
        fork_guard.serve()
        try:
            while True:
                for key, events in self._selector.select():
                    if key.data is None:
                        self._wake_receiver.recv(4096)
                        continue
                    if events & selectors.EVENT_READ:
                        self._receive(key.data)
                    if events & selectors.EVENT_WRITE and not key.data.is_closed:
                        self._send(key.data)
                self._start_new()
        except BaseException as error:
            self._on_failure(error)

    # -- transfers -----------------------------------------------------------------------------------------------------

    def _start_new(self) -> None:
        """Start the transfers that have begun since the last call; no local variable keeps their arrays afterwards."""
        with self._lock:
            new, self._new = self._new, []
        if self._cancelled:
            for tag in [tag for tag in self._jobs if self._is_cancelled(tag)]:
                for job in self._jobs.pop(tag):
                    self._cancel(job.target, job.done)
        for transfer, source, target, done in new:
            if self._is_cancelled(transfer.tag):
                self._cancel(target, done)
            else:
                self._start(transfer, source, target, done)

    def _is_cancelled(self, tag: int) -> bool:
        return any(tag in tags for tags in self._cancelled)

    @staticmethod
    def _cancel(target: Optional[np.ndarray], done: Callable[[], None]) -> None:
        """Complete a transfer with values that are NaN if they are real numbers."""
        if target is not None:
            target[...] = np.nan if target.dtype.kind == 'f' else 0
        done()

    def _start(self, transfer: Transfer, source: Any, target: Any, done: Callable[[], None]) -> None:
        for to, where in transfer.sends:
            piece = np.array(source[where], order='C')  # a copy: the array may be used again before all is sent
            queue = self._peers[to].queue
            queue.append(memoryview(_HEAD.pack(transfer.tag, piece.nbytes)))
            queue.append(piece.reshape(-1).view(np.uint8).data)
        job = _PendingTransfer(transfer, target, done)
        if target is not None and not transfer.adds:
            if transfer.fill == transfer.fill:
                target[...] = transfer.fill
            for here, there in transfer.local:
                target[there] = source[here]
        elif transfer.adds:
            job.pieces[self._rank] = [source[here].copy() for here, _ in transfer.local]
        self._jobs[transfer.tag].append(job)
        for to in {to for to, _ in transfer.sends}:
            self._send(self._peers[to])
        for sender in {sender for sender, _ in transfer.receives}:
            early = self._early[transfer.tag, sender]
            while early and self._lacks(job, sender):
                self._take(job, sender, early.popleft())
            if not early:
                del self._early[transfer.tag, sender]
        self._finish(transfer.tag)

    @staticmethod
    def _lacks(job: _PendingTransfer, sender: int) -> bool:
        return len(job.pieces[sender]) < sum(rank == sender for rank, _ in job.transfer.receives)

    def _arrived(self, tag: int, sender: int, piece: np.ndarray) -> None:
        if self._is_cancelled(tag):
            return
        job = next((pending for pending in self._jobs[tag] if self._lacks(pending, sender)), None)
        if job is None:
            self._early[tag, sender].append(piece)
            return
        self._take(job, sender, piece)
        self._finish(tag)

    @staticmethod
    def _take(job: _PendingTransfer, sender: int, piece: np.ndarray) -> None:
        assert job.target is not None
        where = [slices for rank, slices in job.transfer.receives if rank == sender][len(job.pieces[sender])]
        values = piece.view(job.target.dtype).reshape(shape_at(where))
        job.pieces[sender].append(values)
        job.missing -= 1
        if not job.transfer.adds:
            job.target[where] = values

    def _finish(self, tag: int) -> None:
        """End the transfers of a tag that are complete, in the order in which they began."""
        jobs = self._jobs[tag]
        while jobs and not jobs[0].missing:
            job = jobs.popleft()
            if job.transfer.adds and job.target is not None:
                self._add_up(job)
            job.done()
        if not jobs:
            del self._jobs[tag]  # no other may ever come

    def _add_up(self, job: _PendingTransfer) -> None:
        target: Any = job.target
        target[...] = 0
        positions: Dict[int, List[Any]] = collections.defaultdict(list)
        for sender, where in job.transfer.receives:
            positions[sender].append(where)
        positions[self._rank] = [there for _, there in job.transfer.local]
        for sender in sorted(positions):
            for where, piece in zip(positions[sender], job.pieces[sender]):
                target[where] += piece

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _send(self, peer: _Connection) -> None:
        while peer.queue and not peer.is_closed:
            try:
                count = peer.sock.send(peer.queue[0][:_CHUNK])
            except BlockingIOError:
                break
            except ConnectionError:
                self._lose(peer)
                return
            if count == len(peer.queue[0]):
                peer.queue.popleft()
            else:
                peer.queue[0] = peer.queue[0][count:]
        if not peer.is_closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.queue else 0)
            self._selector.modify(peer.sock, events, peer)

    def _lose(self, peer: _Connection) -> None:
        peer.is_closed = True
        self._selector.unregister(peer.sock)

    def _receive(self, peer: _Connection) -> None:
        while True:
            try:
                if peer.piece is None:
                    received = peer.sock.recv(_HEAD.size - len(peer.head))
                    peer.head += received
                    count = len(received)
                    if len(peer.head) == _HEAD.size:
                        peer.tag, size = _HEAD.unpack(peer.head)
                        peer.head = bytearray()
                        peer.piece, peer.filled = np.empty(size, np.uint8), 0
                else:
                    count = peer.sock.recv_into(peer.piece.data[peer.filled:peer.filled + _CHUNK])
                    peer.filled += count
            except BlockingIOError:
                return
            except ConnectionError:
                count = 0
            if not count:
                self._lose(peer)
                return
            if peer.piece is not None and peer.filled == len(peer.piece):
                piece, peer.piece = peer.piece, None
                self._arrived(peer.tag, peer.rank, piece)
