"""Threads that give operations to MXNet's engine for others.

Operators of MXNet share temporary memory: a few pieces for each thread that gives operations to the engine
(ResourceManager::Get of resource.cc).  The engine runs the operations that use a piece in the order in which it got
them.  So an operation must not come behind one that waits for it.  In the threads of MXNet's CustomOp that happens:
each of them gives operations of several programs and micro-batches to the engine, in an order that nobody fixes.

Two threads must not give operations with the same pieces at the same time, either: the engine appends an operation to
the queues of its arrays one by one (ThreadedEngine::Push), so that two operations could be in different orders in two
queues.
"""
import queue
import threading
from typing import Any, Callable, Optional, Tuple

from ...base.errors import InputError


class CallingThread:
    """A thread that calls functions for others, one after the other.

    It is a daemon: MXNet waits for pending operations when the interpreter exits, after threads of
    concurrent.futures have ended.
    """

    def __init__(self, name: str):
        self._name = name
        self._calls: Any = queue.SimpleQueue()
        #: Held while a call is added, so that no call is added after the end.
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=_run, args=(self._calls,), name=name, daemon=True).start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the thread, wait for its return, and return or raise what it does.

        Raises
        ------
        InputError
            The thread has ended.
        """
        replies: Any = queue.SimpleQueue()
        with self._lock:
            if self._is_closed:
                raise InputError('a parallelized network: it was called after its forget(), which ended its thread %s: '
                                 'call it before, or parallelize the network again' % self._name)
            self._calls.put((function, arguments, replies))
        result, error = replies.get()
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the thread after the calls that wait."""
        with self._lock:
            self._is_closed = True
            self._calls.put((None, (), None))

    def __del__(self) -> None:
        self._calls.put((None, (), None))


def _run(calls: Any) -> None:
    while True:
        function, arguments, replies = calls.get()
        if function is None:
            return
        reply: Tuple[Any, Optional[BaseException]]
        try:
            reply = function(*arguments), None
        except BaseException as error:  # raised by call()
            reply = None, error
        replies.put(reply)
        del function, arguments, replies, reply  # they would be kept until the next call


class SegmentThreads:
    """The threads that give the recomputed segments of one program to the engine: one for forward and one for backward
    passes.

    So the engine gets an operation only after those of segments that began earlier in the same pass.
    """

    def __init__(self) -> None:
        self._forward, self._backward = CallingThread('mxhybrid-segment'), CallingThread('mxhybrid-again')

    def forward(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of forward passes, and wait for its return."""
        self._forward.call(function, *arguments)

    def backward(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of backward passes, and wait for its return."""
        self._backward.call(function, *arguments)

    def close(self) -> None:
        """End the threads."""
        self._forward.close()
        self._backward.close()
