"""Release networks that a script no longer refers to, although it did not call their ``release()``: its next call of
any split network does it.

Python's garbage collector runs in any thread, also in one of MXNet's that calls an operator of a network.  Therefore a
finalizer releases nothing itself: it only notes the network.  The thread of the script releases it later, on this
worker alone, after the redistributions of the network are done.

It waits for these, not for all operations: ``mx.nd.waitall`` raises an error of any earlier operation, which the script
may have caught from another array.  If it raised the error in ``parallelize`` on some workers only, the others would
wait for them.  An operation that failed on another worker may also leave a redistribution that never ends; then the
network stays.
"""
import gc
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Sequence

from ...native.engine import when_written

#: Seconds in all that ``parallelize`` waits for the redistributions of a network that no object refers to.
PATIENCE_S = 5.0


class _Dropped:
    """A network that no script refers to; :func:`release_after` describes the arguments."""

    def __init__(self, is_done: Callable[[], bool], release: Callable[[], None], last: Sequence[Any]):
        self.release, self._is_done, self._last = release, is_done, last
        self._written: Optional[threading.Event] = None
        self._patience_s = PATIENCE_S

    def is_ready(self, waits: bool) -> bool:
        """Return whether it can be released; with `waits`, wait for its redistributions for some time."""
        if self._written is None:
            if not self._is_done():
                return False
            if not self._last:
                return True
            self._written = when_written(list(self._last))
        if waits and self._patience_s > 0 and not self._written.is_set():
            began = time.monotonic()
            self._written.wait(self._patience_s)
            self._patience_s -= time.monotonic() - began
        return self._written.is_set()


_dropped: Deque[_Dropped] = deque()

#: The finalizers of networks, also of those that are released.
_finalizers: List[Any] = []


def release_after(owner: Any, is_done: Callable[[], bool], release: Callable[[], None], last: Sequence[Any] = ()
                  ) -> Any:
    """Let :func:`release_dropped` call `release` when no object refers to `owner` any more, ``is_done()`` says that no
    backward pass may still need it, and the arrays in `last` are written: then its redistributions are done.

    The functions and `last` may not refer to `owner`.  Return the finalizer.
    """
    finalizer = weakref.finalize(owner, _dropped.append, _Dropped(is_done, release, last))
    finalizer.atexit = False
    _finalizers[:] = [other for other in _finalizers if other.alive] + [finalizer]
    return finalizer


def collect_dropped() -> None:
    """Find the networks that no script refers to, if there are networks without ``release()``.

    They are in cycles of objects, which Python collects by the number of its objects, whatever memory their arrays
    have.
    """
    if any(finalizer.alive for finalizer in _finalizers):
        gc.collect()


def release_dropped(waits: bool = False) -> None:
    """Release the networks that no script refers to and whose redistributions are done; the thread of the script calls
    it.  With `waits`, wait for the redistributions, up to :data:`PATIENCE_S` for each network.
    """
    for _ in range(len(_dropped)):
        network = _dropped.popleft()
        if network.is_ready(waits):
            network.release()
        else:
            _dropped.append(network)
