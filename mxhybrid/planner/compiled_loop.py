"""``src/simulate.cc`` as Python calls it: what :mod:`~.event_loop` does, faster, and without Python's lock.

``setup.py`` compiles it where there is a compiler; where there is none, plans are found by the loop in Python.
"""
import ctypes
import functools
import os
from typing import Any, Callable, Optional

import numpy as np

from ..base.compiled import compiled_files
from ..base.log import get_logger
from . import event_loop
from .event_loop import Rates
from .slots import Slots
from .timeline import Timeline

_log = get_logger(__name__)

#: What ``planner_version()`` has to return.
_VERSION = 5
_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64

Loop = Callable[[Slots, Rates, Optional[Timeline], Timeline, np.ndarray, float, float], int]


class _PlannerSlots(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ('tasks', 'targets', 'outer_targets', 'bases', 'sizes', 'alive')] + [
        ('slots', _I64), ('used', _I64)]


class _PlannerRates(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in Rates._fields] + [('resources', _I64)]


class _PlannerTimeline(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ('events', 'taken', 'last', 'states', 'snapshots', 'finish')] + [
        ('stride', _I64), ('most_snapshots', _I64)]


def _filled(structure: Any, source: Any, *numbers: int) -> Any:
    """A structure of pointers to what has the names of its fields, and of numbers after those."""
    arrays = [name for name, kind in structure._fields_ if kind is _POINTER]
    return structure(*(getattr(source, name).ctypes.data for name in arrays), *numbers)


def _timeline(timeline: Timeline) -> Any:
    return _filled(_PlannerTimeline, timeline, timeline.stride, len(timeline.taken))


@functools.lru_cache(maxsize=None)
def planner_library(path: str = '') -> Any:
    """What was compiled, or another library by its path; OSError, which says what to do, where there is none."""
    found = [path] if path else compiled_files(os.path.dirname(__file__), '_simulate')
    if not found:
        raise OSError('the compiled part of the planner is missing: install g++ and then mxhybrid again, with '
                      'pip install --force-reinstall --no-deps')
    library = ctypes.CDLL(found[0])
    version = library.planner_version()
    if version != _VERSION:
        raise OSError('%s is of version %d, and not %d: install mxhybrid anew' % (found[0], version, _VERSION))
    return library


@functools.lru_cache(maxsize=None)
def load(path: str = '') -> Loop:
    """The compiled loop, from another library than the package's by its path; OSError where there is none."""
    function = planner_library(path).planner_simulate
    function.restype = _I64
    function.argtypes = [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _I64, ctypes.c_double, ctypes.c_double]

    def simulate(slots: Slots, rates: Rates, before: Optional[Timeline], made: Timeline, changed: np.ndarray,
                 bound: float, limit: float) -> int:
        changed = np.ascontiguousarray(changed, np.int64)
        taken = function(ctypes.byref(_filled(_PlannerSlots, slots, slots.used_slots, slots.used)),
                         ctypes.byref(_filled(_PlannerRates, rates, len(rates.rate))),
                         None if before is None else ctypes.byref(_timeline(before)), ctypes.byref(_timeline(made)),
                         changed.ctypes.data, len(changed), bound, limit)
        if taken < 0:
            raise MemoryError('no memory to simulate %d tasks' % slots.live_tasks)
        return taken

    return simulate


@functools.lru_cache(maxsize=None)
def fastest_loop() -> Loop:
    """The compiled loop, or the one in Python."""
    try:
        return load()
    except OSError as error:
        _log.warning('%s; until then plans are found by Python, many times slower', error)
        return event_loop.simulate
