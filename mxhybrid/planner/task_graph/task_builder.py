"""Subgraphs of tasks that use the resources of a machine."""
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..cluster.machine_model import Machine
from ..simulator.task_block import TASK, BlockContent, Dependencies, output_table

#: The kinds of tasks; the position of each is its code.
KINDS = ('forward', 'backward', 'redistribution', 'sum', 'gather', 'row_sum', 'push', 'pull', 'accumulate', 'update',
         'step')
#: A task's `kind_code` is the code of its kind, and this number times its rank, counted from 1; as in
#: ``simulator/src/subgraph_builder.h``.
_MAX_KINDS = 16
#: The fields of TASK that a :class:`TaskBuilder` knows when a task is added.
_FIELDS = 'resource', 'second', 'work', 'latency', 'kind_code'


class TaskBuilder:
    """Tasks of a subgraph, added one by one."""

    def __init__(self, machine: Machine):
        self.machine = machine
        #: By task, the values of :data:`_FIELDS`.
        self._tasks: List[Tuple[float, ...]] = []
        self.edges: List[Tuple[int, int]] = []

    def subgraph(self, first: 'Endpoints', last: 'Endpoints') -> 'TaskSubgraph':
        """Return the subgraph of the tasks, given its entries and its exits."""
        count = len(self._tasks)
        tasks = np.zeros(count, TASK)
        for name, values in zip(_FIELDS, zip(*self._tasks)):
            tasks[name] = values
        tasks['order'] = np.arange(count)
        edges = np.array(self.edges, np.int32).reshape(-1, 2)
        ends = np.bincount(edges[:, 0], minlength=count).cumsum()
        tasks['inner_end'] = ends
        tasks['inner'][1:] = ends[:-1]
        successors = edges[edges[:, 0].argsort(kind='stable'), 1]
        output_tasks = output_table(last.units * self.machine.ranks + last.ranks, last.tasks)
        return TaskSubgraph(BlockContent(tasks, successors, output_tasks), first, last)

    def add(self, kind: str, rank: int, resource: int, work: float, second: int = -1, latency: float = 0.0,
            after: Sequence[int] = ()) -> int:
        """Add a task that comes after some others; return its number."""
        task = len(self._tasks)
        self._tasks.append((resource, second, work, latency, kind_code(kind) + _MAX_KINDS * (rank + 1)))
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


class TaskSubgraph(NamedTuple):
    """A subgraph of tasks."""

    #: The content of blocks with these tasks; the output of an exit is its unit times the number of ranks, plus its
    #: rank.
    content: BlockContent
    #: The entries, which wait for other blocks.
    first: Endpoints
    #: The exits, which other blocks wait for.
    last: Endpoints


def compute_tasks(machine: Machine, kind: str, ranks: Sequence[int]) -> TaskSubgraph:
    """Return a task without work on each of some ranks."""
    tasks = TaskBuilder(machine)
    endpoints = Endpoints.by_rank({rank: tasks.spend(kind, rank, 0.0) for rank in ranks})
    return tasks.subgraph(endpoints, endpoints)


def kind_code(kind: str) -> int:
    """Return the code of a kind of tasks."""
    return KINDS.index(kind)


def kind_and_rank(code: int) -> Tuple[str, int]:
    """Return the kind and the rank, -1 for none, of a task with a `kind_code`."""
    return KINDS[code % _MAX_KINDS], code // _MAX_KINDS - 1
