"""Blocks of tasks: the pieces that a simulated step is put together from."""
import ctypes
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

#: A task as ``src/event_loop.cc`` reads it.  `inner` up to `inner_end` and `outer` up to `outer_end` are the ranges of
#: its successors, in its own block and in other blocks, in the arrays of a :class:`.task_table.TaskTable`.  `second` is
#: another resource that the task holds, or -1; `arithmetic` is the share of its work that is bound by arithmetic, not
#: by memory.
TASK = np.dtype([('work', 'f8'), ('latency', 'f8'), ('arithmetic', 'f8'), ('order', 'i8'), ('resource', 'i4'),
                 ('second', 'i4'), ('inner', 'i4'), ('inner_end', 'i4'), ('outer', 'i4'), ('outer_end', 'i4'),
                 ('high_priority', 'i4'), ('kind_code', 'i4')], align=True)
#: Key and index in the block make one number, by which tasks that are ready at the same moment are ordered.
INDEX_BITS = 23
_MAX_TASKS = 1 << INDEX_BITS


def array_address(array: Any) -> int:
    """Return the address of a writable array for compiled code: as ``array.ctypes.data``, but faster."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size else 0


class Dependencies:
    """Pairs of a task that waits and an output of another block that it waits for, in arrays of equal length.

    - `tasks`, `outputs`: numpy.ndarray of int32
    - `addresses`: the arrays and their length, as compiled code takes them.
    """

    __slots__ = ('tasks', 'outputs', 'addresses')

    def __init__(self, tasks: np.ndarray, outputs: np.ndarray):
        self.tasks, self.outputs = np.ascontiguousarray(tasks, np.int32), np.ascontiguousarray(outputs, np.int32)
        self.addresses = array_address(self.tasks), array_address(self.outputs), len(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class BlockInput(NamedTuple):
    """The dependencies of a block on the outputs of another block."""

    #: The key of the other block.
    key: int
    dependencies: Dependencies
    #: The number that is added to all outputs of the dependencies.
    offset: int = 0


class TaskBlock(NamedTuple):
    """Tasks that are added and removed together, such as those of an operator or of a redistribution."""

    #: At least 0 and less than 2**40; a simulation has at most one block of each key.  Tasks that are ready at the same
    #: moment are dispatched in order of key, then of index.
    key: int
    #: Tasks, successors in the block, and outputs; perhaps those of another block, too.
    content: 'BlockContent'
    #: The dependencies on other blocks.  A block that does not exist, or has no such output, is not waited for.
    inputs: List[BlockInput]

    @property
    def size(self) -> int:
        """The number of tasks."""
        return self.content.size


class BlockContent:
    """The tasks of a block without its key and its inputs: blocks of several keys may share them.

    - `tasks` (numpy.ndarray of TASK): with `inner` and `inner_end`; `order` is the index.
    - `successors` (numpy.ndarray of int32): successors in the block, those of its first task first.
    - `output_tasks` (numpy.ndarray of int32): the task of each output, -1 for none; the last element stands for all
      larger outputs.
    - `size`: the number of tasks.
    - `max_resource`: the largest number of a resource; -1 for none.  It is found in the tasks if it is not known.
    - `addresses`: the arrays of tasks, successors and outputs, and their lengths, as compiled code takes them.
    """

    __slots__ = ('tasks', 'successors', 'output_tasks', 'size', 'max_resource', 'addresses')

    def __init__(self, tasks: np.ndarray, successors: np.ndarray, output_tasks: np.ndarray,
                 max_resource: Optional[int] = None):
        self.tasks, self.successors, self.output_tasks, self.size = tasks, successors, output_tasks, len(tasks)
        if max_resource is None:
            max_resource = max(int(tasks['resource'].max()), int(tasks['second'].max())) if self.size else -1
        self.max_resource = max_resource
        self.addresses = (array_address(tasks), array_address(successors), array_address(output_tasks), len(tasks),
                          len(successors), len(output_tasks))

    def with_work(self, work: np.ndarray, arithmetic: Optional[np.ndarray] = None) -> 'BlockContent':
        """Return the same tasks with other work, and with another share of arithmetic if one is given."""
        tasks = self.tasks.copy()
        tasks['work'] = work
        if arithmetic is not None:
            tasks['arithmetic'] = arithmetic
        return BlockContent(tasks, self.successors, self.output_tasks, self.max_resource)


def output_table(outputs: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """Return the task of each output; see :attr:`BlockContent.output_tasks`."""
    table = np.full(int(outputs.max()) + 2 if len(outputs) else 1, -1, np.int32)
    table[outputs] = tasks
    return table


def key_and_index(order: int) -> Tuple[int, int]:
    """Return the key of a task's block and the task's index in it, given its `order`."""
    return order >> INDEX_BITS, order & (_MAX_TASKS - 1)


def format_keys(orders: np.ndarray, most: int = 5) -> str:
    """Return the keys of the blocks of tasks as text for a message, given the `order` of each task."""
    keys = np.unique(orders >> INDEX_BITS)
    return ', '.join(map(str, keys[:most])) + (' and %d more' % (len(keys) - most) if len(keys) > most else '')
