"""Blocks of tasks: the pieces that a simulated step is put together from."""
import ctypes
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ...base.errors import InputError

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
_MAX_KEYS = 1 << 40
_MAX_OUTPUTS = 1 << 20

Numbers = Union[float, Sequence[Any], np.ndarray]


def array_address(array: Any) -> int:
    """Return the address of a writable array for compiled code: as ``array.ctypes.data``, but faster."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size else 0


class Dependencies:
    """Pairs of a task that waits and an output of another block that it waits for, in arrays of equal length.

    - `tasks`, `outputs`: numpy.ndarray of int32
    """

    __slots__ = ('tasks', 'outputs', '_addresses')

    def __init__(self, tasks: np.ndarray, outputs: np.ndarray):
        self.tasks, self.outputs = np.ascontiguousarray(tasks, np.int32), np.ascontiguousarray(outputs, np.int32)
        self._addresses: Tuple[int, ...] = ()

    @property
    def addresses(self) -> Tuple[int, ...]:
        """The arrays and their length, as compiled code takes them."""
        if not self._addresses:
            self._addresses = array_address(self.tasks), array_address(self.outputs), len(self.tasks)
        return self._addresses

    def __len__(self) -> int:
        return len(self.tasks)


class BlockInput(NamedTuple):
    """The dependencies of a block on the outputs of another block."""

    #: The key of the other block.
    key: int
    dependencies: Dependencies
    #: The number that is added to all outputs of the dependencies.
    offset: int = 0


class TaskBlock:
    """Tasks that are added and removed together, such as those of an operator or of a redistribution.  Immutable.

    - `key`: at least 0 and less than 2**40; a simulation has at most one block of each key.  Tasks that are ready at
      the same moment are dispatched in order of key, then of index.
    - `resource` (array_like of int, shape (n,)): the resource of each task; -1 for a join, which needs none.
    - `work` (float or array_like, shape (n,)): in units of the resource: bytes, or seconds of a core.
    - `second` (int or array_like of int, shape (n,)): another resource that a task holds at the same time, or -1.
    - `latency` (float or array_like, shape (n,)): seconds from the end of a task until its successors may start; its
      resources are free during this time.
    - `high_priority` (bool or array_like of bool, shape (n,)): whether a task overtakes tasks of normal priority that
      wait for its resource.
    - `arithmetic` (float or array_like, shape (n,)): the share of the work that is bound by arithmetic, from 0 to 1;
      the rest is bound by memory.
    - `edges` (array_like of int, shape (m, 2)): pairs of a task and its successor in the block, by index.
    - `outputs` (mapping of int to int, or array_like of int, shape (p, 2)): by output, a small number that tasks of
      other blocks wait for: the task of this block, by index.
    - `dependencies` (array_like of int, shape (w, 3)): triples of a task by index, the key of another block, and the
      output of that block that the task waits for.  A block that does not exist, or has no such output, is not waited
      for.

    Raises InputError if numbers are out of range.
    """

    __slots__ = ('key', 'content', 'inputs')

    #: Tasks, successors in the block, and outputs.
    content: 'BlockContent'
    #: The dependencies on other blocks.
    inputs: List[BlockInput]

    def __init__(self, key: int, resource: Sequence[int], work: Numbers, second: Any = -1, latency: Numbers = 0.0,
                 high_priority: Any = False, edges: Any = (), outputs: Union[Mapping[int, int], Any] = (),
                 dependencies: Any = (), arithmetic: Numbers = 0.0):
        if not 0 <= key < _MAX_KEYS:
            raise InputError('block %r: give a key of at least 0 and less than %d' % (key, _MAX_KEYS))
        self.key = int(key)
        resources = np.asarray(resource, np.int32)
        if resources.ndim != 1 or len(resources) >= _MAX_TASKS:
            raise self._error('give fewer than %d tasks, in one dimension' % _MAX_TASKS)
        size = len(resources)
        tasks = np.zeros(size, TASK)
        tasks['resource'] = resources
        try:
            for name, values in (('work', work), ('second', second), ('latency', latency),
                                 ('high_priority', high_priority), ('arithmetic', arithmetic)):
                tasks[name] = values
        except ValueError as error:
            raise self._error('%s: give one number, or one for each of the %d tasks' % (name, size)) from error
        tasks['order'] = np.arange(size)
        self._check_tasks(tasks)
        successors = self._set_edges(tasks, self._rows('edges', edges, 2, size))
        output_rows = list(outputs.items()) if isinstance(outputs, Mapping) else outputs
        self.content = BlockContent(tasks, successors, self._table(self._rows('outputs', output_rows, 2, size, 1)))
        self.inputs = self._inputs(self._rows('dependencies', dependencies, 3, size))

    @classmethod
    def from_content(cls, key: int, content: 'BlockContent', inputs: List[BlockInput]) -> 'TaskBlock':
        """Return a block whose content exists already, perhaps in another block; nothing is checked."""
        block = cls.__new__(cls)
        block.key, block.content, block.inputs = key, content, inputs
        return block

    @property
    def size(self) -> int:
        """The number of tasks."""
        return self.content.size

    def _error(self, problem: str) -> InputError:
        return InputError('block %d: %s' % (self.key, problem))

    def _rows(self, name: str, values: Any, width: int, size: int, task_column: int = 0) -> np.ndarray:
        """Return rows of numbers, after a check that tasks, or both columns of edges, are indices of tasks."""
        rows = np.asarray(values, np.int64)
        if not rows.size:
            return rows.reshape(0, width)
        if rows.ndim != 2 or rows.shape[1] != width:
            raise self._error('%s has shape %s: give rows of %d numbers' % (name, rows.shape, width))
        if rows.min() < 0:
            raise self._error('%s: give numbers of at least 0, not %d' % (name, rows.min()))
        tasks = rows if name == 'edges' else rows[:, task_column]
        if tasks.max() >= size:
            raise self._error('%s: the block has %d tasks, and none of index %d' % (name, size, tasks.max()))
        return rows

    def _check_tasks(self, tasks: np.ndarray) -> None:
        resource, second = tasks['resource'], tasks['second']
        for name in ('work', 'latency'):
            # min and max are NaN where any number is.
            if len(tasks) and not (tasks[name].min() >= 0 and tasks[name].max() < np.inf):
                raise self._error('%s: give numbers of at least 0' % name)
        if len(tasks) and not (tasks['arithmetic'].min() >= 0 and tasks['arithmetic'].max() <= 1):
            raise self._error('arithmetic: give shares from 0 to 1')
        if len(tasks) and (resource.min() < -1 or second.min() < -1):
            raise self._error('resource, second: give numbers of resources, or -1')
        if ((second >= 0) & ((resource < 0) | (resource == second))).any():
            raise self._error('second: give it only together with another resource')
        if (tasks['work'][resource < 0] > 0).any():
            raise self._error('work: a task without a resource does no work: give 0')

    def _set_edges(self, tasks: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Set the ranges of inner successors; return the successors, those of the first task first."""
        ends = np.bincount(edges[:, 0], minlength=len(tasks)).cumsum()
        tasks['inner_end'] = ends
        tasks['inner'][1:] = ends[:-1]
        return edges[edges[:, 0].argsort(kind='stable'), 1].astype(np.int32)

    def _table(self, outputs: np.ndarray) -> np.ndarray:
        last = int(outputs[:, 0].max()) if len(outputs) else -1
        if last >= _MAX_OUTPUTS:
            raise self._error('outputs: give numbers less than %d, not %d' % (_MAX_OUTPUTS, last))
        return output_table(outputs[:, 0], outputs[:, 1])

    def _inputs(self, dependencies: np.ndarray) -> List[BlockInput]:
        tasks, keys, outputs = dependencies.T
        if (keys == self.key).any():
            raise self._error('dependencies: the key is that of the block itself: give the dependencies among its '
                              'tasks as edges')
        return [BlockInput(key, Dependencies(tasks[keys == key], outputs[keys == key]))
                for key in np.unique(keys).tolist()]

    def __repr__(self) -> str:
        return 'TaskBlock(%d, %d tasks)' % (self.key, self.size)


class BlockContent:
    """The tasks of a block without its key and its inputs: blocks of several keys may share them.

    - `tasks` (numpy.ndarray of TASK): with `inner` and `inner_end`; `order` is the index.
    - `successors` (numpy.ndarray of int32): successors in the block, those of its first task first.
    - `output_tasks` (numpy.ndarray of int32): the task of each output, -1 for none; the last element stands for all
      larger outputs.
    - `size`: the number of tasks.
    - `max_resource`: the largest number of a resource; -1 for none.
    """

    __slots__ = ('tasks', 'successors', 'output_tasks', 'size', 'max_resource', '_addresses')

    def __init__(self, tasks: np.ndarray, successors: np.ndarray, output_tasks: np.ndarray):
        self.tasks, self.successors, self.output_tasks, self.size = tasks, successors, output_tasks, len(tasks)
        self.max_resource = max(int(tasks['resource'].max()), int(tasks['second'].max())) if self.size else -1
        self._addresses: Tuple[int, ...] = ()

    @classmethod
    def from_arrays(cls, tasks: np.ndarray, successors: np.ndarray, output_tasks: np.ndarray, max_resource: int
                    ) -> 'BlockContent':
        """Return the content of arrays from compiled code, which knows the largest resource."""
        content = cls.__new__(cls)
        content.tasks, content.successors, content.output_tasks = tasks, successors, output_tasks
        content.size, content.max_resource, content._addresses = len(tasks), max_resource, ()
        return content

    def with_work(self, work: np.ndarray, arithmetic: Optional[np.ndarray] = None) -> 'BlockContent':
        """Return the same tasks with other work, and with another share of arithmetic if one is given."""
        tasks = self.tasks.copy()
        tasks['work'] = work
        if arithmetic is not None:
            tasks['arithmetic'] = arithmetic
        return BlockContent.from_arrays(tasks, self.successors, self.output_tasks, self.max_resource)

    @property
    def addresses(self) -> Tuple[int, ...]:
        """The arrays of tasks, successors and outputs, and their lengths, as compiled code takes them."""
        if not self._addresses:
            tasks, successors, output_tasks = self.tasks, self.successors, self.output_tasks
            self._addresses = (array_address(tasks), array_address(successors), array_address(output_tasks), len(tasks),
                               len(successors), len(output_tasks))
        return self._addresses


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
