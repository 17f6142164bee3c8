"""Tasks taken one after the other, in Python: what ``src/simulate.cc`` does, to the last bit, and slower.

This is the reference, and what runs where that could not be compiled.
"""
import heapq
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from .slots import Slots
from .timeline import Timeline

#: What sums of many numbers may be too large by.
_ROUNDED = 1 - 1e-9


class Rates(NamedTuple):
    """Buckets of all resources, see :class:`~.cluster.Bucket`."""

    rate: np.ndarray
    peak: np.ndarray
    burst: np.ndarray


class Buckets:
    """What each resource is at, while tasks are taken."""

    def __init__(self, rates: Rates, state: np.ndarray):
        self._rate, self._peak, self._burst = (values.tolist() for values in rates)
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

    def start(self, one: int, second: int, express: bool, ready: float) -> float:
        """When a task could start."""
        free = self.express_free if express else self.free
        return max([ready] + [free[held] for held in _held(one, second)])

    def take(self, one: int, second: int, work: float, express: bool, ready: float) -> Tuple[float, float]:
        """Start and end of a task, both resources busy until then."""
        if one < 0:
            return ready, ready
        start = self.start(one, second, express, ready)
        levels = [(held, self._level_at(held, start)) for held in ((one, second) if second >= 0 else (one,))]
        seconds = max(self._seconds(held, level, work) for held, level in levels)
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


def simulate(slots: Slots, rates: Rates, before: Optional[Timeline], made: Timeline, changed: np.ndarray,
             bound: float, limit: float) -> int:
    """Fill a timeline; returns how many tasks were taken, less than all where they wait for each other, or where the
    last end comes after `limit`: that of the timeline, which has no ends then, is what it is at least.

    Parameters
    ----------
    slots : Slots
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


def _take_all(slots: Slots, buckets: Buckets, made: Timeline, tasks: np.ndarray, ready: List[float],
              needs: List[int], taken: int, limit: float) -> int:
    record = slots.tasks[:slots.used]
    work, latency, order = record['work'].tolist(), record['latency'].tolist(), record['order'].tolist()
    resource, second, express = record['resource'].tolist(), record['second'].tolist(), record['express'].tolist()
    inner, inner_end, targets = record['inner'].tolist(), record['inner_end'].tolist(), slots.targets.tolist()
    outer, outer_end = record['outer'].tolist(), record['outer_end'].tolist()
    outer_targets = slots.outer_targets[:slots.used_outer].tolist()
    waiting = [(ready[task], order[task], task) for task in tasks.tolist() if not needs[task]]
    heapq.heapify(waiting)
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
    while waiting:
        if finish > limit or least > limit:
            made.finish[0] = max(finish, least)
            return taken
        if taken > first and taken % made.stride == 0 and made.snapshots[0] < len(made.taken):
            number = int(made.snapshots[0])
            made.taken[number], made.last[number], made.states[number] = taken, moment, buckets.state()
            made.snapshots[0] = number + 1
        moment, _, task = heapq.heappop(waiting)
        while second[task] >= 0:
            # Who waits for one of two resources does not hold the other one meanwhile.
            later = buckets.start(resource[task], second[task], bool(express[task]), moment)
            if later == moment:
                break
            moment, _, task = heapq.heappushpop(waiting, (later, order[task], task))
        start, end = buckets.take(resource[task], second[task], work[task], bool(express[task]), moment)
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
                    heapq.heappush(waiting, (ready[one], order[one], one))
    events = made.events
    events['ready'][numbers] = np.array(ready)[numbers] if numbers else 0.0
    events['start'][numbers], events['end'][numbers] = starts, ends
    events['place'][numbers] = np.arange(first, taken)
    made.finish[0] = finish
    return taken


def _held(one: int, second: int) -> Tuple[int, ...]:
    """Resources of a task."""
    return () if one < 0 else (one,) if second < 0 else (one, second)
