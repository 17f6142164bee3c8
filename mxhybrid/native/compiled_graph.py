"""Graphs that MXNet compiles, and that a safe thread releases."""
import atexit
import ctypes
import weakref
from collections import deque
from typing import Any, Deque, List, Tuple

import mxnet as mx

#: Compiled graphs that nobody can call any more.
_discarded: Deque[Any] = deque()
#: All others.
_live: 'weakref.WeakSet[CompiledGraph]' = weakref.WeakSet()


def release_discarded() -> None:
    """Release the graphs that nobody can call any more; the thread that has called them does that."""
    while _discarded:
        _discarded.popleft()


@atexit.register
def _keep_all() -> None:
    """Release discarded graphs, and keep all others until the process has ended: states of Custom operators call
    functions of Python, which are gone when the interpreter frees the last objects.
    """
    release_discarded()
    for graph in _live:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph.__dict__.get('_compiled')))


class CompiledGraph:
    """A graph that MXNet compiles with static memory; a later call of any such graph releases it.

    Its release gives the engine an operation for each of its operators, on all arrays of the operator, among them
    weights that other graphs read, too (ThreadedEngine::DeleteOperator).  Python's garbage collector runs in any
    thread.  The engine appends an operation to the queues of its arrays one by one.  If a thread gave it such an
    operation while the script gives it another one on the same arrays, each of the two could be before the other in one
    queue, and both would wait for ever.
    """

    def __init__(self, symbol: Any, flags: List[Tuple[str, Any]]):
        self._compiled = mx.nd.CachedOp(symbol, flags)
        _live.add(self)

    def __call__(self, *inputs: Any) -> List[Any]:
        """Run the graph; return its outputs."""
        release_discarded()
        outputs = self._compiled(*inputs)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def __del__(self, discard: Any = _discarded.append) -> None:
        compiled = self.__dict__.pop('_compiled', None)
        if compiled is not None:
            discard(compiled)
