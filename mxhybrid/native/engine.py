"""Push operations of Python and of compiled code to MXNet's engine, and get notices of finished arrays.

The engine runs an operation after all earlier operations that read or write its arrays, and delays all later ones.  So
a script continues at once, as with any operator of MXNet.
"""
import ctypes
import itertools
import threading
from typing import Any, Callable, Dict, List, Sequence

from mxnet.base import _LIB, check_call

from .arrays import address_in_memory
from .forks import fork_guard

#: ``void (*)(void *run_context, void *parameter)``, EngineSyncFunc of ``include/mxnet/c_api.h``.
_SyncFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

#: ``void (*)(void *run_context, void *on_complete, void *parameter)``, EngineAsyncFunc there.
_AsyncFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

#: The callback that the engine expects when an operation is complete: engine, parameter, error.
_CallBack = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

#: ``FnProperty::kCPUPrioritized`` of ``include/mxnet/engine.h``, as of Horovod's operations, which has its own threads.
_PRIORITIZED = ctypes.c_int(3)


class _Context(ctypes.Structure):
    """``struct Context`` of ``include/mxnet/base.h``; the CPU is device type 1."""

    _fields_ = [('device_type', ctypes.c_int), ('device_id', ctypes.c_int32)]


class _OnComplete(ctypes.Structure):
    """``class CallbackOnComplete`` of ``include/mxnet/engine.h``."""

    _fields_ = [('callback', ctypes.c_void_p), ('engine', ctypes.c_void_p), ('parameter', ctypes.c_void_p)]


_CPU = _Context(1, 0)

#: An empty function, kept for ever because the engine may call it at any time.
_NOTHING = _SyncFunction(lambda *_: None)


def handles_of(arrays: Sequence[Any]) -> Any:
    """Return the handles of arrays as a C array, for compiled functions."""
    return (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays])


def address_of(array: Any) -> Any:
    """Return the address of the values of an array on the CPU, in its default layout, after pending writes."""
    array.wait_to_read()
    return address_in_memory(array)


def function_address(name: str) -> Any:
    """Return the address of a function of MXNet's C interface, for compiled functions."""
    return ctypes.cast(getattr(_LIB, name), ctypes.c_void_p)


def operator_handle(name: bytes) -> Any:
    """Return the handle of an operator in MXNet's C interface; MXNetError if there is none."""
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(name, ctypes.byref(handle)))
    return handle


def write_after(arrays: List[Any], targets: List[Any]) -> None:
    """Order later operations on `targets` after pending writes to `arrays`, without touching either."""
    check_call(_LIB.MXEnginePushSyncND(
        _NOTHING, None, None, ctypes.byref(_CPU), handles_of(arrays), ctypes.c_int(len(arrays)),
        handles_of(targets), ctypes.c_int(len(targets)), None, ctypes.c_int(0), b'mxhybrid_order'))


def own_handle(array: Any) -> Any:
    """Return another handle of an array, which the caller must free."""
    handle = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayDetach(array.handle, ctypes.byref(handle)))
    return handle.value


def push_native(function: Any, parameter: int, reads: Any, writes: Any, priority: int, name: bytes,
                delete: Any = None) -> None:
    """Push a compiled function to the engine, to run in its turn on the arrays that it reads and writes on the CPU.

    The arrays are results of :func:`handles_of`; each written one occurs once.  The function is an EngineAsyncFunc,
    which ends when its callback is called, and delays later operations until then.  In the end `delete` is called with
    the parameter.
    """
    with fork_guard:
        check_call(_LIB.MXEnginePushAsyncND(
            function, ctypes.c_void_p(parameter), delete, ctypes.byref(_CPU), reads, ctypes.c_int(len(reads)), writes,
            ctypes.c_int(len(writes)), ctypes.byref(_PRIORITIZED), ctypes.c_int(priority), name, ctypes.c_bool(False)))


def push_native_sync(function: Any, parameter: int, reads: Any, writes: Any, priority: int, name: bytes,
                     delete: Any = None) -> None:
    """Push a compiled function, an EngineSyncFunc, to the engine; see :func:`push_native`."""
    with fork_guard:
        check_call(_LIB.MXEnginePushSyncND(
            function, ctypes.c_void_p(parameter), delete, ctypes.byref(_CPU), reads, ctypes.c_int(len(reads)), writes,
            ctypes.c_int(len(writes)), ctypes.byref(_PRIORITIZED), ctypes.c_int(priority), name))


class Deferred:
    """Operations that the engine starts, and another thread completes.  Keep it while the engine may call.

    ``start(operation, complete)`` is called from an engine thread when the operation may begin: it must be short.  The
    thread that has done the operation, any thread, calls ``complete()``, once.
    """

    def __init__(self, start: Callable[[Any, Callable[[], None]], None]):
        self._start = start
        self._waiting: Dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._function = _AsyncFunction(self._begin)

    def push(self, arrays: List[Any], operation: Any, priority: int = 0, reads: Sequence[Any] = (),
             wait: bool = False) -> None:
        """Push an operation that writes `arrays` on the CPU, each of which occurs once, and only reads others.

        It is not started if a write to one of the arrays failed, except with `wait` (ExecuteOprBlock of
        threaded_engine.h).
        """
        number = next(self._numbers)
        self._waiting[number] = operation
        with fork_guard:
            check_call(_LIB.MXEnginePushAsyncND(
                self._function, ctypes.c_void_p(number), None, ctypes.byref(_CPU), handles_of(reads), len(reads),
                handles_of(arrays), len(arrays), ctypes.byref(_PRIORITIZED), ctypes.c_int(priority),
                b'mxhybrid_deferred', ctypes.c_bool(wait)))

    @fork_guard.called_by_engine
    def _begin(self, _: Any, on_complete: int, number: int) -> None:
        # A copy, since the engine's object lives only during this call.
        done = _OnComplete.from_buffer_copy((ctypes.c_char * ctypes.sizeof(_OnComplete)).from_address(on_complete))
        self._start(self._waiting.pop(number), lambda: _CallBack(done.callback)(done.engine, done.parameter, None))


def _call(function: Callable[[], None], complete: Callable[[], None]) -> None:
    try:
        function()
    finally:
        complete()


#: Calls of functions by the engine.
_CALLS = Deferred(_call)


def when_ready(array: Any, function: Callable[[], None], priority: int = 0) -> None:
    """Let the engine call a function after all writes to `array` pushed so far, and before all pushed later.

    It blocks a thread of the engine, so it must be short.  It is not called if a write failed.
    """
    _CALLS.push([], function, priority, [array])


def when_written(arrays: List[Any]) -> threading.Event:
    """Return an event that is set once all pending writes to `arrays` are done, also if one of them has failed.

    Their errors stay for those who read them.
    """
    event = threading.Event()
    _CALLS.push([], event.set, reads=arrays, wait=True)
    return event
