"""The resources that a cluster has, and the tasks that use them."""
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..cluster.cluster_spec import Cluster
from ..profiling.core_benchmark import KernelTimes
from ..simulator.resource_groups import ResourceGroup
from ..simulator.task_block import TASK, BlockContent, Dependencies, table_of
from ..simulator.token_bucket import TokenBucket
from .redistribution import Transfers

#: What compiled code makes tasks for; their numbers are less than the other one.
KINDS = ('forward', 'backward', 'exchange', 'sum', 'update')
_MOST_KINDS = 16
#: What sums of many numbers may be too large by.
_ROUNDED = 1 - 1e-9


class Machine:
    """Resources of a cluster by number, and who uses which.

    Parameters
    ----------
    cluster : Cluster
    reference : KernelTimes, optional
        Of the core that operators were timed on; where the cluster has its own, speeds are beside that.

    Attributes
    ----------
    resources : list of TokenBucket
    core : numpy.ndarray of int
        By rank.
    host : numpy.ndarray of int
        By rank.
    groups : list of ResourceGroup
        Cores of a host, which slow each other down while several of them compute.
    speed : numpy.ndarray of float
        By rank: how fast its core computes while no other one of its host does.
    shared : numpy.ndarray of float
        By rank: how fast that is while all cores of its host compute, as they did when costs were measured.
    up, down : numpy.ndarray of int
        By host.
    names : list of str
        Of the resources.
    rates, bursts : numpy.ndarray of float
        Of the resources.
    """

    def __init__(self, cluster: Cluster, reference: Optional[KernelTimes] = None):
        self.cluster = cluster
        self.ranks, self.hosts = cluster.ranks, len(cluster.hosts)
        self.resources: List[TokenBucket] = []
        self.names: List[str] = []
        self.groups: List[ResourceGroup] = []
        core, host_of, speed, shared = [], [], [], []
        faster = 1.0
        if reference is not None and cluster.reference is not None:
            faster = KernelTimes(*cluster.reference).speed_relative_to(reference)
        for number, host in enumerate(cluster.hosts):
            count = max(1, min(host.ranks, int(host.cores)))
            # A share of a core by quota; whole cores are taken in turn by the ranks that share them.
            share = min(1.0, host.cores / count)
            bucket = TokenBucket(share, 1.0, host.burst_s) if host.burst_s and share < 1 else TokenBucket(share)
            cores = [self._add(bucket, '%s core %d' % (host.name, at)) for at in range(count)]
            speeds = [host.speed] * count if bucket.burst else host.speeds_of(count)
            if speeds[-1] < speeds[0]:
                self.groups.append(ResourceGroup(tuple(cores), tuple(one / speeds[0] for one in speeds)))
            for rank in range(host.ranks):
                core.append(cores[rank * count // host.ranks])
                host_of.append(number)
                speed.append(faster * speeds[0])
                shared.append(speeds[-1] / speeds[0])
        self.core, self.host, self.speed = np.array(core), np.array(host_of), np.array(speed)
        self.shared = np.array(shared)
        self.up = np.array([self._add(cluster.link, '%s sends' % host.name) for host in cluster.hosts])
        self.down = np.array([self._add(cluster.link, '%s receives' % host.name) for host in cluster.hosts])
        self.rates, self.bursts = np.array([(one.rate, one.burst) for one in self.resources]).T

    def core_of(self, rank: int) -> int:
        """The number of a rank's core; -1 for none's."""
        return int(self.core[rank]) if rank >= 0 else -1

    def _add(self, bucket: TokenBucket, name: str) -> int:
        self.resources.append(bucket)
        self.names.append(name)
        return len(self.resources) - 1


class TaskBuilder:
    """Tasks that belong together, as they are put into a block of the simulation."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.resource: List[int] = []
        self.second: List[int] = []
        self.work: List[float] = []
        self.latency: List[float] = []
        self.express: List[bool] = []
        self._kinds: List[str] = []
        self._ranks: List[int] = []
        self.inner: List[Tuple[int, int]] = []

    def records(self) -> Tuple[np.ndarray, np.ndarray]:
        """As blocks have them: tasks, and their successors, those of the first one first."""
        tasks = np.zeros(len(self), TASK)
        for name in ('resource', 'second', 'work', 'latency', 'express'):
            tasks[name] = getattr(self, name)
        tasks['order'] = np.arange(len(self))
        inner = np.array(self.inner, np.int32).reshape(-1, 2)
        ends = np.bincount(inner[:, 0], minlength=len(self)).cumsum()
        tasks['inner_end'] = ends
        tasks['inner'][1:] = ends[:-1]
        return tasks, inner[inner[:, 0].argsort(kind='stable'), 1]

    def __len__(self) -> int:
        return len(self.work)

    def kind(self, at: int) -> str:
        """What a task is for."""
        return self._kinds[at]

    def rank(self, at: int) -> int:
        """Whose it is; -1 for nobody's."""
        return self._ranks[at]

    def add(self, kind: str, rank: int, resource: int, work: float, second: int = -1, latency: float = 0.0,
            express: bool = False, after: Sequence[int] = ()) -> int:
        """A task behind others of these; its index."""
        self.resource.append(resource)
        self.second.append(second)
        self.work.append(work)
        self.latency.append(latency)
        self.express.append(express)
        self._kinds.append(kind)
        self._ranks.append(rank)
        self.inner += [(one, len(self.work) - 1) for one in after]
        return len(self.work) - 1

    def compute(self, kind: str, rank: int, seconds: float, after: Sequence[int] = ()) -> int:
        """A rank's core is busy for so long, were it the machine of the profiles."""
        return self.add(kind, rank, int(self.machine.core[rank]), seconds / float(self.machine.speed[rank]),
                        after=after)

    def spend(self, kind: str, rank: int, seconds: float, latency: float = 0.0, after: Sequence[int] = ()) -> int:
        """A rank's core is busy for so long, by the costs of the cluster, all others of its host busy, too."""
        return self.add(kind, rank, int(self.machine.core[rank]), float(seconds) * float(self.machine.shared[rank]),
                        latency=latency, after=after)

    def exchange(self, moved: Transfers, itemsize: int, givers: Dict[int, Any], takers: Dict[int, Any],
                 cost: str = 'exchange', kind: str = 'exchange', express: bool = True
                 ) -> Tuple[Dict[int, int], Dict[int, int]]:
        """Ranks give, what they give moves, ranks take: the first and the last task of each.

        `givers` and `takers` are who has an array to give or to take, by rank the task before, None for none.
        """
        machine = self.machine
        own = machine.cluster.costs[cost]
        size = moved.elements * itemsize
        ranks = machine.ranks

        def seconds(side: np.ndarray) -> np.ndarray:
            return (own.fixed_s / 2 + own.per_item_s * np.bincount(side, None, ranks)
                    + own.per_byte_s * np.bincount(side, size, ranks))
        gives, takes = seconds(moved.sources), seconds(moved.targets)
        give = {rank: self.spend(kind, rank, gives[rank], own.latency_s, () if before is None else (before,))
                for rank, before in givers.items()}
        take = {rank: self.spend(kind, rank, takes[rank], after=[one for one in (before, give.get(rank))
                                                                 if one is not None])
                for rank, before in takers.items()}
        self._move(moved, size, give, take, kind, express)
        return give, take

    def _move(self, moved: Transfers, size: np.ndarray, give: Dict[int, int], take: Dict[int, int], kind: str,
              express: bool) -> None:
        machine, cluster = self.machine, self.machine.cluster
        if len(moved) > 8 * machine.ranks:
            self._move_by_hosts(moved, size, give, take, kind, express)
            return
        # As senders go about it: each begins with the next rank.  Links share what they carry: no message waits until
        # both have nothing else, and it has arrived when both are done with it.
        order = np.lexsort((moved.sources, (moved.targets - moved.sources) % machine.ranks))
        for source, target, count in zip(moved.sources[order].tolist(), moved.targets[order].tolist(),
                                         size[order].tolist()):
            here, there = int(machine.host[source]), int(machine.host[target])
            if here == there:
                found = [self.add(kind, source, -1, 0.0, after=[give[source]],
                                  latency=cluster.memory_latency_s + count / cluster.memory.rate)]
            else:
                ways = (source, machine.up[here]), (target, machine.down[there])
                found = [self.add(kind, rank, int(way), count, -1, cluster.link_latency_s, express, [give[source]])
                         for rank, way in ways]
            self.inner += [(at, take[target]) for at in found]

    def _move_by_hosts(self, moved: Transfers, size: np.ndarray, give: Dict[int, int], take: Dict[int, int], kind: str,
                       express: bool) -> None:
        """Of very many messages, all that a host sends is one task, and all that it receives another."""
        machine, cluster = self.machine, self.machine.cluster
        here, there = machine.host[moved.sources], machine.host[moved.targets]
        remote = here != there
        inside = np.bincount(here[~remote], size[~remote], machine.hosts)
        sent = np.bincount(here[remote], size[remote], machine.hosts)
        got = np.bincount(there[remote], size[remote], machine.hosts)
        given, arrived = self.add(kind, -1, -1, 0.0), self.add(kind, -1, -1, 0.0)
        for host in range(machine.hosts):
            before = [give[rank] for rank in sorted(set(moved.sources[here == host].tolist()))]
            after = [take[rank] for rank in sorted(set(moved.targets[there == host].tolist()))]
            if sent[host]:
                at = self.add(kind, -1, int(machine.up[host]), float(sent[host]), -1, cluster.link_latency_s, express,
                              before)
                self.inner += [(one, given) for one in before] + [(at, arrived)]
            if inside[host]:
                at = self.add(kind, -1, -1, 0.0, after=before,
                              latency=cluster.memory_latency_s + float(inside[host]) / cluster.memory.rate)
                self.inner += [(at, one) for one in after]
            if got[host]:
                at = self.add(kind, -1, int(machine.down[host]), float(got[host]), -1, cluster.link_latency_s, express,
                              [given])
                self.inner += [way for one in after for way in ((at, one), (arrived, one))]


class Endpoints:
    """Tasks by unit and rank, as arrays of equal length.

    Attributes
    ----------
    units, ranks, tasks : numpy.ndarray of int32
    """

    __slots__ = ('units', 'ranks', 'tasks', '_waits')

    def __init__(self, units: np.ndarray, ranks: np.ndarray, tasks: np.ndarray):
        self.units, self.ranks, self.tasks = units, ranks, tasks
        self._waits: Optional[Dependencies] = None

    @property
    def waits(self) -> Dependencies:
        """Each for what a rank does in another block."""
        if self._waits is None:
            self._waits = Dependencies(self.tasks, self.ranks)
        return self._waits

    @classmethod
    def by_rank(cls, found: Dict[int, int]) -> 'Endpoints':
        """Of a single unit, by rank."""
        return cls(np.zeros(len(found), np.int32), np.array(list(found), np.int32),
                   np.array(list(found.values()), np.int32))

    def of(self, unit: int) -> 'Endpoints':
        """Those of one unit."""
        mine = self.units == unit
        return Endpoints(self.units[mine], self.ranks[mine], self.tasks[mine])


class TaskSubgraph:
    """Tasks; those that others have to be before, and those that come out.

    Attributes
    ----------
    tasks : TaskBuilder or TaskView
    content : BlockContent
        Of blocks that have these tasks; its ports are the units' numbers times that of ranks, and ranks.
    first, last : Endpoints
    """

    __slots__ = ('tasks', 'content', 'first', 'last')

    def __init__(self, tasks: Any, first: Endpoints, last: Endpoints):
        self.tasks, self.first, self.last = tasks, first, last
        records, targets = tasks.records()
        self.content = BlockContent(records, targets, table_of(last.units * tasks.machine.ranks + last.ranks, last.tasks))

    @classmethod
    def of(cls, tasks: 'TaskView', content: BlockContent, first: Endpoints, last: Endpoints) -> 'TaskSubgraph':
        """Of compiled code's making."""
        made = cls.__new__(cls)
        made.tasks, made.content, made.first, made.last = tasks, content, first, last
        return made

    def working(self, work: np.ndarray) -> 'TaskSubgraph':
        """The same tasks with other work, of compiled code's making."""
        content = self.content.working(work)
        return TaskSubgraph.of(TaskView(self.tasks.machine, content.tasks, content.targets), content, self.first, self.last)


class Load:
    """What each resource has to do, in its units; without express tasks, which are done beside others."""

    def __init__(self, machine: Machine, work: Optional[np.ndarray] = None):
        self._machine = machine
        self.work = np.zeros(len(machine.resources)) if work is None else work

    def plus(self, works: Sequence[np.ndarray], times: int = 1) -> 'Load':
        """With more, or with a number of `times` below zero with less, by resource."""
        return Load(self._machine, self.work + times * np.sum(works, axis=0)) if works else self

    def least_seconds(self) -> float:
        """What it takes at least: what buckets hold goes at once, the rest as they fill up."""
        return float(((self.work - self._machine.bursts) / self._machine.rates).max()) * _ROUNDED


class TaskView:
    """Tasks that compiled code has made, as :class:`Tasks` shows its own."""

    __slots__ = ('machine', '_tasks', '_targets')

    def __init__(self, machine: Machine, tasks: np.ndarray, targets: np.ndarray):
        self.machine, self._tasks, self._targets = machine, tasks, targets

    def records(self) -> Tuple[np.ndarray, np.ndarray]:
        """As :meth:`Tasks.records`."""
        return self._tasks, self._targets

    def kind(self, at: int) -> str:
        """What a task is for."""
        return KINDS[self._tasks['kind_code'].item(at) % _MOST_KINDS]

    def rank(self, at: int) -> int:
        """Whose it is; -1 for nobody's."""
        return self._tasks['kind_code'].item(at) // _MOST_KINDS - 1

    @property
    def resource(self) -> np.ndarray:
        """As a block has it."""
        return self._tasks['resource']

    @property
    def work(self) -> np.ndarray:
        """As a block has it."""
        return self._tasks['work']


class ComputedParts:
    """Cores of ranks that are busy: what is the same however long they are."""

    def __init__(self, machine: Machine, kind: str, ranks: np.ndarray):
        self._speed = machine.speed[ranks]
        tasks = np.zeros(len(ranks), TASK)
        tasks['resource'], tasks['second'], tasks['order'] = machine.core[ranks], -1, np.arange(len(ranks))
        tasks['kind_code'] = kind_code(kind) + _MOST_KINDS * (ranks + 1)
        ends = Endpoints(np.zeros(len(ranks), np.int32), ranks, np.arange(len(ranks), dtype=np.int32))
        self._core = TaskSubgraph(TaskView(machine, tasks, np.empty(0, np.int32)), ends, ends)

    def taking(self, seconds: np.ndarray) -> TaskSubgraph:
        """Busy for so long, were they cores of the machine of the profiles."""
        return self._core.working(seconds / self._speed)


def kind_code(kind: str) -> int:
    """What stands in a task for a kind."""
    return KINDS.index(kind)
