"""A training step as tasks on resources, simulated: when each starts and ends, and what the last end waits for.

A resource is a :class:`~.TokenBucket`, and does one task at a time, first come first served.  Tasks come in blocks
(:class:`~.task_block.TaskBlock`), which are changed as wholes::

    simulation = Simulation([TokenBucket(1.0), TokenBucket(1e8)])
    seconds = simulation.run(blocks)
    other = simulation.change({7: another, 8: None})
    if other > seconds:
        simulation.undo()

A task is ready when all that it comes after have ended, and their latency has passed.  Ready tasks are taken in order
of that moment, then of key and index, and start as soon as their resources are free; at equal moments one that gets
ready only by another one comes after that.  What a task takes: while its bucket is not empty, it works at the peak,
then at the rate; the bucket loses what was worked and gains the rate.  A task with two resources takes the longer time
of both, and gives both back at its end.  An express task waits for other express ones only; what others still do on its
resource, or will do after they were ready before, ends as if it were not there, and what comes later is put off by it.

Resources of a group, as cores that share caches and memory, slow each other down while several of them are busy.

After a change only what comes later than the first task that it can touch is simulated again.
"""
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...base.errors import InputError
from .backend import Engine, fastest_engine
from .event_loop import Rates
from .resource_groups import ResourceGroup, grouped
from .task_block import TaskBlock, key_and_index, keys_in_words
from .task_table import TaskTable
from .timeline import Timeline, default_stride
from .token_bucket import TokenBucket

#: Why a task started when it did, see :class:`PathTask`.
START, AFTER, RESOURCE = 'start', 'after', 'resource'


class Times(NamedTuple):
    """Of the tasks of a block, in seconds; arrays of shape (tasks,)."""

    starts: np.ndarray
    ends: np.ndarray


class PathTask(NamedTuple):
    """A task of the critical path.

    Attributes
    ----------
    key, task : int
        The block's, and the index in it.
    start, end : float
        In seconds.
    why : str
        What it waited for to the last: ``'after'`` the task before it in the path, which it comes after;
        ``'resource'``, which the task before it in the path had; ``'start'``, for nothing.
    """

    key: int
    task: int
    start: float
    end: float
    why: str


class Simulation:
    """Of steps on the same resources.

    Parameters
    ----------
    resources : sequence of TokenBucket
        Tasks have their numbers.
    stride : int, optional
        Of how many tasks there is a point from which a change may go on; the default suits any step.
    engine : Engine, optional
        What keeps and takes the tasks; the default is the fastest there is.
    groups : sequence of ResourceGroup, optional
        Of resources that slow each other down.

    Raises
    ------
    InputError
        For resources that never end what they do, and groups that cannot be.
    """

    def __init__(self, resources: Sequence[TokenBucket], stride: Optional[int] = None, engine: Optional[Engine] = None,
                 groups: Sequence[ResourceGroup] = ()):
        for number, one in enumerate(resources):
            if not one.rate > 0 or (one.burst > 0 and not one.peak > one.rate):
                raise InputError('resource %d: %r: give a rate above 0, and a peak above that with a burst'
                                 % (number, one))
        rate, peak, burst = (np.array([getattr(one, name) for one in resources], np.float64)
                             for name in ('rate', 'peak', 'burst'))
        self._rates = Rates(rate, peak, burst, *grouped(resources, groups))
        self._stride = stride
        self._engine = engine or fastest_engine()
        self._slots: Optional[TaskTable] = None
        self._now: Timeline
        self._spare: Timeline
        self._can_undo = False

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self._slots.live_tasks if self._slots else 0

    @property
    def seconds(self) -> float:
        """Until the last end."""
        self._get_table()
        return float(self._now.finish[0])

    def run(self, blocks: Iterable[TaskBlock]) -> float:
        """Simulate all tasks of some blocks.

        Returns
        -------
        float
            Seconds until the last of them ends.

        Raises
        ------
        InputError
            Where two blocks have a key, a resource is not there, or tasks wait for each other; what was before stays.
        """
        all_blocks = list(blocks)
        self._check(all_blocks)
        if len({block.key for block in all_blocks}) < len(all_blocks):
            raise InputError('blocks: two have the same key')
        slots = self._engine.slots(all_blocks)
        now, spare = self._timelines(slots, self._stride or default_stride(slots.live_tasks))
        taken = self._engine.simulate(slots, self._rates, None, now, np.empty(0, np.int64), np.inf, np.inf)
        if taken < slots.live_tasks:
            raise _cycle(slots, now)
        self._slots, self._now, self._spare, self._can_undo = slots, now, spare, False
        return float(now.finish[0])

    def change(self, blocks: Mapping[int, Optional[TaskBlock]], limit: float = np.inf) -> float:
        """Simulate again with other blocks, from where that can make a difference.

        Parameters
        ----------
        blocks : mapping of int to TaskBlock or None
            By key: what comes in the place of that block, if there is one; None to have none.
        limit : float, optional
            Of seconds.  Where it takes longer, the simulation ends as soon as that is known, and :meth:`undo` has to
            follow; nobody looks whether tasks wait for each other then.

        Returns
        -------
        float
            What :meth:`run` returns for all blocks that there are now, to the last bit; beyond `limit`, a number above
            it that is no more than that.

        Raises
        ------
        InputError
            As :meth:`run`, and for a block under the key of another.  Then nothing has changed.
        """
        slots = self._get_table()
        new = [block for block in blocks.values() if block is not None]
        self._check(new)
        for key, block in blocks.items():
            if block is not None and block.key != key:
                raise InputError('block %d: it is given as block %d' % (block.key, key))
        replaced = slots.replace(blocks)
        if replaced is None:
            slots = self._lay_out_anew(new)
            replaced = slots.replace(blocks)
            assert replaced is not None
        events = self._now.events
        events['place'][replaced.first:slots.used] = -1
        bound = float(events['ready'][replaced.gone].min()) if len(replaced.gone) else np.inf
        taken = self._engine.simulate(slots, self._rates, self._now, self._spare, replaced.changed, bound, limit)
        if taken < slots.live_tasks and not self._spare.finish[0] > limit:
            error = _cycle(slots, self._spare)
            slots.undo()
            self._can_undo = False
            raise error
        self._now, self._spare, self._can_undo = self._spare, self._now, True
        return float(self._now.finish[0])

    def undo(self) -> None:
        """Back to before the last :meth:`change`; once for each.

        Raises
        ------
        InputError
            Where there is no change to take back.
        """
        slots = self._get_table()
        if not self._can_undo:
            raise InputError('undo: the last change is taken back already, or there is none')
        slots.undo()
        self._now, self._spare, self._can_undo = self._spare, self._now, False

    def blocks(self) -> List[TaskBlock]:
        """Those that there are now, in the order in which they came."""
        slots = self._get_table()
        return [slots.blocks[key] for key in slots.spans()]

    def timeline(self) -> Dict[int, Times]:
        """When the tasks of each block start and end, by key."""
        spans, events = self._get_table().spans(), self._now.events
        return {key: Times(events['start'][span].copy(), events['end'][span].copy()) for key, span in spans.items()}

    def critical_path(self) -> List[PathTask]:
        """What the last end waits for, from the start on; where tasks are equal, the one that was taken first."""
        slots = self._get_table()
        return _Path(slots, self._now).links() if slots.live_tasks else []

    def _get_table(self) -> TaskTable:
        if self._slots is None:
            raise InputError('simulation: run blocks first')
        return self._slots

    def _check(self, blocks: Sequence[TaskBlock]) -> None:
        for block in blocks:
            if block.content.top >= len(self._rates.rate):
                raise InputError('block %d: there are %d resources, and none of number %d'
                                 % (block.key, len(self._rates.rate), block.content.top))

    def _timelines(self, slots: TaskTable, stride: int) -> Tuple[Timeline, Timeline]:
        room, resources = len(slots.tasks), len(self._rates.rate)
        return Timeline(room, resources, stride), Timeline(room, resources, stride)

    def _lay_out_anew(self, more: Sequence[TaskBlock]) -> TaskTable:
        """The same blocks without what lies between them, and with room for more."""
        old = self._get_table()
        tasks = old.live()
        slots = self._engine.slots(self.blocks(), more)
        now, spare = self._timelines(slots, self._now.stride)
        now.events[:slots.used] = self._now.events[tasks]
        for name in ('taken', 'last', 'states', 'snapshots', 'finish'):
            getattr(now, name)[...] = getattr(self._now, name)
        self._slots, self._now, self._spare, self._can_undo = slots, now, spare, False
        return slots


def _cycle(slots: TaskTable, made: Timeline) -> InputError:
    live = slots.live()
    missing = live[made.events['place'][live] < 0]
    return InputError('blocks %s: %d of their tasks wait for each other'
                      % (keys_in_words(slots.tasks['order'][missing]), len(missing)))


class _Path:
    """Looks back from the last end."""

    def __init__(self, slots: TaskTable, made: Timeline):
        self._tasks, self._events = slots.tasks, made.events
        self._live = slots.live()
        before, after = slots.edges(self._live)
        order = after.argsort(kind='stable')
        self._before, self._after = before[order], after[order]
        record = self._tasks[self._live]
        held = np.concatenate([record['resource'], record['second']])
        users = np.concatenate([self._live, self._live])
        order = np.lexsort((self._events['place'][users], held))
        #: TaskBuilder by resource, in the order in which they were taken.
        self._held, self._users = held[order], users[order]

    def links(self) -> List[PathTask]:
        events = self._events
        candidates = self._live[events['end'][self._live] == events['end'][self._live].max()]
        task: Optional[int] = self._first(candidates)
        found = []
        while task is not None:
            other, why = self._waited_for(task)
            found.append(PathTask(*key_and_index(int(self._tasks['order'][task])), float(events['start'][task]),
                              float(events['end'][task]), why))
            task = other
        return found[::-1]

    def _first(self, tasks: np.ndarray) -> int:
        return int(tasks[self._events['place'][tasks].argmin()])

    def _waited_for(self, task: int) -> Tuple[Optional[int], str]:
        events, record = self._events, self._tasks[task]
        if events['start'][task] > events['ready'][task]:
            found = [one for one in (record['resource'], record['second']) if one >= 0]
            users = np.concatenate([self._earlier(one, task) for one in found])
            ends = np.where(events['end'][users] <= events['start'][task], events['end'][users], -1.0)
            # Express tasks put off what had not begun: then nothing ends just when this starts.
            return self._first(users[ends == ends.max()]), RESOURCE
        start, stop = _range_of(self._after, task)
        before = self._before[start:stop]
        last = before[events['end'][before] + self._tasks['latency'][before] == events['ready'][task]]
        return (self._first(last), AFTER) if len(last) else (None, START)

    def _earlier(self, resource: int, task: int) -> np.ndarray:
        """Tasks that were taken before on a resource."""
        start, stop = _range_of(self._held, resource)
        users = self._users[start:stop]
        return users[:np.searchsorted(self._events['place'][users], self._events['place'][task])]


def _range_of(numbers: np.ndarray, wanted: int) -> np.ndarray:
    """Where a number is in others, which are in order; of their type, or NumPy makes a copy of them all."""
    return np.searchsorted(numbers, np.array([wanted, wanted + 1], numbers.dtype))
