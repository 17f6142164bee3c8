"""Graphs that MXNet compiles, and that a safe thread releases."""
import atexit
from collections import deque
from typing import Any, Deque, List, Tuple

import mxnet as mx

#: Graphs that nobody can call any more.
_discarded: Deque[Any] = deque()


def release_discarded() -> None:
    """Release the graphs that nobody can call any more; the thread that has called them does that."""
    while _discarded:
        _discarded.popleft()


@atexit.register
def _keep_the_others() -> None:
    """Release discarded graphs, and leave all other graphs and symbols to the end of the process: Custom operators in
    them call functions of Python when they are freed, and the interpreter may have freed these before.
    """
    release_discarded()
    for owner in (mx.nd.CachedOp, mx.sym.Symbol):
        owner.__del__ = lambda self: None


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

    def __call__(self, *inputs: Any) -> List[Any]:
        """Run the graph; return its outputs."""
        release_discarded()
        outputs = self._compiled(*inputs)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def __del__(self, discard: Any = _discarded.append) -> None:
        compiled = self.__dict__.pop('_compiled', None)
        if compiled is not None:
            discard(compiled)
