"""The compiled library of the planner, which also builds the tasks of transfers, and the simulator's backend in it:
``src/task_table.cc`` and ``src/event_loop.cc``, free of Python's lock.
"""
import array
import ctypes
import functools
import os
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...base.compiled import CompiledLibrary, StaleLibraryError, compiled_files
from ...base.errors import SettingError
from .resource_groups import ResourceRates
from .task_block import TaskBlock
from .task_table import Replacement, TaskTable, Timeline

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64
_TABLE_ARRAYS = 'tasks', 'successors', 'outer_successors', 'bases', 'sizes', 'keys', 'alive', 'counts'


class SimulatorBackend(NamedTuple):
    """The implementation of a simulation's table and event loop, from one compiled library."""

    #: Called with blocks and with expected blocks; returns a :class:`~.task_table.TaskTable`.
    table: Callable[..., TaskTable]
    #: Called with such a table, the rates, the timeline before a change or None, the timeline to fill, the numbers of
    #: changed tasks, the time when the first removed task was ready, and a limit in seconds.  Returns the number of
    #: tasks that were dispatched: fewer than all where tasks wait for each other, or where the last end comes after the
    #: limit; then `finish` of the timeline is a lower bound of that end, above the limit.
    simulate: Callable[[Any, ResourceRates, Optional[Timeline], Timeline, np.ndarray, float, float], int]


class _PlannerTaskTable(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in _TABLE_ARRAYS] + [
        (name, _I64) for name in ('max_tasks', 'max_successors', 'max_outer_successors', 'max_slots')]


class _PlannerReplacement(ctypes.Structure):
    _fields_ = [('changed', _POINTER), ('removed', _POINTER)] + [
        (name, _I64) for name in ('changed_count', 'removed_count', 'first_new')]


class _PlannerRates(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in ResourceRates._fields] + [('resources', _I64), ('width', _I64)]


class _PlannerTimeline(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in (
        'events', 'dispatched', 'last_ready', 'states', 'snapshots', 'finish')] + [
        ('stride', _I64), ('max_snapshots', _I64)]


class NativeTaskTable(TaskTable):
    """A task table that compiled code changes, by a library from :func:`planner_library`."""

    def __init__(self, library: Any, blocks: Sequence[TaskBlock], expected: Sequence[TaskBlock] = ()):
        super().__init__(blocks, expected)
        self._library = library
        #: The arrays, as compiled code takes them.
        self.native = _filled(_PlannerTaskTable, self, *map(len, (self.tasks, self.successors, self.outer_successors,
                                                                  self.bases)))
        self._table = library.planner_table_new(ctypes.byref(self.native))
        _check_memory(bool(self._table))
        weakref.finalize(self, library.planner_table_delete, self._table)
        # A change writes each successor twice at most.
        self._changed = np.empty(len(self.tasks) + 2 * len(self.outer_successors), np.int64)
        self._removed = np.empty(len(self.tasks), np.int64)
        self._replacement = _PlannerReplacement(self._changed.ctypes.data, self._removed.ctypes.data)
        self.replace({block.key: block for block in blocks})

    def _replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replacement]:
        numbers: List[int] = []
        for key, block in blocks.items():
            if block is None:
                numbers += (key, 0, 0, 0, -1, 0, 0, 0)
                continue
            numbers.append(key)
            numbers += block.content.addresses
            numbers.append(len(block.inputs))
            for other_key, dependencies, offset in block.inputs:
                numbers += (other_key, offset)
                numbers += dependencies.addresses
        packed = array.array('q', numbers)
        status = self._library.planner_table_replace(self._table, packed.buffer_info()[0], len(blocks),
                                                     ctypes.byref(self._replacement))
        _check_memory(status >= 0)
        if not status:
            return None
        replacement = self._replacement
        return Replacement(replacement.first_new, self._changed[:replacement.changed_count],
                           self._removed[:replacement.removed_count])

    def _rollback(self) -> None:
        _check_memory(self._library.planner_table_rollback(self._table) >= 0)


def _check_memory(is_done: bool) -> None:
    if not is_done:
        raise MemoryError('no memory for the tasks of a simulation')


def _filled(structure: Any, source: Any, *numbers: int) -> Any:
    """Return a structure of pointers to the arrays of the same names, followed by numbers."""
    arrays = [name for name, kind in structure._fields_ if kind is _POINTER]
    return structure(*(getattr(source, name).ctypes.data for name in arrays), *numbers)


def _native_timeline(timeline: Timeline) -> Any:
    return _filled(_PlannerTimeline, timeline, timeline.stride, len(timeline.dispatched))


@functools.lru_cache(maxsize=None)
def native_backend(path: str = '') -> SimulatorBackend:
    """Return the compiled backend, of the package's library or of another one by its path.

    Raises SettingError if there is no such library.
    """
    library = planner_library(path)

    def simulate(table: NativeTaskTable, rates: ResourceRates, before: Optional[Timeline], timeline: Timeline,
                 changed: np.ndarray, first_removed: float, limit: float) -> int:
        changed = np.ascontiguousarray(changed, np.int64)
        dispatched = library.planner_simulate(
            ctypes.byref(table.native),
            ctypes.byref(_filled(_PlannerRates, rates, len(rates.rate), rates.slowdowns.shape[2])),
            None if before is None else ctypes.byref(_native_timeline(before)),
            ctypes.byref(_native_timeline(timeline)), changed.ctypes.data, len(changed), first_removed, limit)
        if dispatched < 0:
            raise MemoryError('no memory to simulate %d tasks' % table.live_tasks)
        return dispatched
    return SimulatorBackend(functools.partial(NativeTaskTable, library), simulate)


#: The version that ``planner_version()`` of ``src/event_loop.cc`` has to return.
_VERSION = 11
#: The types of the result and of the arguments of the library's functions.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    'table_new': (_POINTER, [_POINTER]), 'table_delete': (None, [_POINTER]), 'table_rollback': (_I64, [_POINTER]),
    'table_replace': (_I64, [_POINTER, _POINTER, _I64, _POINTER]),
    'simulate': (_I64, [_POINTER] * 5 + [_I64, ctypes.c_double, ctypes.c_double]),
    'coverage': (_I64, [_POINTER] * 2), 'transfers': (_I64, [_POINTER, _I64, _POINTER, _POINTER]),
    'redistributions': (_I64, [_POINTER] * 3 + [_I64] * 3 + [_POINTER]),
    'collective_operator': (_I64, [_POINTER] * 4 + [_I64] * 3 + [_POINTER] * 3),
    'group_sums': (_I64, [_POINTER] * 4 + [_I64, _POINTER]), 'add_load': (_I64, [_POINTER, _I64, _POINTER])}
_REMEDY = 'install g++, then reinstall mxhybrid with pip install --force-reinstall --no-deps'


@functools.lru_cache(maxsize=None)
def planner_library(path: str = '') -> Any:
    """Load the library that ``setup.py`` compiled, or another one by its path, and declare its functions.

    Raises SettingError if the library is missing, cannot be loaded, or is of another version.
    """
    paths = [path] if path else compiled_files(os.path.dirname(__file__), '_simulate')
    if not paths:
        raise SettingError('planner: its compiled library _simulate*.so is missing from %s, because there was no g++ '
                           'when mxhybrid was installed: %s' % (os.path.dirname(__file__), _REMEDY))
    try:
        library = CompiledLibrary(paths[0], 'planner_version', _VERSION)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, 'planner_' + name)
            function.restype, function.argtypes = result, arguments
        return library
    except StaleLibraryError as error:
        raise SettingError('planner: its compiled library %s' % error) from error
    except OSError as error:
        raise SettingError('planner: its compiled library %s cannot be loaded: %s: %s'
                           % (paths[0], error, _REMEDY)) from error
