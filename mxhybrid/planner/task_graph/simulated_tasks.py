"""A simulated step as a list of tasks: what took which rank or link, from when until when."""
import dataclasses
import heapq
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

#: A rank, or a link by its name.
Where = Union[int, str]


@dataclasses.dataclass(frozen=True)
class SimulatedTask:
    """Of a simulated step.

    Attributes
    ----------
    label : str
        Of what: an operator, a weight or a table.
    where : int or str
        The rank that does it, or the name of the link that carries it.
    start_s, end_s : float
        Since the step's begin.
    kind : str
        One of :data:`TASK_KINDS`.
    size : int
        Bytes that it moves.
    """

    label: str
    where: Where
    start_s: float
    end_s: float
    kind: str
    size: int = 0


class TaskKind(NamedTuple):
    """How a kind of task is shown."""

    #: Its name in traces, with the label; those of a job say the same.
    name: str
    #: Its category in traces.
    category: str
    #: Which kinds are told together.
    group: str


#: By name.  Those of transfers are also the kinds of costs of a cluster.
TASK_KINDS = {
    'forward': TaskKind('forward %s', 'compute', 'compute'),
    'backward': TaskKind('backward %s', 'compute', 'compute'),
    'exchange': TaskKind('exchange %s', 'exchange', 'exchange'),
    'exchange_back': TaskKind('exchange %s, backward', 'exchange', 'exchange'),
    'exchange_within': TaskKind('exchange %s', 'exchange', 'within'),
    'exchange_within_back': TaskKind('exchange %s, backward', 'exchange', 'within'),
    'sum': TaskKind('allreduce %s', 'allreduce', 'sum'),
    'group_sum': TaskKind('allreduce %s', 'allreduce', 'sum'),
    'row_sum': TaskKind('allreduce rows of %s', 'allreduce', 'row_sum'),
    'push': TaskKind('push %s', 'push', 'push'),
    'pull': TaskKind('rows of %s', 'servers', 'pull'),
    'merge': TaskKind('merge %s', 'merge', 'merge'),
    'update': TaskKind('update %s', 'update', 'update'),
    'step': TaskKind('%s', 'step', 'step'),
}

#: Groups of kinds, and what they are called.
TASK_GROUPS = {'compute': 'computing', 'exchange': 'exchanges', 'within': 'exchanges within operators',
               'sum': 'sums of gradients', 'row_sum': 'sums of rows', 'push': 'pushed rows', 'pull': 'pulled rows',
               'merge': 'updates in servers', 'update': 'updates', 'step': 'overhead of the store'}


def places_of(tasks: Iterable[SimulatedTask]) -> List[Where]:
    """Ranks in their order, then links by name."""
    found = {task.where for task in tasks}
    return sorted(found, key=lambda where: (isinstance(where, str), where))


def by_place(tasks: Sequence[SimulatedTask]) -> Dict[Where, List[SimulatedTask]]:
    """The tasks of each place in order of their starts."""
    found: Dict[Where, List[SimulatedTask]] = {where: [] for where in places_of(tasks)}
    for task in sorted(tasks, key=lambda one: (one.start_s, one.end_s)):
        found[task.where].append(task)
    return found


def in_lanes(tasks: Sequence[SimulatedTask]) -> List[Tuple[int, SimulatedTask]]:
    """Tasks, in order of their starts, each with a lane in which none overlaps another: a task that overtakes what
    waits is in a lane beside it.
    """
    found = []
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
        found.append((lane, task))
    return found
