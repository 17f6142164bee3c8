"""``src/event_loop.cc`` as Python calls it: what :mod:`~.event_loop` does, faster, and without Python's lock."""
import ctypes
from typing import Any, Callable, Optional

import numpy as np

from .event_loop import Rates
from .native_task_table import NativeTaskTable
from .timeline import Timeline

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


class _PlannerRates(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in Rates._fields] + [('resources', _I64), ('width', _I64)]


class _PlannerTimeline(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ('events', 'taken', 'last', 'states', 'snapshots', 'finish')] + [
        ('stride', _I64), ('most_snapshots', _I64)]


def _filled(structure: Any, source: Any, *numbers: int) -> Any:
    """A structure of pointers to what has the names of its fields, and of numbers after those."""
    arrays = [name for name, kind in structure._fields_ if kind is _POINTER]
    return structure(*(getattr(source, name).ctypes.data for name in arrays), *numbers)


def _timeline(timeline: Timeline) -> Any:
    return _filled(_PlannerTimeline, timeline, timeline.stride, len(timeline.taken))


def load_loop(library: Any) -> Callable[..., int]:
    """What is called as :func:`.event_loop.simulate`, but with :class:`~.native_task_table.NativeTaskTable`."""
    function = library.planner_simulate
    function.restype = _I64
    function.argtypes = [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _I64, ctypes.c_double, ctypes.c_double]

    def simulate(slots: NativeTaskTable, rates: Rates, before: Optional[Timeline], made: Timeline, changed: np.ndarray,
                 bound: float, limit: float) -> int:
        changed = np.ascontiguousarray(changed, np.int64)
        taken = function(ctypes.byref(slots.native), ctypes.byref(
                             _filled(_PlannerRates, rates, len(rates.rate), rates.slowed.shape[1])),
                         None if before is None else ctypes.byref(_timeline(before)), ctypes.byref(_timeline(made)),
                         changed.ctypes.data, len(changed), bound, limit)
        if taken < 0:
            raise MemoryError('no memory to simulate %d tasks' % slots.live_tasks)
        return taken

    return simulate
