"""Subgraphs of tasks that use the resources of a machine."""
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..cluster.machine_model import Machine
from ..simulator.task_block import TASK, BlockContent, Dependencies, output_table

#: The kinds of tasks that compiled code makes; the position of each is its code.
NATIVE_KINDS = ('forward', 'backward', 'redistribution', 'sum', 'update')
#: A task's `kind_code` is its kind, and this number times its rank, counted from 1.
_MAX_KINDS = 16
#: Sums of many numbers are rounded: a lower bound from such a sum is made smaller by this factor.
_ROUNDING = 1 - 1e-9


class TaskBuilder:
    """Tasks of a subgraph, added one by one."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.resource: List[int] = []
        self.second: List[int] = []
        self.work: List[float] = []
        self.latency: List[float] = []
        self.high_priority: List[bool] = []
        self.edges: List[Tuple[int, int]] = []
        self._kinds: List[str] = []
        self._ranks: List[int] = []

    def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return the tasks as an array of TASK, and their successors, those of the first task first."""
        tasks = np.zeros(len(self), TASK)
        for name in ('resource', 'second', 'work', 'latency', 'high_priority'):
            tasks[name] = getattr(self, name)
        tasks['order'] = np.arange(len(self))
        edges = np.array(self.edges, np.int32).reshape(-1, 2)
        ends = np.bincount(edges[:, 0], minlength=len(self)).cumsum()
        tasks['inner_end'] = ends
        tasks['inner'][1:] = ends[:-1]
        return tasks, edges[edges[:, 0].argsort(kind='stable'), 1]

    def __len__(self) -> int:
        return len(self.work)

    def kind(self, task: int) -> str:
        """Return the kind of a task."""
        return self._kinds[task]

    def rank(self, task: int) -> int:
        """Return the rank of a task; -1 for none."""
        return self._ranks[task]

    def add(self, kind: str, rank: int, resource: int, work: float, second: int = -1, latency: float = 0.0,
            after: Sequence[int] = ()) -> int:
        """Add a task that comes after some others; return its number."""
        self.resource.append(resource)
        self.second.append(second)
        self.work.append(work)
        self.latency.append(latency)
        self.high_priority.append(False)
        self._kinds.append(kind)
        self._ranks.append(rank)
        task = len(self.work) - 1
        self.edges += [(before, task) for before in after]
        return task

    def spend(self, kind: str, rank: int, seconds: float, latency: float = 0.0, after: Sequence[int] = ()) -> int:
        """Add a task of a rank's core, given its duration while all cores of the host compute, as costs state it."""
        return self.add(kind, rank, int(self.machine.core[rank]), float(seconds) * float(self.machine.shared[rank]),
                        latency=latency, after=after)


class Endpoints:
    """The entries or the exits of a subgraph by unit and rank, in arrays of equal length.

    - `units`, `ranks`, `tasks`: numpy.ndarray of int32
    """

    __slots__ = ('units', 'ranks', 'tasks', '_dependencies')

    def __init__(self, units: np.ndarray, ranks: np.ndarray, tasks: np.ndarray):
        self.units, self.ranks, self.tasks = units, ranks, tasks
        self._dependencies: Optional[Dependencies] = None

    @property
    def dependencies(self) -> Dependencies:
        """The dependency of each task on the output of its rank in another block."""
        if self._dependencies is None:
            self._dependencies = Dependencies(self.tasks, self.ranks)
        return self._dependencies

    @classmethod
    def by_rank(cls, tasks: Dict[int, int]) -> 'Endpoints':
        """Return the endpoints of a single unit, given the task of each rank."""
        return cls(np.zeros(len(tasks), np.int32), np.array(list(tasks), np.int32),
                   np.array(list(tasks.values()), np.int32))

    def of_unit(self, unit: int) -> 'Endpoints':
        """Return the endpoints of one unit."""
        is_of_unit = self.units == unit
        return Endpoints(self.units[is_of_unit], self.ranks[is_of_unit], self.tasks[is_of_unit])


class TaskSubgraph:
    """A subgraph of tasks, with its entries and its exits.

    - `content`: the content of blocks with these tasks; the output of an exit is its unit times the number of ranks,
      and its rank.
    - `first`: the entries, which wait for other blocks.
    - `last`: the exits, which other blocks wait for.
    """

    __slots__ = ('tasks', 'content', 'first', 'last')

    def __init__(self, tasks: Any, first: Endpoints, last: Endpoints):
        self.tasks, self.first, self.last = tasks, first, last
        records, successors = tasks.arrays()
        output_tasks = output_table(last.units * tasks.machine.ranks + last.ranks, last.tasks)
        self.content = BlockContent(records, successors, output_tasks)

    @classmethod
    def from_content(cls, tasks: 'TaskView', content: BlockContent, first: Endpoints, last: Endpoints
                     ) -> 'TaskSubgraph':
        """Return a subgraph whose content compiled code has made."""
        subgraph = cls.__new__(cls)
        subgraph.tasks, subgraph.content, subgraph.first, subgraph.last = tasks, content, first, last
        return subgraph

    def with_work(self, work: np.ndarray, arithmetic: Optional[np.ndarray] = None) -> 'TaskSubgraph':
        """Return the same tasks with other work, see :meth:`BlockContent.with_work`; only for a :class:`TaskView`."""
        content = self.content.with_work(work, arithmetic)
        view = TaskView(self.tasks.machine, content.tasks, content.successors)
        return TaskSubgraph.from_content(view, content, self.first, self.last)


class ResourceLoad:
    """The work of each resource, in its units, without high-priority tasks, which delay no others."""

    def __init__(self, machine: Machine, work: Optional[np.ndarray] = None):
        self._machine = machine
        self.work = np.zeros(len(machine.resources)) if work is None else work

    def plus(self, works: Sequence[np.ndarray], times: int = 1) -> 'ResourceLoad':
        """Return the load with more work by resource, some times; with less for a number of `times` below zero."""
        return ResourceLoad(self._machine, self.work + times * np.sum(works, axis=0)) if works else self

    def least_seconds(self) -> float:
        """Return a lower bound of the time for the work: full buckets are spent at once, the rest at the rate."""
        return float(((self.work - self._machine.bursts) / self._machine.rates).max()) * _ROUNDING


class TaskView:
    """A view of tasks that compiled code has made, with the methods of a :class:`TaskBuilder`."""

    __slots__ = ('machine', '_tasks', '_successors')

    def __init__(self, machine: Machine, tasks: np.ndarray, successors: np.ndarray):
        self.machine, self._tasks, self._successors = machine, tasks, successors

    def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return the tasks and their successors, as :meth:`TaskBuilder.arrays`."""
        return self._tasks, self._successors

    def kind(self, task: int) -> str:
        """Return the kind of a task."""
        return NATIVE_KINDS[self._tasks['kind_code'].item(task) % _MAX_KINDS]

    def rank(self, task: int) -> int:
        """Return the rank of a task; -1 for none."""
        return self._tasks['kind_code'].item(task) // _MAX_KINDS - 1

    @property
    def resource(self) -> np.ndarray:
        """The resource of each task; -1 for none."""
        return self._tasks['resource']

    @property
    def work(self) -> np.ndarray:
        """The work of each task."""
        return self._tasks['work']


class ComputeTasks:
    """Subgraphs of one task on each of some ranks, which differ in the duration only."""

    def __init__(self, machine: Machine, kind: str, ranks: np.ndarray):
        self._speed = machine.speed[ranks]
        tasks = np.zeros(len(ranks), TASK)
        tasks['resource'], tasks['second'], tasks['order'] = machine.core[ranks], -1, np.arange(len(ranks))
        tasks['kind_code'] = kind_code(kind) + _MAX_KINDS * (ranks + 1)
        endpoints = Endpoints(np.zeros(len(ranks), np.int32), ranks, np.arange(len(ranks), dtype=np.int32))
        self._subgraph = TaskSubgraph(TaskView(machine, tasks, np.empty(0, np.int32)), endpoints, endpoints)

    def with_seconds(self, seconds: np.ndarray, arithmetic: Optional[np.ndarray] = None) -> TaskSubgraph:
        """Return the tasks, given durations on the core that operators were timed on, and shares of arithmetic."""
        return self._subgraph.with_work(seconds / self._speed, arithmetic)


def kind_code(kind: str) -> int:
    """Return the code of a kind of tasks for compiled code."""
    return NATIVE_KINDS.index(kind)
