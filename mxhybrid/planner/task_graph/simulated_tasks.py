"""The tasks of a simulated step for reports: the rank or link of each task, its start and its end."""
import dataclasses
import heapq
from typing import Dict, List, NamedTuple, Sequence, Tuple, Union

#: A rank, or a link by its name.
Where = Union[int, str]
#: The label of the rows of dynamic tables, which are outside of the network.
TABLES_LABEL = 'dynamic tables'


@dataclasses.dataclass(frozen=True)
class SimulatedTask:
    """A task of a simulated step."""

    #: An operator, a weight or a table.
    label: str
    #: The rank that does it, or the name of the link that carries it.
    where: Where
    #: Seconds from the start of the step.
    start_s: float
    end_s: float
    #: One of :data:`TASK_KINDS`.
    kind: str
    #: The bytes that it moves.
    size: int = 0


class TaskKind(NamedTuple):
    """The names of a kind of tasks in reports."""

    #: In traces, with the label; traces of a job have the same names.
    name: str
    #: In traces.
    category: str
    #: Kinds of one group are reported together.
    group: str


#: By kind.  Kinds of transfers are also kinds of costs in a cluster file.
TASK_KINDS = {
    'forward': TaskKind('forward %s', 'compute', 'compute'),
    'backward': TaskKind('backward %s', 'compute', 'compute'),
    'redistribution': TaskKind('redistribution %s', 'redistribution', 'redistribution'),
    'redistribution_back': TaskKind('redistribution %s, backward', 'redistribution', 'redistribution'),
    'redistribution_within': TaskKind('redistribution %s', 'redistribution', 'within'),
    'redistribution_within_back': TaskKind('redistribution %s, backward', 'redistribution', 'within'),
    'sum': TaskKind('allreduce %s', 'allreduce', 'sum'),
    'group_sum': TaskKind('allreduce %s', 'allreduce', 'sum'),
    'gather': TaskKind('allgather %s', 'allreduce', 'gather'),
    'row_sum': TaskKind('allreduce rows of %s', 'allreduce', 'row_sum'),
    'push': TaskKind('push %s', 'push', 'push'),
    'pull': TaskKind('rows of %s', 'servers', 'pull'),
    'accumulate': TaskKind('add gradients of %s', 'compute', 'accumulate'),
    'update': TaskKind('update %s', 'update', 'update'),
    'step': TaskKind('%s', 'step', 'step'),
}

#: The names of groups of kinds.
TASK_GROUPS = {'compute': 'computing', 'redistribution': 'redistributions',
               'within': 'redistributions within operators',
               'sum': 'sums of gradients', 'gather': 'gathers of weights', 'row_sum': 'sums of rows',
               'push': 'pushed rows', 'pull': 'pulled rows',
               'accumulate': 'adding gradients of micro-batches', 'update': 'updates', 'step': 'overhead of the store'}


def by_place(tasks: Sequence[SimulatedTask]) -> Dict[Where, List[SimulatedTask]]:
    """Return the tasks of each rank, then of each link by its name, in order of their starts."""
    tasks_of: Dict[Where, List[SimulatedTask]] = {}
    for task in sorted(tasks, key=lambda task: (isinstance(task.where, str), task.where, task.start_s, task.end_s)):
        tasks_of.setdefault(task.where, []).append(task)
    return tasks_of


def in_lanes(tasks: Sequence[SimulatedTask]) -> List[Tuple[int, SimulatedTask]]:
    """Return tasks, given in order of their starts, each with the number of a lane in which no two overlap.

    A task that overtakes others is in another lane than they.
    """
    tasks_with_lanes = []
    busy: List[Tuple[float, int]] = []
    free: List[int] = []
    lanes = 0
    for task in tasks:
        while busy and busy[0][0] <= task.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, lanes)
            lanes += 1
        lane = heapq.heappop(free)
        heapq.heappush(busy, (task.end_s, lane))
        tasks_with_lanes.append((lane, task))
    return tasks_with_lanes
