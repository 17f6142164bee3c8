"""``src/task_table.cc`` as Python calls it: what :class:`~.task_table.PythonTaskTable` does, faster."""
import array
import ctypes
import weakref
from typing import Any, List, Mapping, Optional, Sequence

import numpy as np

from .task_block import TaskBlock
from .task_table import Replaced, TaskTable

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64
_ARRAYS = 'tasks', 'targets', 'outer_targets', 'bases', 'sizes', 'keys', 'alive', 'counts'


class _PlannerTaskTable(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in _ARRAYS] + [
        (name, _I64) for name in ('most_tasks', 'most_targets', 'most_outer_targets', 'most_slots')]


class _PlannerReplaced(ctypes.Structure):
    _fields_ = [('changed', _POINTER), ('gone', _POINTER)] + [(name, _I64) for name in ('changes', 'goes', 'first')]


class NativeTaskTable(TaskTable):
    """By a library that was compiled, see :func:`load_table`."""

    def __init__(self, library: Any, blocks: Sequence[TaskBlock], more: Sequence[TaskBlock] = ()):
        super().__init__(blocks, more)
        self._library = library
        #: As compiled code takes it.
        self.native = _PlannerTaskTable(
            *(getattr(self, name).ctypes.data for name in _ARRAYS),
            *map(len, (self.tasks, self.targets, self.outer_targets, self.bases)))
        self._table = library.planner_table_new(ctypes.byref(self.native))
        _check(bool(self._table))
        weakref.finalize(self, library.planner_table_delete, self._table)
        # A change writes each successor twice at most.
        self._changed = np.empty(len(self.tasks) + 2 * len(self.outer_targets), np.int64)
        self._gone = np.empty(len(self.tasks), np.int64)
        self._found = _PlannerReplaced(self._changed.ctypes.data, self._gone.ctypes.data)
        self.replace({block.key: block for block in blocks})

    def _replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replaced]:
        numbers: List[int] = []
        for key, block in blocks.items():
            if block is None:
                numbers += (key, 0, 0, 0, -1, 0, 0, 0)
                continue
            numbers.append(key)
            numbers += block.content.addresses
            numbers.append(len(block.reads))
            for other, waits, shift in block.reads:
                numbers += (other, shift)
                numbers += waits.addresses
        given = array.array('q', numbers)
        done = self._library.planner_table_replace(self._table, given.buffer_info()[0], len(blocks),
                                                   ctypes.byref(self._found))
        _check(done >= 0)
        if not done:
            return None
        found = self._found
        return Replaced(found.first, self._changed[:found.changes], self._gone[:found.goes])

    def _undo(self) -> None:
        _check(self._library.planner_table_undo(self._table) >= 0)


def _check(is_done: bool) -> None:
    if not is_done:
        raise MemoryError('no memory to lay out tasks')


def load_table(library: Any) -> Any:
    """A library, with what its functions take."""
    for name, result, arguments in (
            ('new', _POINTER, [_POINTER]), ('delete', None, [_POINTER]), ('undo', _I64, [_POINTER]),
            ('replace', _I64, [_POINTER, _POINTER, _I64, _POINTER])):
        function = getattr(library, 'planner_table_' + name)
        function.restype, function.argtypes = result, arguments
    return library
