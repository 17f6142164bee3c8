"""The table of all tasks of a simulation, arrays to which changes only append, and the outcome: when each task is
ready, starts and ends, and snapshots to resume from.

A rejected change is rolled back by dropping the tasks that it appended.  Tasks that accepted changes have replaced are
dropped when the arrays are full: then all blocks are copied to new arrays.
"""
from typing import Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .task_block import TASK, TaskBlock

#: The capacity of the arrays: a multiple of the size of the first blocks, and more; untouched memory costs nothing.
_SPARE_FACTOR, _MIN_CAPACITY = 3, 1024


class Replacement(NamedTuple):
    """The difference that a change of blocks makes, as numbers of tasks."""

    #: Tasks from this number on are new.
    first_new: int
    #: Tasks that are new, or wait for other tasks than before.
    changed: np.ndarray
    #: Tasks that were removed.
    removed: np.ndarray


class TaskTable:
    """Tasks and their successors, in slots, one slot for each block; a base class, see
    :class:`~.native_backend.NativeTaskTable`.

    - `tasks`: numpy.ndarray of TASK
    - `successors` (numpy.ndarray of int32): successors in the same block, of all tasks.
    - `outer_successors` (numpy.ndarray of int32): successors in other blocks.
    - `bases`, `sizes` (numpy.ndarray of int32): by slot: its first task, and its number of tasks.
    - `keys` (numpy.ndarray of int64): by slot: the key of its block.
    - `alive` (numpy.ndarray of uint8): by slot: whether its block is part of the step.
    - `counts` (numpy.ndarray of int64): the number of used elements of `tasks`, `successors` and `outer_successors`, of
      used slots, and of live tasks.
    - `blocks`: the blocks that are part of the step, by key.
    """

    def __init__(self, blocks: Sequence[TaskBlock], expected: Sequence[TaskBlock] = ()):
        """Set aside arrays for these blocks, for expected blocks, and for changes of them."""
        all_blocks = [*blocks, *expected]
        self.tasks = np.empty(_capacity(block.size for block in all_blocks), TASK)
        self.successors = np.empty(_capacity(len(block.content.successors) for block in all_blocks), np.int32)
        self.outer_successors = np.empty(_capacity(len(block_input.dependencies) for block in all_blocks
                                                   for block_input in block.inputs), np.int32)
        slots = _capacity(1 for _ in all_blocks)
        self.bases, self.sizes = np.empty(slots, np.int32), np.empty(slots, np.int32)
        self.keys, self.alive = np.empty(slots, np.int64), np.zeros(slots, np.uint8)
        self.counts = np.zeros(5, np.int64)
        self.blocks: Dict[int, TaskBlock] = {}
        self._previous: Dict[int, Optional[TaskBlock]] = {}

    @property
    def used(self) -> int:
        """The number of tasks, including those of removed blocks."""
        return int(self.counts[0])

    @property
    def live_tasks(self) -> int:
        """The number of tasks that are part of the step."""
        return int(self.counts[4])

    def replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replacement]:
        """Replace the blocks of some keys, None to remove one; return None, and change nothing, if arrays are full."""
        replacement = self._replace(blocks)
        if replacement is not None:
            self._previous = {key: self.blocks.get(key) for key in blocks}
            self._set(blocks)
        return replacement

    def rollback(self) -> None:
        """Undo the last :meth:`replace`; once for each."""
        self._rollback()
        self._set(self._previous)

    def _set(self, blocks: Mapping[int, Optional[TaskBlock]]) -> None:
        for key, block in blocks.items():
            if block is None:
                self.blocks.pop(key, None)
            else:
                self.blocks[key] = block

    def _replace(self, blocks: Mapping[int, Optional[TaskBlock]]) -> Optional[Replacement]:
        raise NotImplementedError

    def _rollback(self) -> None:
        raise NotImplementedError

    def spans(self) -> Dict[int, slice]:
        """Return the range of each block's tasks, by key, in the order of the slots."""
        slots = self._live_slots()
        return {key: slice(base, base + size) for key, base, size in zip(
            *(values[slots].tolist() for values in (self.keys, self.bases, self.sizes)))}

    def live(self) -> np.ndarray:
        """Return the numbers of all live tasks, block by block."""
        slots = self._live_slots()
        return ranges(self.bases[slots], self.sizes[slots])

    def _live_slots(self) -> np.ndarray:
        return np.flatnonzero(self.alive[:self.counts[3]])

    def edges(self, tasks: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Return all pairs of one of these tasks and its successor, as two arrays."""
        sources, targets = [], []
        for name, successors in (('inner', self.successors), ('outer', self.outer_successors)):
            start = self.tasks[name][tasks]
            count = self.tasks[name + '_end'][tasks] - start
            sources.append(tasks.repeat(count))
            targets.append(successors[ranges(start, count)])
        return np.concatenate(sources), np.concatenate(targets)


def _capacity(sizes: Iterable[int]) -> int:
    return _SPARE_FACTOR * sum(sizes) + _MIN_CAPACITY


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers of all ranges, one range after the other."""
    ends = counts.cumsum(dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + (starts - (ends - counts)).repeat(counts)


#: The times of a task in seconds, as ``src/event_loop.cc`` writes them; its position in the order in which tasks were
#: dispatched; and the number of predecessors that it still waits for.
EVENT = np.dtype([('ready', 'f8'), ('start', 'f8'), ('end', 'f8'), ('position', 'i4'), ('pending', 'i4')], align=True)
#: Numbers of a resource in a snapshot: when it is free, when it is free for high-priority tasks, the level of its token
#: bucket, and the share of its last task that is bound by arithmetic.
STATE = 4
_SNAPSHOTS = 128
_MAX_SNAPSHOTS = 512
_MIN_STRIDE = 64


class Timeline:
    """The events of all tasks, and snapshots of the resources.

    - `events` (numpy.ndarray of EVENT): by number of the task; `position` is -1 where the task was not dispatched.
    - `dispatched` (numpy.ndarray of int64): by snapshot: the number of tasks that were dispatched before it.
    - `last_ready` (numpy.ndarray of float64): by snapshot: when the last of those tasks was ready.
    - `states`: numpy.ndarray of float64, shape (snapshots, resources, STATE)
    - `snapshots` (numpy.ndarray of int64, shape (1,)): the number of snapshots.
    - `finish` (numpy.ndarray of float64, shape (1,)): the end of the last task.
    - `stride`: the number of tasks from one snapshot to the next.
    """

    def __init__(self, capacity: int, resources: int, stride: int):
        self.events = np.empty(capacity, EVENT)
        self.dispatched, self.last_ready = np.empty(_MAX_SNAPSHOTS, np.int64), np.empty(_MAX_SNAPSHOTS)
        self.states = np.empty((_MAX_SNAPSHOTS, resources, STATE))
        self.snapshots, self.finish = np.zeros(1, np.int64), np.zeros(1)
        self.stride = stride


def default_stride(tasks: int) -> int:
    """Return the stride of snapshots that suits a step of this number of tasks."""
    return max(_MIN_STRIDE, tasks // _SNAPSHOTS)
