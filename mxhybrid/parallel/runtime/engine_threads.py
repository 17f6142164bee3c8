"""Threads that give operations to MXNet's engine for others.

Operators of MXNet share temporary memory: a few pieces for each thread that gives operations to the engine
(ResourceManager::Get of resource.cc).  The engine runs the operations that use a piece in the order in which it got
them.  So an operation must not come behind one that waits for it.  In the threads of MXNet's CustomOp that happens:
each of them gives operations of several programs and micro-batches to the engine, in an order that nobody fixes.

Two threads must not give operations with the same pieces at the same time, either: the engine appends an operation to
the queues of its arrays one by one (ThreadedEngine::Push), so that two operations could be in different orders in two
queues.

MXNet allocates memory for each thread that gives it operations, and does not free it when the thread ends: measured,
35 MB for each network with recomputed layers of 1024 x 1024.  So threads that are no longer needed are used again.
"""
import os
import queue
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Callable, Deque, Dict, NamedTuple

from ...base.errors import InputError

#: The calls of the threads that nothing uses, by the name of the threads.
_unused: Dict[str, Deque[Any]] = {}
os.register_at_fork(after_in_child=_unused.clear)  # a child has no threads


class CallingThread:
    """A thread that calls functions for others, one after the other.

    Threads are daemons: MXNet waits for pending operations when the interpreter exits, after threads of
    concurrent.futures have ended.
    """

    def __init__(self, name: str):
        self._name = name
        #: Held while a call is added, so that no call is added after the release.
        self._lock = threading.Lock()
        self._is_closed = False
        self._calls = _calls_of_thread(name)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the thread, wait for its return, and return or raise what it does.

        Raises InputError if the thread has been released.
        """
        reply: Any = Future()
        with self._lock:
            if self._is_closed:
                raise InputError('a parallelized network: it was called after its release(), which released its thread '
                                 '%s: call it before, or parallelize the network again' % self._name)
            self._calls.put((function, arguments, reply))
        return reply.result()

    def close(self) -> None:
        """Leave the thread to others after the calls that wait."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put((None, (), None))

    def __del__(self) -> None:
        if not self._is_closed:
            self._calls.put((None, (), None))


def _calls_of_thread(name: str) -> Any:
    """Return the calls of a thread that nothing uses, or of a new one."""
    unused = _unused.setdefault(name, deque())
    try:
        return unused.popleft()
    except IndexError:
        calls: Any = queue.SimpleQueue()
        threading.Thread(target=_run, args=(calls, unused), name=name, daemon=True).start()
        return calls


def _run(calls: Any, unused: Deque[Any]) -> None:
    while True:
        function, arguments, reply = calls.get()
        if function is None:
            unused.append(calls)
            continue
        try:
            reply.set_result(function(*arguments))
        except BaseException as error:  # raised by call()
            reply.set_exception(error)
        del function, arguments, reply  # they would be kept until the next call


class SegmentThreads(NamedTuple):
    """The threads that give the recomputed segments of one program to the engine: one for forward and one for backward
    passes.

    So the engine gets an operation only after those of segments that began earlier in the same pass.
    """

    forward: CallingThread
    backward: CallingThread
