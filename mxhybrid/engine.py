"""When MXNet's engine gets to an array: the moments at which an asynchronous operation on it begins and ends."""
import ctypes
from typing import Any, Callable, Dict

from mxnet.base import _LIB, check_call

#: ``void (*)(void *run_context, void *parameter)``, EngineSyncFunc of ``include/mxnet/c_api.h``.
_SyncFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

#: ``FnProperty::kCPUPrioritized`` of ``include/mxnet/engine.h``, as for Horovod's operations: threads of their own.
_PRIORITIZED = 3


class _Context(ctypes.Structure):
    """``struct Context`` of ``include/mxnet/base.h``; the CPU is device type 1."""

    _fields_ = [('device_type', ctypes.c_int), ('device_id', ctypes.c_int32)]


class Notifier:
    """Calls back from an engine thread, once everything that writes an array has been done.

    Keep it as long as the engine may call.
    """

    def __init__(self) -> None:
        self._waiting: Dict[int, Callable[[], None]] = {}
        self._count = 0
        self._function = _SyncFunction(self._arrived)
        self._context = _Context(1, 0)
        self._property = ctypes.c_int(_PRIORITIZED)

    def _arrived(self, _: Any, number: int) -> None:
        self._waiting.pop(number)()

    def when_ready(self, array: Any, callback: Callable[[], None], priority: int = 0) -> None:
        """Have `callback` called after all writes to `array` pushed so far and before all pushed later.

        It holds up the engine, so it must be short; it is not called where a write failed.
        """
        self._count += 1
        self._waiting[self._count] = callback
        handles = (ctypes.c_void_p * 1)(array.handle.value)
        check_call(_LIB.MXEnginePushSyncND(
            self._function, ctypes.c_void_p(self._count), None, ctypes.byref(self._context), handles, 1, None, 0,
            ctypes.byref(self._property), priority, b'mxhybrid_trace'))
