"""Threads that give operations to MXNet's engine for others."""
import queue
import threading
from typing import Any, Callable


class SegmentThreads:
    """The threads that give the segments of one program to the engine: one for forward and one for backward passes.

    Operators of MXNet share temporary memory: a few pieces for each thread that gives operations to the engine
    (ResourceManager::Get of resource.cc).  The engine runs the operations that use a piece in the order in which it got
    them.  So an operation of a segment must not come behind one that waits for this segment.  That happens in the
    threads of MXNet's CustomOp, which also give segments of several programs to the engine, whose order differs between
    workers.  In a thread of its own, an operation comes only behind those of segments that have begun earlier in the
    same pass.

    The schedule 'gpipe' is not safe in this way: a thread of MXNet's gives its backward passes to the engine, while the
    script gives other operations on the same arrays.
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


class CallingThread:
    """A thread that calls functions for others.

    It is a daemon: MXNet waits for pending operations when the interpreter exits, after threads of
    concurrent.futures have ended.
    """

    def __init__(self, name: str):
        self._calls: Any = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            function, arguments, replies = self._calls.get()
            if function is None:
                return
            try:
                function(*arguments)
            except BaseException as error:  # raised by call()
                replies.put(error)
            else:
                replies.put(None)
            del arguments, replies  # they would be kept until the next call

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        replies: Any = queue.SimpleQueue()
        self._calls.put((function, arguments, replies))
        error = replies.get()
        if error is not None:
            raise error

    def close(self) -> None:
        self._calls.put((None, (), None))
