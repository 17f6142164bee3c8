"""Tasks taken one after the other, in Python: what ``src/event_loop.cc`` does, to the last bit, and slower.

This is the reference, and what runs where that could not be compiled.
"""
import heapq
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from .task_table import TaskTable
from .timeline import Timeline

#: What sums of many numbers may be too large by.
_ROUNDED = 1 - 1e-9


class Rates(NamedTuple):
    """Buckets of all resources, see :class:`~.token_bucket.TokenBucket`, and groups that slow each other down.

    Attributes
    ----------
    rate, peak, burst : numpy.ndarray of float64, shape (resources,)
    group : numpy.ndarray of int32, shape (resources,)
        The number of a resource's group; -1 for none.
    slowed : numpy.ndarray of float64, shape (groups, width)
        By group and by number of its resources that are busy, from 0 on: share of the rate that each has then.
    """

    rate: np.ndarray
    peak: np.ndarray
    burst: np.ndarray
    group: np.ndarray
    slowed: np.ndarray


class Buckets:
    """What each resource is at, while tasks are taken."""

    def __init__(self, rates: Rates, state: np.ndarray):
        self._rate, self._peak, self._burst = (values.tolist() for values in rates[:3])
        self._group, self._slowed = rates.group.tolist(), rates.slowed.tolist()
        self._members: List[List[int]] = [[] for _ in self._slowed]
        for one, group in enumerate(self._group):
            if group >= 0:
                self._members[group].append(one)
        self.free: List[float] = state[:, 0].tolist()
        self.express_free: List[float] = state[:, 1].tolist()
        self.level: List[float] = state[:, 2].tolist()
        #: Work of tasks to come, but for express ones, which are done beside others.
        self.left = [0.0] * len(self.free)

    def state(self) -> np.ndarray:
        """For a snapshot."""
        return np.array([self.free, self.express_free, self.level]).T

    def _level_at(self, one: int, start: float) -> float:
        """Filled up since it was last used."""
        level = self.level[one]
        if start > self.free[one]:
            level = min(self._burst[one], level + (start - self.free[one]) * self._rate[one])
        return level

    def _seconds(self, one: int, level: float, work: float) -> float:
        rate = self._rate[one]
        if level <= 0:
            return work / rate
        peak = self._peak[one]
        lasts = level / (peak - rate)
        seconds = work / peak
        return seconds if seconds <= lasts else lasts + (work - lasts * peak) / rate

    def least_end(self, held: Iterable[int]) -> float:
        """Of what is to come for some resources, when the last end is at least: what is in a bucket goes at once, and
        the rest as it fills up.
        """
        return max(((self.free[one] + (self.left[one] - self.level[one]) / self._rate[one]) * _ROUNDED
                    for one in held if self.left[one] > self.level[one]), default=0.0)

    def free_at(self, gate: int) -> float:
        """When a resource is free for tasks at a gate of it, see :class:`_ReadyTasks`."""
        return (self.express_free if gate % 2 else self.free)[gate // 2]

    def take(self, one: int, second: int, work: float, express: bool, ready: float) -> Tuple[float, float]:
        """Start and end of a task, both resources busy until then."""
        if one < 0:
            return ready, ready
        free = self.express_free if express else self.free
        start = max([ready] + [free[held] for held in _held(one, second)])
        levels = [(held, self._level_at(held, start)) for held in ((one, second) if second >= 0 else (one,))]
        seconds = max(self._seconds(held, level, work) for held, level in levels)
        if self._group[one] >= 0 and second < 0 and not express:
            seconds = self._slowed_seconds(one, start, seconds)
        end = start + seconds
        for held, level in levels:
            if self._burst[held] > 0:
                # What came in, without what went out.
                self.level[held] = min(self._burst[held], max(0.0, level + self._rate[held] * seconds - work))
            if express:
                self.express_free[held] = end
                self.free[held] = max(self.free[held], start) + seconds
            else:
                self.free[held] = end
        return start, end


    def _slowed_seconds(self, one: int, start: float, seconds: float) -> float:
        """Return what a task takes that begins now on a resource of a group, and would take some seconds alone.

        All resources that are busy at a moment have the same share of their rates.  The tasks that are under way are
        put off by the new one: what their resources do next begins later, but their own ends, which others know
        already, stay.
        """
        shares = self._slowed[self._group[one]]
        busy = sorted((self.free[other], other) for other in self._members[self._group[one]]
                      if other != one and self.free[other] > start)
        # What the others have left to do, by when they would be free, at their full rates.
        left = [(seconds, one)]
        now, work = start, 0.0
        for number, (free, other) in enumerate(busy):
            work += (free - now) * shares[len(busy) - number]
            now = free
            left.append((work, other))
        left.sort()
        now, work, found = start, 0.0, 0.0
        for number, (amount, other) in enumerate(left):
            now += (amount - work) / shares[len(left) - number]
            work = amount
            if other == one:
                found = now - start
            else:
                self.free[other] = now
        return found


class _ReadyTasks:
    """Tasks that are ready.

    Those with two resources that wait for one of them do not hold the other one meanwhile, but stand at a gate: each
    resource has one for express tasks, which is the odd one, and one for others.  Of a gate only the first task stands
    in the queue, under a number below zero, until the resource is free.

    Parameters
    ----------
    order, gates : lists
        By task: its order, and the gates of both resources; None of those with less than two.
    buckets : Buckets
    """

    def __init__(self, order: List[int], gates: List[Optional[Tuple[int, int]]], buckets: Buckets):
        self._order, self._gates, self._buckets = order, gates, buckets
        #: When something is ready, its order, and the task's or the gate's number.
        self._queue: List[Tuple[float, int, int]] = []
        #: Of gates, orders and numbers of tasks; and as each gate stands in the queue.
        self._tasks: List[List[Tuple[int, int]]] = [[] for _ in range(2 * len(buckets.free))]
        self._places: List[Optional[Tuple[float, int, int]]] = [None] * len(self._tasks)

    def push(self, task: int, ready: float) -> None:
        """A task is ready."""
        heapq.heappush(self._queue, (ready, self._order[task], task))

    def find_next(self) -> Optional[int]:
        """The task to take now, in front or the first of the gate that is; None where there is none."""
        while self._queue:
            front = self._queue[0]
            now, _, number = front
            if number >= 0:
                gate = self._closed_gate(number, now)
                if gate is None:
                    return number
                heapq.heappop(self._queue)
                self._add(number, gate)
            elif self._places[~number] != front:  # it stands elsewhere by now
                heapq.heappop(self._queue)
            elif self._buckets.free_at(~number) > now:
                self._put_off_front()
            else:
                first = self._tasks[~number][0][1]
                gate = self._closed_gate(first, now)
                if gate is None:
                    return first
                self.remove_front()
                self._add(first, gate)
        return None

    @property
    def moment(self) -> float:
        """When what :meth:`find_next` has found is taken."""
        return self._queue[0][0]

    def remove_front(self) -> None:
        """What :meth:`find_next` has found goes."""
        number = self._queue[0][2]
        if number >= 0:
            heapq.heappop(self._queue)
            return
        heapq.heappop(self._tasks[~number])
        self._put_off_front()

    def _closed_gate(self, task: int, now: float) -> Optional[int]:
        """Of the resource that a task has to wait for longest, if it has two and has to wait."""
        gates = self._gates[task]
        gate = max(gates, key=self._buckets.free_at) if gates else None
        return gate if gate is not None and self._buckets.free_at(gate) > now else None

    def _add(self, task: int, gate: int) -> None:
        """A task comes to a gate."""
        heapq.heappush(self._tasks[gate], (self._order[task], task))
        place, known = self._placed(gate), self._places[gate]
        if known is None or place < known:  # else it is looked at before that
            self._places[gate] = place
            heapq.heappush(self._queue, place)

    def _put_off_front(self) -> None:
        """The gate in front comes to where its resource is free."""
        gate = ~self._queue[0][2]
        if self._tasks[gate]:
            place = self._places[gate] = self._placed(gate)
            heapq.heapreplace(self._queue, place)
        else:
            self._places[gate] = None
            heapq.heappop(self._queue)

    def _placed(self, gate: int) -> Tuple[float, int, int]:
        return self._buckets.free_at(gate), self._tasks[gate][0][0], ~gate


def simulate(slots: TaskTable, rates: Rates, before: Optional[Timeline], made: Timeline, changed: np.ndarray,
             bound: float, limit: float) -> int:
    """Fill a timeline; returns how many tasks were taken, less than all where they wait for each other, or where the
    last end comes after `limit`: that of the timeline, which has no ends then, is what it is at least.

    Parameters
    ----------
    slots : TaskTable
    rates : Rates
    before : Timeline or None
        Of the tasks as they were before a change; those that are new have place -1 in it.
    made : Timeline
        To fill.
    changed : numpy.ndarray of int
        Tasks that are new, or that wait for others than before.
    bound : float
        When the first of those tasks was ready that are no more.
    limit : float
        Of seconds; later ends are of no interest.
    """
    live = slots.live()
    start, end = slots.edges(live)
    events = made.events[:slots.used]
    events['ready'], events['place'] = 0.0, -1
    ends = np.empty(slots.used)
    taken, state = 0, np.stack([np.zeros_like(rates.burst), np.zeros_like(rates.burst), rates.burst], axis=1)
    made.snapshots[0] = made.finish[0] = 0
    done = np.zeros(slots.used, bool)
    if before is not None:
        old = before.events[:slots.used]
        ends = old['end'] + slots.tasks['latency'][:slots.used]
        kept = _kept(old, ends, start, end, changed, bound, before)
        if kept:
            taken, state = int(before.taken[kept - 1]), before.states[kept - 1]
            made.taken[:kept], made.last[:kept] = before.taken[:kept], before.last[:kept]
            made.states[:kept], made.snapshots[0] = before.states[:kept], kept
            done[live] = (old['place'][live] >= 0) & (old['place'][live] < taken)
            events[done] = old[done]
            made.finish[0] = old['end'][done].max()
    edges = done[start]
    ready = events['ready'].copy()
    np.maximum.at(ready, end[edges], ends[start[edges]])
    needs = np.bincount(end[~edges], minlength=slots.used)
    return _take_all(slots, Buckets(rates, state), made, live[~done[live]], ready.tolist(), needs.tolist(), taken,
                     limit)


def _kept(old: Any, ends: np.ndarray, start: np.ndarray, end: np.ndarray, changed: np.ndarray, bound: float,
          before: Timeline) -> int:
    """How many snapshots still hold: those before anything that a change touches can be ready."""
    was = old['place'][changed] >= 0
    if was.any():
        bound = min(bound, float(old['ready'][changed[was]].min()))
    touched = np.zeros(len(old), bool)
    touched[changed] = True
    edges = touched[end]
    start, end = start[edges], end[edges]
    # A task that waits for new ones only cannot be ready before those; one that waits for none is at once.
    earliest = np.full(len(old), -1.0)
    earliest[changed] = 0.0
    earliest[end] = np.inf
    known = old['place'][start] >= 0
    earliest[end[known]] = 0.0
    np.maximum.at(earliest, end[known], ends[start[known]])
    if len(changed):
        bound = min(bound, float(earliest[changed].min()))
    return int(np.searchsorted(before.last[:before.snapshots[0]], bound))


def _take_all(slots: TaskTable, buckets: Buckets, made: Timeline, tasks: np.ndarray, ready: List[float],
              needs: List[int], taken: int, limit: float) -> int:
    record = slots.tasks[:slots.used]
    work, latency, order = record['work'].tolist(), record['latency'].tolist(), record['order'].tolist()
    resource, second, express = record['resource'].tolist(), record['second'].tolist(), record['express'].tolist()
    inner, inner_end, targets = record['inner'].tolist(), record['inner_end'].tolist(), slots.targets.tolist()
    outer, outer_end = record['outer'].tolist(), record['outer_end'].tolist()
    outer_targets = slots.outer_targets[:slots.counts[2]].tolist()
    queue = _ReadyTasks(order, [(2 * one + kind, 2 * other + kind) if other >= 0 else None
                                for one, other, kind in zip(resource, second, express)], buckets)
    for task in tasks.tolist():
        if not needs[task]:
            queue.push(task, ready[task])
    numbers: List[int] = []
    starts: List[float] = []
    ends: List[float] = []
    moment, first = 0.0, taken
    finish, least = float(made.finish[0]), 0.0
    if limit < np.inf:
        for task in tasks.tolist():
            if not express[task]:
                for held in _held(resource[task], second[task]):
                    buckets.left[held] += work[task]
        least = buckets.least_end(range(len(buckets.left)))
    while True:
        task = queue.find_next()
        if task is None:
            break
        if finish > limit or least > limit:
            made.finish[0] = max(finish, least)
            return taken
        if taken > first and taken % made.stride == 0 and made.snapshots[0] < len(made.taken):
            number = int(made.snapshots[0])
            made.taken[number], made.last[number], made.states[number] = taken, moment, buckets.state()
            made.snapshots[0] = number + 1
        moment = queue.moment
        start, end = buckets.take(resource[task], second[task], work[task], bool(express[task]), moment)
        queue.remove_front()
        taken += 1
        numbers.append(task)
        starts.append(start)
        ends.append(end)
        finish = max(finish, end)
        if limit < np.inf and not express[task]:
            for held in _held(resource[task], second[task]):
                buckets.left[held] -= work[task]
            least = max(least, buckets.least_end(_held(resource[task], second[task])))
        after = end + latency[task]
        for successors, at, stop in ((targets, inner[task], inner_end[task]),
                                     (outer_targets, outer[task], outer_end[task])):
            for one in successors[at:stop]:
                ready[one] = max(ready[one], after)
                needs[one] -= 1
                if not needs[one]:
                    queue.push(one, ready[one])
    events = made.events
    events['ready'][numbers] = np.array(ready)[numbers] if numbers else 0.0
    events['start'][numbers], events['end'][numbers] = starts, ends
    events['place'][numbers] = np.arange(first, taken)
    made.finish[0] = finish
    return taken


def _held(one: int, second: int) -> Tuple[int, ...]:
    """Resources of a task."""
    return () if one < 0 else (one,) if second < 0 else (one, second)
