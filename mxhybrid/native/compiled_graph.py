"""Graphs that MXNet compiles, and that a safe thread releases."""
import atexit
from collections import deque
from typing import Any, Deque, List, Optional, Sequence, Tuple

import mxnet as mx

from .arrays import is_same

#: Compiled graphs that nobody can call any more.
_discarded: Deque[Any] = deque()


def release_discarded() -> None:
    """Release the graphs that nobody can call any more; the thread that has called them does that."""
    while _discarded:
        _discarded.popleft()


atexit.register(release_discarded)


class CompiledGraph:
    """A graph that MXNet compiles with static memory; a later call of any such graph releases it.

    Its release gives the engine an operation for each of its operators, on all arrays of the operator, among them
    weights that other graphs read, too (ThreadedEngine::DeleteOperator).  Python's garbage collector runs in any
    thread.  The engine appends an operation to the queues of its arrays one by one.  If a thread gave it such an
    operation while the script gives it another one on the same arrays, each of the two could be before the other in one
    queue, and both would wait for ever.

    MXNet writes the gradients of parameters to the arrays of the first backward pass for ever: in the place of another
    array it takes the one that it has (StaticBackward of cached_op.cc).  So other arrays get another graph.
    """

    def __init__(self, symbol: Any, flags: List[Tuple[str, Any]]):
        self._symbol, self._flags = symbol, flags
        self._compiled = mx.nd.CachedOp(symbol, flags)
        self._gradients: Optional[Sequence[Any]] = None

    def __call__(self, *inputs: Any, gradients: Optional[Sequence[Any]] = None) -> List[Any]:
        """Run the graph; return its outputs.

        If the run is recorded, `gradients` are objects that change with the gradient arrays of the parameters.
        """
        if gradients is not None:
            if self._gradients is not None and not is_same(gradients, self._gradients):
                _discarded.append(self._compiled)
                self._compiled = mx.nd.CachedOp(self._symbol, self._flags)
            self._gradients = gradients
        release_discarded()
        outputs = self._compiled(*inputs)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def __del__(self, discard: Any = _discarded.append) -> None:
        compiled = self.__dict__.pop('_compiled', None)
        if compiled is not None:
            discard(compiled)
