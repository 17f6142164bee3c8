"""Blocks of tasks: what a simulated step is put together from."""
import ctypes
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ...base.errors import InputError

#: A task as ``src/event_loop.cc`` reads it.  Successors are ranges in the arrays of its :class:`.task_table.TaskTable`: in
#: its own block, and those in others.
TASK = np.dtype([('work', 'f8'), ('latency', 'f8'), ('order', 'i8'), ('resource', 'i4'), ('second', 'i4'),
                 ('inner', 'i4'), ('inner_end', 'i4'), ('outer', 'i4'), ('outer_end', 'i4'), ('express', 'i4'),
                 ('kind_code', 'i4')], align=True)
#: Key and index in the block make one number, by which tasks that are ready together are ordered.
_INDEX_BITS = 23
_MOST_TASKS = 1 << _INDEX_BITS
_MOST_KEYS = 1 << 40
_MOST_PORTS = 1 << 20

Numbers = Union[float, Sequence[Any], np.ndarray]


def array_address(array: Any) -> int:
    """Where an array that can be written is, as compiled code takes it: what ``array.ctypes.data`` says, sooner."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size else 0


class Dependencies:
    """Tasks of a block that wait, and the ports of another one that they wait for, in arrays of equal length.

    Attributes
    ----------
    tasks, ports : numpy.ndarray of int32
    """

    __slots__ = ('tasks', 'ports', '_addresses')

    def __init__(self, tasks: np.ndarray, ports: np.ndarray):
        self.tasks, self.ports = np.ascontiguousarray(tasks, np.int32), np.ascontiguousarray(ports, np.int32)
        self._addresses: Tuple[int, ...] = ()

    @property
    def addresses(self) -> Tuple[int, ...]:
        """As compiled code takes them."""
        if not self._addresses:
            self._addresses = array_address(self.tasks), array_address(self.ports), len(self.tasks)
        return self._addresses

    def __len__(self) -> int:
        return len(self.tasks)


class BlockInput(NamedTuple):
    """That tasks of a block wait for those of another one.

    Attributes
    ----------
    key : int
        The other block's.
    waits : Dependencies
    shift : int
        What is added to all ports.
    """

    key: int
    waits: Dependencies
    shift: int = 0


class TaskBlock:
    """Tasks that come and go together, such as those of an operator, or of the edge between two.  Immutable.

    Parameters
    ----------
    key : int
        Of at least 0 and less than 2**40; a simulation has one block of each.  Tasks that are ready at the same moment
        are taken in order of key, then of index.
    resource : array_like of int, shape (n,)
        What each task takes: the number of a resource; -1 for a join, which takes none.
    work : float or array_like, shape (n,)
        In units of the resource: bytes, or seconds of a core.
    second : int or array_like of int, shape (n,)
        Another resource that a task holds at the same time, or -1.
    latency : float or array_like, shape (n,)
        Seconds after its end before its successors may start; its resources are free meanwhile.
    express : bool or array_like of bool, shape (n,)
        Whether it overtakes what waits for its resource without being express.
    inner : array_like of int, shape (m, 2)
        Tasks by index, and those that come after them.
    ports : mapping of int to int, or array_like of int, shape (p, 2)
        Numbers, small ones, by which tasks of other blocks wait for tasks of this one, and those tasks by index.
    waits : array_like of int, shape (w, 3)
        A task by index, the key of another block, and the port of that for whose task it waits.  A block that is not
        there, or has no such port, is not waited for.

    Raises
    ------
    InputError
        For numbers out of range.
    """

    __slots__ = ('key', 'content', 'reads')

    #: TaskBuilder, successors in the block, and ports.
    content: 'BlockContent'
    #: What its tasks wait for in other blocks.
    reads: List[BlockInput]

    def __init__(self, key: int, resource: Sequence[int], work: Numbers, second: Any = -1, latency: Numbers = 0.0,
                 express: Any = False, inner: Any = (), ports: Union[Mapping[int, int], Any] = (), waits: Any = ()):
        if not 0 <= key < _MOST_KEYS:
            raise InputError('block %r: give a key of at least 0 and less than %d' % (key, _MOST_KEYS))
        self.key = int(key)
        resources = np.asarray(resource, np.int32)
        if resources.ndim != 1 or len(resources) >= _MOST_TASKS:
            raise self._wrong('give fewer than %d tasks, in one dimension' % _MOST_TASKS)
        size = len(resources)
        tasks = np.zeros(size, TASK)
        tasks['resource'] = resources
        try:
            for name, values in (('work', work), ('second', second), ('latency', latency), ('express', express)):
                tasks[name] = values
        except ValueError as error:
            raise self._wrong('%s: give a number, or one for each of %d tasks' % (name, size)) from error
        tasks['order'] = np.arange(size)
        self._check_tasks(tasks)
        targets = self._set_inner(tasks, self._rows('inner', inner, 2, size))
        rows = list(ports.items()) if isinstance(ports, Mapping) else ports
        self.content = BlockContent(tasks, targets, self._table(self._rows('ports', rows, 2, size, 1)))
        self.reads = self._reads(self._rows('waits', waits, 3, size))

    @classmethod
    def of(cls, key: int, content: 'BlockContent', reads: List[BlockInput]) -> 'TaskBlock':
        """A block whose tasks were made before, perhaps for another one; nothing is checked."""
        made = cls.__new__(cls)
        made.key, made.content, made.reads = key, content, reads
        return made

    @property
    def size(self) -> int:
        """How many tasks it has."""
        return self.content.size

    def _wrong(self, what: str) -> InputError:
        return InputError('block %d: %s' % (self.key, what))

    def _rows(self, name: str, values: Any, width: int, size: int, own: int = 0) -> np.ndarray:
        """Rows of numbers; those of the column `own`, and of all where there are two of tasks, are tasks of it."""
        rows = np.asarray(values, np.int64)
        if not rows.size:
            return rows.reshape(0, width)
        if rows.ndim != 2 or rows.shape[1] != width:
            raise self._wrong('%s: give rows of %d numbers' % (name, width))
        if rows.min() < 0:
            raise self._wrong('%s: give numbers of at least 0, not %d' % (name, rows.min()))
        tasks = rows if name == 'inner' else rows[:, own]
        if tasks.max() >= size:
            raise self._wrong('%s: it has %d tasks, and none of index %d' % (name, size, tasks.max()))
        return rows

    def _check_tasks(self, tasks: np.ndarray) -> None:
        resource, second = tasks['resource'], tasks['second']
        for name in ('work', 'latency'):
            # min and max are NaN where any is.
            if len(tasks) and not (tasks[name].min() >= 0 and tasks[name].max() < np.inf):
                raise self._wrong('%s: give numbers of at least 0' % name)
        if len(tasks) and (resource.min() < -1 or second.min() < -1):
            raise self._wrong('resource, second: give numbers of resources, or -1')
        if ((second >= 0) & ((resource < 0) | (resource == second))).any():
            raise self._wrong('second: give it only with another resource beside it')
        if (tasks['work'][resource < 0] > 0).any():
            raise self._wrong('work: a task without resource does none')

    def _set_inner(self, tasks: np.ndarray, inner: np.ndarray) -> np.ndarray:
        """Successors, those of the first task first."""
        ends = np.bincount(inner[:, 0], minlength=len(tasks)).cumsum()
        tasks['inner_end'] = ends
        tasks['inner'][1:] = ends[:-1]
        return inner[inner[:, 0].argsort(kind='stable'), 1].astype(np.int32)

    def _table(self, ports: np.ndarray) -> np.ndarray:
        top = int(ports[:, 0].max()) if len(ports) else -1
        if top >= _MOST_PORTS:
            raise self._wrong('ports: give numbers less than %d, not %d' % (_MOST_PORTS, top))
        return table_of(ports[:, 0], ports[:, 1])

    def _reads(self, waits: np.ndarray) -> List[BlockInput]:
        own, others, ports = waits.T
        if (others == self.key).any():
            raise self._wrong('waits: its tasks wait for each other by `inner`')
        return [BlockInput(other, Dependencies(own[others == other], ports[others == other]))
                for other in np.unique(others).tolist()]

    def __repr__(self) -> str:
        return 'TaskBlock(%d, %d tasks)' % (self.key, self.size)


class BlockContent:
    """What blocks of different keys can have in common.

    Attributes
    ----------
    tasks : numpy.ndarray of TASK
        With `inner` and `inner_end`; `order` is the index.
    targets : numpy.ndarray of int32
        Successors in the block, those of its first task first.
    table : numpy.ndarray of int32
        The task of each port, -1 for none; the last one is what larger numbers stand for.
    size : int
        How many tasks there are.
    top : int
        The largest number of a resource; -1 for none.
    """

    __slots__ = ('tasks', 'targets', 'table', 'size', 'top', '_addresses')

    def __init__(self, tasks: np.ndarray, targets: np.ndarray, table: np.ndarray):
        self.tasks, self.targets, self.table, self.size = tasks, targets, table, len(tasks)
        self.top = max(int(tasks['resource'].max()), int(tasks['second'].max())) if self.size else -1
        self._addresses: Tuple[int, ...] = ()

    @classmethod
    def of(cls, tasks: np.ndarray, targets: np.ndarray, table: np.ndarray, top: int) -> 'BlockContent':
        """Of compiled code's making."""
        made = cls.__new__(cls)
        made.tasks, made.targets, made.table, made.size, made.top = tasks, targets, table, len(tasks), top
        made._addresses = ()
        return made

    def working(self, work: np.ndarray) -> 'BlockContent':
        """The same with other work."""
        tasks = self.tasks.copy()
        tasks['work'] = work
        return BlockContent.of(tasks, self.targets, self.table, self.top)

    @property
    def addresses(self) -> Tuple[int, ...]:
        """As compiled code takes it: tasks, successors and ports, and how many."""
        if not self._addresses:
            tasks, targets, table = self.tasks, self.targets, self.table
            self._addresses = (array_address(tasks), array_address(targets), array_address(table), len(tasks),
                               len(targets), len(table))
        return self._addresses


def joined_tasks(parts: Sequence[BlockContent], out: Optional[np.ndarray] = None) -> np.ndarray:
    """Tasks of several, one behind the other; where it is given, in `out`."""
    found = np.empty(sum(part.size for part in parts), TASK) if out is None else out
    if parts:
        # As plain numbers: NumPy copies those at once, and records field by field.
        np.concatenate([part.tasks.view(np.float64) for part in parts], out=found.view(np.float64))
    return found


def table_of(ports: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """The task of each port; see :attr:`BlockContent.table`."""
    found = np.full(int(ports.max()) + 2 if len(ports) else 1, -1, np.int32)
    found[ports] = tasks
    return found


def order_of(keys: np.ndarray) -> np.ndarray:
    """What comes to the index of a task to make its `order`, of its block's key."""
    return keys << _INDEX_BITS


def key_and_index(order: int) -> Tuple[int, int]:
    """The block's key and the index in it of a task, by its `order`."""
    return order >> _INDEX_BITS, order & (_MOST_TASKS - 1)


def keys_in_words(orders: np.ndarray, most: int = 5) -> str:
    """Keys of blocks of tasks, for a message."""
    keys = np.unique(orders >> _INDEX_BITS)
    return ', '.join(map(str, keys[:most])) + (' and %d more' % (len(keys) - most) if len(keys) > most else '')
