"""Python's place in MXNet's engine: notices of the moment at which it gets to an array, operations of our own.

The engine calls once everything that reads or writes the arrays so far has been done, and holds back whatever comes
later.  So a script goes on at once, as with any operator of MXNet.
"""
import ctypes
import itertools
from typing import Any, Callable, Dict, List, Sequence

from mxnet.base import _LIB, check_call

from .forks import fork_guard

#: ``void (*)(void *run_context, void *parameter)``, EngineSyncFunc of ``include/mxnet/c_api.h``.
_SyncFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

#: ``void (*)(void *run_context, void *on_complete, void *parameter)``, EngineAsyncFunc there.
_AsyncFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

#: What the engine wants to be called when an operation is complete: engine, parameter, error.
_CallBack = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

#: ``FnProperty::kCPUPrioritized`` of ``include/mxnet/engine.h``, as for Horovod's operations: threads of their own.
_PRIORITIZED = 3


class _Context(ctypes.Structure):
    """``struct Context`` of ``include/mxnet/base.h``; the CPU is device type 1."""

    _fields_ = [('device_type', ctypes.c_int), ('device_id', ctypes.c_int32)]


class _OnComplete(ctypes.Structure):
    """``class CallbackOnComplete`` of ``include/mxnet/engine.h``."""

    _fields_ = [('callback', ctypes.c_void_p), ('engine', ctypes.c_void_p), ('parameter', ctypes.c_void_p)]


_CPU = _Context(1, 0)
_PRIORITIZED_PROPERTY = ctypes.c_int(_PRIORITIZED)

#: The engine may call it at any time; kept for ever.
_NOTHING = _SyncFunction(lambda *_: None)


def handles_of(arrays: Sequence[Any]) -> Any:
    """The handles of arrays, as an array for compiled functions."""
    return (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays])


def address_of(array: Any) -> Any:
    """Where the values of an array on the CPU are, in its default layout; waits for what writes it."""
    array.wait_to_read()
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value


def function_address(name: str) -> Any:
    """Where a function of MXNet's C interface is, for compiled functions."""
    return ctypes.cast(getattr(_LIB, name), ctypes.c_void_p)


def operator_handle(name: bytes) -> Any:
    """What MXNet's C interface knows an operator by."""
    found = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(name, ctypes.byref(found)))
    return found


def write_after(arrays: List[Any], targets: List[Any]) -> None:
    """Have the engine believe that `targets` were computed from `arrays`, without touching either."""
    check_call(_LIB.MXEnginePushSyncND(
        _NOTHING, None, None, ctypes.byref(_Context(1, 0)), handles_of(arrays), ctypes.c_int(len(arrays)),
        handles_of(targets), ctypes.c_int(len(targets)), None, ctypes.c_int(0), b'mxhybrid_order'))


def own_handle(array: Any) -> Any:
    """Another handle of an array, which the caller has to free."""
    found = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayDetach(array.handle, ctypes.byref(found)))
    return found.value


def push_native(function: Any, parameter: int, reads: Any, writes: Any, priority: int, name: bytes,
                delete: Any = None, ends_itself: bool = True) -> None:
    """Have the engine call a compiled function once it gets to the arrays that it reads and writes on the CPU, given as
    :func:`handles_of` gives them; what it writes is given once.  An EngineAsyncFunc, which `ends_itself`, holds back
    whatever needs them until its callback was called; others are an EngineSyncFunc.  In the end `delete` gets the
    parameter.
    """
    arrays = reads, ctypes.c_int(len(reads)), writes, ctypes.c_int(len(writes))
    with fork_guard:
        if not ends_itself:
            check_call(_LIB.MXEnginePushSyncND(
                function, ctypes.c_void_p(parameter), delete, ctypes.byref(_CPU), *arrays,
                ctypes.byref(_PRIORITIZED_PROPERTY), ctypes.c_int(priority), name))
        else:
            check_call(_LIB.MXEnginePushAsyncND(
                function, ctypes.c_void_p(parameter), delete, ctypes.byref(_CPU), *arrays,
                ctypes.byref(_PRIORITIZED_PROPERTY), ctypes.c_int(priority), name, ctypes.c_bool(False)))


class Notifier:
    """Calls back from an engine thread once all that writes an array is done; keep it as long as the engine may call.
    """

    def __init__(self) -> None:
        self._waiting: Dict[int, Callable[[], None]] = {}
        self._count = 0
        self._function = _SyncFunction(self._arrived)
        self._context = _Context(1, 0)
        self._property = ctypes.c_int(_PRIORITIZED)

    @fork_guard.called_by_engine
    def _arrived(self, _: Any, number: int) -> None:
        self._waiting.pop(number)()

    def when_ready(self, array: Any, callback: Callable[[], None], priority: int = 0) -> None:
        """Have `callback` called after all writes to `array` pushed so far and before all pushed later.

        It holds up the engine, so it must be short; it is not called where a write failed.
        """
        self._count += 1
        self._waiting[self._count] = callback
        with fork_guard:
            check_call(_LIB.MXEnginePushSyncND(
                self._function, ctypes.c_void_p(self._count), None, ctypes.byref(self._context), handles_of([array]), 1,
                None, 0, ctypes.byref(self._property), priority, b'mxhybrid_trace'))


class Deferred:
    """Pushes operations that the engine starts, and somebody else ends.  Keep it as long as the engine may call.

    ``start(what, complete)`` is called from an engine thread when operation `what` may begin: it must be short.
    Whoever has done the operation calls ``complete()``, once, from any thread.  It is not called where a write to one
    of the arrays failed.
    """

    def __init__(self, start: Callable[[Any, Callable[[], None]], None]):
        self._start = start
        self._waiting: Dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._function = _AsyncFunction(self._begin)
        self._context = _Context(1, 0)
        self._property = ctypes.c_int(_PRIORITIZED)

    def push(self, arrays: List[Any], what: Any, priority: int = 0) -> None:
        """Have operation `what`, which reads and writes `arrays` on the CPU, each given once, take its turn."""
        number = next(self._numbers)
        self._waiting[number] = what
        with fork_guard:
            check_call(_LIB.MXEnginePushAsyncND(
                self._function, ctypes.c_void_p(number), None, ctypes.byref(self._context), None, 0,
                handles_of(arrays), len(arrays), ctypes.byref(self._property), int(priority), b'mxhybrid_deferred',
                ctypes.c_bool(False)))

    @fork_guard.called_by_engine
    def _begin(self, _: Any, on_complete: int, number: int) -> None:
        # The engine's object lives as long as this call: copy it.
        done = _OnComplete.from_buffer_copy((ctypes.c_char * ctypes.sizeof(_OnComplete)).from_address(on_complete))
        self._start(self._waiting.pop(number), lambda: _CallBack(done.callback)(done.engine, done.parameter, None))
