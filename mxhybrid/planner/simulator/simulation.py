"""A discrete-event simulation of a training step: when each task starts and ends, and which tasks the last end waits
for.

A resource is a :class:`~.TokenBucket`, and does one task at a time, first come first served.  Tasks come in blocks
(:class:`~.task_block.TaskBlock`), which are replaced as wholes::

    simulation = Simulation([TokenBucket(1.0), TokenBucket(1e8)])
    seconds = simulation.run(blocks)
    proposed = simulation.propose({7: another, 8: None})
    if proposed > seconds:
        simulation.rollback()

A task is ready when all its predecessors have ended and their latency has passed.  Ready tasks are dispatched in order
of that moment, then of key and index, and start as soon as their resources are free; a task that becomes ready through
another task of the same moment comes after it.  A task works at the peak while its bucket is not empty, then at the
rate; the bucket loses the work and gains the rate.  A task with two resources takes the longer time of both, and
releases both at its end.  A high-priority task waits for other high-priority tasks only; tasks of normal priority that
are under way on its resource, or were ready before it, end as if it did not exist, and later tasks are delayed by it.

Resources of a group, as cores that share caches and memory, slow each other down while several of them are busy: work
that is bound by memory more than arithmetic.

After a change the simulation resumes from the last snapshot before the first task that the change can affect.
"""
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from .native_backend import SimulatorBackend, native_backend
from .resource_groups import ResourceGroup, ResourceRates, TokenBucket, group_arrays
from .task_block import TaskBlock, format_keys, key_and_index
from .task_table import TaskTable, Timeline, default_stride


class BlockTimes(NamedTuple):
    """The times of a block's tasks, in seconds; arrays of shape (tasks,)."""

    starts: np.ndarray
    ends: np.ndarray


class PathTask(NamedTuple):
    """A task of the critical path."""

    #: The key of the block, and the index of the task in it.
    key: int
    task: int
    #: In seconds.
    start: float
    end: float


class Simulation:
    """A simulation of steps on the same resources.

    - `resources`: tasks name a resource by its number.
    - `stride`: the number of tasks between two snapshots, from which a changed simulation resumes; the default suits
      any step.
    - `backend`: the default is the compiled one.
    - `groups`: resources that slow each other down.

    Raises InputError for a resource without a rate, or an impossible group.  SettingError if the compiled library of
    the planner is missing.
    """

    def __init__(self, resources: Sequence[TokenBucket], stride: Optional[int] = None,
                 backend: Optional[SimulatorBackend] = None, groups: Sequence[ResourceGroup] = ()):
        for number, bucket in enumerate(resources):
            if not bucket.rate > 0 or (bucket.burst > 0 and not bucket.peak > bucket.rate):
                raise InputError('resource %d: %r: give a rate above 0, and with a burst a peak above the rate'
                                 % (number, bucket))
        rate, peak, burst = (np.array([getattr(bucket, name) for bucket in resources], np.float64)
                             for name in ('rate', 'peak', 'burst'))
        self._rates = ResourceRates(rate, peak, burst, *group_arrays(resources, groups))
        self._stride = stride
        self._backend = backend or native_backend()
        self._table: Optional[TaskTable] = None
        self._current: Timeline
        #: The timeline before the last proposal, or one to fill.
        self._spare: Timeline
        self._can_roll_back = False

    @property
    def seconds(self) -> float:
        """The end of the last task."""
        self._checked_table()
        return float(self._current.finish[0])

    def run(self, blocks: Iterable[TaskBlock]) -> float:
        """Simulate all tasks of some blocks; return the end of the last one, in seconds.

        Raises InputError if two blocks have the same key, a resource does not exist, or tasks wait for each other.
        Then the former simulation stays.
        """
        all_blocks = list(blocks)
        self._check(all_blocks)
        if len({block.key for block in all_blocks}) < len(all_blocks):
            raise InputError('blocks: two blocks have the same key: give each block another key')
        table = self._backend.table(all_blocks)
        current, spare = self._new_timelines(table, self._stride or default_stride(table.live_tasks))
        dispatched = self._backend.simulate(table, self._rates, None, current, np.empty(0, np.int64), np.inf, np.inf)
        if dispatched < table.live_tasks:
            raise _cycle_error(table, current)
        self._table, self._current, self._spare, self._can_roll_back = table, current, spare, False
        return float(current.finish[0])

    def propose(self, blocks: Mapping[int, Optional[TaskBlock]], limit: float = np.inf) -> float:
        """Replace some blocks, and simulate again from where that can make a difference.

        - `blocks`: by key: the block that replaces the block of that key, if there is one; None removes it.
        - `limit`: in seconds.  The simulation ends early where its result is known to be above the limit; then
          :meth:`rollback` has to follow, and tasks that wait for each other may go unnoticed.

        Returns what :meth:`run` returns for all current blocks, to the last bit; above `limit`, some lower bound of it
        that is also above the limit.

        Raises InputError as for :meth:`run`, and for a block under the key of another one.  Then nothing has changed.
        """
        table = self._checked_table()
        new_blocks = [block for block in blocks.values() if block is not None]
        self._check(new_blocks)
        for key, block in blocks.items():
            if block is not None and block.key != key:
                raise InputError('block %d: it is given under the key %d: give it under its own key' % (block.key, key))
        replacement = table.replace(blocks)
        if replacement is None:
            table = self._compact(new_blocks)
            replacement = table.replace(blocks)
            assert replacement is not None
        events = self._current.events
        events['position'][replacement.first_new:table.used] = -1
        first_removed = float(events['ready'][replacement.removed].min()) if len(replacement.removed) else np.inf
        dispatched = self._backend.simulate(table, self._rates, self._current, self._spare, replacement.changed,
                                            first_removed, limit)
        if dispatched < table.live_tasks and not self._spare.finish[0] > limit:
            error = _cycle_error(table, self._spare)
            table.rollback()
            self._can_roll_back = False
            raise error
        self._current, self._spare, self._can_roll_back = self._spare, self._current, True
        return float(self._current.finish[0])

    def rollback(self) -> None:
        """Undo the last :meth:`propose`; once for each.

        Raises InputError if there is no proposal to undo.
        """
        table = self._checked_table()
        if not self._can_roll_back:
            raise InputError('rollback: there is no proposal, or it was rolled back already: propose a change first')
        table.rollback()
        self._current, self._spare, self._can_roll_back = self._spare, self._current, False

    def timeline(self) -> Dict[int, BlockTimes]:
        """Return the times of the tasks of each block, by key, in the order in which blocks were added."""
        spans, events = self._checked_table().spans(), self._current.events
        return {key: BlockTimes(events['start'][span].copy(), events['end'][span].copy())
                for key, span in spans.items()}

    def critical_path(self) -> List[PathTask]:
        """Return the tasks that the last end waits for, from the start on; of equal tasks, the first dispatched."""
        table = self._checked_table()
        return _CriticalPath(table, self._current).tasks() if table.live_tasks else []

    def _checked_table(self) -> TaskTable:
        if self._table is None:
            raise InputError('simulation: there are no blocks: run some first')
        return self._table

    def _check(self, blocks: Sequence[TaskBlock]) -> None:
        for block in blocks:
            if block.content.max_resource >= len(self._rates.rate):
                raise InputError('block %d: resource %d does not exist: give a number below %d'
                                 % (block.key, block.content.max_resource, len(self._rates.rate)))

    def _new_timelines(self, table: TaskTable, stride: int) -> Tuple[Timeline, Timeline]:
        capacity, resources = len(table.tasks), len(self._rates.rate)
        return Timeline(capacity, resources, stride), Timeline(capacity, resources, stride)

    def _compact(self, expected: Sequence[TaskBlock]) -> TaskTable:
        """Copy the live blocks to a new table, with room for expected ones; return it."""
        full = self._checked_table()
        live = full.live()
        table = self._backend.table([full.blocks[key] for key in full.spans()], expected)
        current, spare = self._new_timelines(table, self._current.stride)
        current.events[:table.used] = self._current.events[live]
        for name in ('dispatched', 'last_ready', 'states', 'snapshots', 'finish'):
            getattr(current, name)[...] = getattr(self._current, name)
        self._table, self._current, self._spare, self._can_roll_back = table, current, spare, False
        return table


def _cycle_error(table: TaskTable, timeline: Timeline) -> InputError:
    live = table.live()
    missing = live[timeline.events['position'][live] < 0]
    return InputError('blocks %s: %d of their tasks wait for each other: remove the circle of dependencies'
                      % (format_keys(table.tasks['order'][missing]), len(missing)))


class _CriticalPath:
    """A search backwards from the last end."""

    def __init__(self, table: TaskTable, timeline: Timeline):
        self._tasks, self._events = table.tasks, timeline.events
        self._live = table.live()
        sources, targets = table.edges(self._live)
        order = targets.argsort(kind='stable')
        self._sources, self._targets = sources[order], targets[order]
        records = self._tasks[self._live]
        resources = np.concatenate([records['resource'], records['second']])
        users = np.concatenate([self._live, self._live])
        order = np.lexsort((self._events['position'][users], resources))
        #: Tasks by resource, in the order in which they were dispatched.
        self._resources, self._users = resources[order], users[order]

    def tasks(self) -> List[PathTask]:
        events = self._events
        last_tasks = self._live[events['end'][self._live] == events['end'][self._live].max()]
        task: Optional[int] = self._first_dispatched(last_tasks)
        path = []
        while task is not None:
            path.append(PathTask(*key_and_index(int(self._tasks['order'][task])), float(events['start'][task]),
                                 float(events['end'][task])))
            task = self._waited_for(task)
        return path[::-1]

    def _first_dispatched(self, tasks: np.ndarray) -> int:
        return int(tasks[self._events['position'][tasks].argmin()])

    def _waited_for(self, task: int) -> Optional[int]:
        """Return the last task that a task waited for: a predecessor, or the task that used its resource before."""
        events, record = self._events, self._tasks[task]
        if events['start'][task] > events['ready'][task]:
            resources = [resource for resource in (record['resource'], record['second']) if resource >= 0]
            users = np.concatenate([self._earlier_users(resource, task) for resource in resources])
            ends = np.where(events['end'][users] <= events['start'][task], events['end'][users], -1.0)
            # High-priority tasks delay tasks that had not begun: then no task ends just when this one starts.
            return self._first_dispatched(users[ends == ends.max()])
        start, stop = _range_of(self._targets, task)
        sources = self._sources[start:stop]
        last = sources[events['end'][sources] + self._tasks['latency'][sources] == events['ready'][task]]
        return self._first_dispatched(last) if len(last) else None

    def _earlier_users(self, resource: int, task: int) -> np.ndarray:
        """Return the tasks that were dispatched before a task on a resource."""
        start, stop = _range_of(self._resources, resource)
        users = self._users[start:stop]
        return users[:np.searchsorted(self._events['position'][users], self._events['position'][task])]


def _range_of(sorted_numbers: np.ndarray, number: int) -> np.ndarray:
    """Return the start and the end of a number's range; it is cast, because NumPy would copy the whole array."""
    return np.searchsorted(sorted_numbers, np.array([number, number + 1], sorted_numbers.dtype))
