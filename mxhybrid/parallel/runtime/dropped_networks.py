"""Networks that a script no longer refers to, although it did not call ``forget()``: its next call of any split network
releases them.

Python's garbage collector runs in any thread, also in one of MXNet's that calls an operator of a network.  Therefore a
finalizer releases nothing itself: it only notes the network.  The thread of the script releases it later, on this
worker alone, after all operations are done.
"""
import gc
import weakref
from collections import deque
from typing import Any, Callable, Deque, List, NamedTuple

import mxnet as mx


class _Dropped(NamedTuple):
    """A network that no script refers to: whether no backward pass may still need it, and its release."""

    is_done: Callable[[], bool]
    release: Callable[[], None]


_dropped: Deque[_Dropped] = deque()

#: The finalizers of networks, also of those that are released.
_finalizers: List[Any] = []


def release_after(owner: Any, is_done: Callable[[], bool], release: Callable[[], None]) -> Any:
    """Let :func:`release_dropped` call `release` when no object refers to `owner` any more and ``is_done()`` is True.

    The functions may not refer to `owner`.  Return the finalizer.
    """
    finalizer = weakref.finalize(owner, _dropped.append, _Dropped(is_done, release))
    finalizer.atexit = False
    _finalizers[:] = [other for other in _finalizers if other.alive] + [finalizer]
    return finalizer


def collect_dropped() -> None:
    """Find the networks that no script refers to, if there are networks without ``forget()``.

    They are in cycles of objects, which Python collects by the number of its objects, whatever memory their arrays
    have.
    """
    if any(finalizer.alive for finalizer in _finalizers):
        gc.collect()


def release_dropped() -> None:
    """Release the networks that no script refers to, once all operations are done; the thread of the script calls it.
    """
    ready: List[_Dropped] = []
    for _ in range(len(_dropped)):
        network = _dropped.popleft()
        (ready if network.is_done() else _dropped).append(network)
    if not ready:
        return
    try:
        mx.nd.waitall()
    except mx.base.MXNetError:
        _dropped.extend(ready)
        raise
    for network in ready:
        network.release()
