"""The event loop of the simulation in Python: ``src/event_loop.cc`` does the same, to the last bit, and faster."""
import heapq

import numpy as np

from mxhybrid.planner.simulator.native_backend import SimulatorBackend

from .task_table import PythonTaskTable

#: Sums of many numbers are rounded: a lower bound from such a sum is made smaller by this factor.
_ROUNDING = 1 - 1e-9


class Resources:
    """The states of all resources while tasks are dispatched."""

    def __init__(self, rates, state):
        self._rate, self._peak, self._burst = (values.tolist() for values in rates[:3])
        self._group, self._slowdowns = rates.group.tolist(), rates.slowdowns.tolist()
        self._members = [[] for _ in self._slowdowns]
        for resource, group in enumerate(self._group):
            if group >= 0:
                self._members[group].append(resource)
        self.free = state[:, 0].tolist()
        self.high_priority_free = state[:, 1].tolist()
        self.level = state[:, 2].tolist()
        self.arithmetic = state[:, 3].tolist()
        #: Work of tasks that are not dispatched yet, except high-priority tasks, which delay no others.
        self.remaining = [0.0] * len(self.free)

    def state(self):
        """Return the state for a snapshot."""
        return np.array([self.free, self.high_priority_free, self.level, self.arithmetic]).T

    def _level_at(self, resource, start):
        """Return the level of a bucket after the idle time until `start`."""
        level = self.level[resource]
        if start > self.free[resource]:
            level = min(self._burst[resource], level + (start - self.free[resource]) * self._rate[resource])
        return level

    def _seconds(self, resource, level, work):
        rate = self._rate[resource]
        if level <= 0:
            return work / rate
        peak = self._peak[resource]
        burst_seconds = level / (peak - rate)
        seconds = work / peak
        return seconds if seconds <= burst_seconds else burst_seconds + (work - burst_seconds * peak) / rate

    def least_end(self, resources):
        """Return a lower bound of the last end, given the remaining work of some resources.

        The level of a bucket is spent at once, and the rest as it fills up.
        """
        return max(((self.free[resource]
                     + (self.remaining[resource] - self.level[resource]) / self._rate[resource]) * _ROUNDING
                    for resource in resources if self.remaining[resource] > self.level[resource]), default=0.0)

    def free_at(self, queue):
        """Return when the resource of a queue is free for the tasks of the queue, see :class:`_ReadyTasks`."""
        return (self.high_priority_free if queue % 2 else self.free)[queue // 2]

    def dispatch(self, first, second, work, arithmetic, high_priority, ready):
        """Return the start and the end of a task, and occupy its resources."""
        if first < 0:
            return ready, ready
        free = self.high_priority_free if high_priority else self.free
        start = max([ready] + [free[resource] for resource in _resources_of(first, second)])
        levels = [(resource, self._level_at(resource, start)) for resource in _resources_of(first, second)]
        seconds = max(self._seconds(resource, level, work) for resource, level in levels)
        if self._group[first] >= 0 and second < 0 and not high_priority:
            seconds = self._shared_seconds(first, start, seconds, arithmetic)
            self.arithmetic[first] = arithmetic
        end = start + seconds
        for resource, level in levels:
            if self._burst[resource] > 0:
                # The bucket gains the rate and loses the work.
                self.level[resource] = min(self._burst[resource],
                                           max(0.0, level + self._rate[resource] * seconds - work))
            if high_priority:
                self.high_priority_free[resource] = end
                self.free[resource] = max(self.free[resource], start) + seconds
            else:
                self.free[resource] = end
        return start, end

    def _shared_seconds(self, resource, start, seconds, arithmetic):
        """Return the duration of a task that starts on a resource of a group, and would take `seconds` alone.

        Each busy resource of a group is slowed down by the number of busy ones, as its task is bound by arithmetic or
        by memory.  The new task delays the tasks that are under way: the next tasks on their resources begin later, but
        their own ends stay, because successors know them already.
        """
        of_arithmetic, of_memory = self._slowdowns[self._group[resource]]

        def slowdown(share, count):
            return share * of_arithmetic[count] + (1 - share) * of_memory[count]
        busy = sorted((self.free[other], other) for other in self._members[self._group[resource]]
                      if other != resource and self.free[other] > start)
        # Convert the time until each other resource is free to seconds of work at its full rate.
        remaining = [[seconds, arithmetic, resource]]
        for number, (_, other) in enumerate(busy):
            now, work, share = start, 0.0, self.arithmetic[other]
            for earlier, (free, _) in enumerate(busy[:number + 1]):
                work += (free - now) / slowdown(share, len(busy) - earlier)
                now = free
            remaining.append([work, share, other])
        now, duration = start, 0.0
        while remaining:
            count = len(remaining)
            passed, number = min((work * slowdown(share, count), number)
                                 for number, (work, share, _) in enumerate(remaining))
            now += passed
            if remaining[number][2] == resource:
                duration = now - start
            else:
                self.free[remaining[number][2]] = now
            for task in remaining:
                task[0] = max(0.0, task[0] - passed / slowdown(task[1], count))
            del remaining[number]
        return duration


class _ReadyTasks:
    """The ready tasks, in one event queue.

    A task with two resources that waits for one of them does not hold the other one, but waits in a resource queue.
    Each resource has two: the odd one is for high-priority tasks, the even one for other tasks.  The event queue has an
    entry for the first task of a resource queue only, under a number below zero, at the time when the resource is free.

    Parameters
    ----------
    order, queues : lists
        By task: its order, and the queues of both of its resources; None for tasks with less than two.
    resources : Resources
    """

    def __init__(self, order, queues, resources):
        self._order, self._queues_of, self._resources = order, queues, resources
        #: The time of an entry, its order, and the number of the task, or ~number of the resource queue.
        self._events = []
        #: By resource queue: orders and numbers of its tasks, and its entry in the event queue.
        self._tasks = [[] for _ in range(2 * len(resources.free))]
        self._entries = [None] * len(self._tasks)

    def push(self, task, ready):
        """Add a ready task."""
        heapq.heappush(self._events, (ready, self._order[task], task))

    def find_next(self):
        """Return the task to dispatch now: in the front of the event queue, or of the resource queue there; or None."""
        while self._events:
            front = self._events[0]
            now, _, number = front
            if number >= 0:
                queue = self._busy_queue(number, now)
                if queue is None:
                    return number
                heapq.heappop(self._events)
                self._enqueue(number, queue)
            elif self._entries[~number] != front:  # an outdated entry: the queue has another one
                heapq.heappop(self._events)
            elif self._resources.free_at(~number) > now:
                self._delay_front()
            else:
                first = self._tasks[~number][0][1]
                queue = self._busy_queue(first, now)
                if queue is None:
                    return first
                self.remove_front()
                self._enqueue(first, queue)
        return None

    @property
    def now(self):
        """The time of the task that :meth:`find_next` has returned."""
        return self._events[0][0]

    def remove_front(self):
        """Remove the task that :meth:`find_next` has returned."""
        number = self._events[0][2]
        if number >= 0:
            heapq.heappop(self._events)
            return
        heapq.heappop(self._tasks[~number])
        self._delay_front()

    def _busy_queue(self, task, now):
        """Return the queue of the resource that a task with two has to wait for longest; None if it need not wait."""
        queues = self._queues_of[task]
        queue = max(queues, key=self._resources.free_at) if queues else None
        return queue if queue is not None and self._resources.free_at(queue) > now else None

    def _enqueue(self, task, queue):
        heapq.heappush(self._tasks[queue], (self._order[task], task))
        entry, known = self._entry_of(queue), self._entries[queue]
        if known is None or entry < known:  # else its entry comes earlier
            self._entries[queue] = entry
            heapq.heappush(self._events, entry)

    def _delay_front(self):
        """Move the entry of the resource queue in front to the time when the resource is free."""
        queue = ~self._events[0][2]
        if self._tasks[queue]:
            entry = self._entries[queue] = self._entry_of(queue)
            heapq.heapreplace(self._events, entry)
        else:
            self._entries[queue] = None
            heapq.heappop(self._events)

    def _entry_of(self, queue):
        return self._resources.free_at(queue), self._tasks[queue][0][0], ~queue


def simulate(table, rates, before, timeline, changed, first_removed, limit):
    """Fill a timeline; see :attr:`mxhybrid.planner.simulator.native_backend.SimulatorBackend.simulate`."""
    live = table.live()
    sources, targets = table.edges(live)
    events = timeline.events[:table.used]
    events['ready'], events['position'] = 0.0, -1
    ends = np.empty(table.used)
    dispatched, state = 0, np.stack([np.zeros_like(rates.burst), np.zeros_like(rates.burst), rates.burst,
                                  np.zeros_like(rates.burst)], axis=1)
    timeline.snapshots[0] = timeline.finish[0] = 0
    done = np.zeros(table.used, bool)
    if before is not None:
        old_events = before.events[:table.used]
        ends = old_events['end'] + table.tasks['latency'][:table.used]
        kept = _kept_snapshots(old_events, ends, sources, targets, changed, first_removed, before)
        if kept:
            dispatched, state = int(before.dispatched[kept - 1]), before.states[kept - 1]
            timeline.dispatched[:kept], timeline.last_ready[:kept] = before.dispatched[:kept], before.last_ready[:kept]
            timeline.states[:kept], timeline.snapshots[0] = before.states[:kept], kept
            done[live] = (old_events['position'][live] >= 0) & (old_events['position'][live] < dispatched)
            events[done] = old_events[done]
            timeline.finish[0] = old_events['end'][done].max()
    edges = done[sources]
    ready = events['ready'].copy()
    np.maximum.at(ready, targets[edges], ends[sources[edges]])
    pending = np.bincount(targets[~edges], minlength=table.used)
    return _dispatch_all(table, Resources(rates, state), timeline, live[~done[live]], ready.tolist(), pending.tolist(),
                         dispatched, limit)


def _kept_snapshots(old_events, ends, sources, targets, changed, bound, before):
    """Return the number of snapshots that are still valid: those before any task that the change affects is ready."""
    was_dispatched = old_events['position'][changed] >= 0
    if was_dispatched.any():
        bound = min(bound, float(old_events['ready'][changed[was_dispatched]].min()))
    is_changed = np.zeros(len(old_events), bool)
    is_changed[changed] = True
    edges = is_changed[targets]
    sources, targets = sources[edges], targets[edges]
    # A task with new predecessors only cannot be ready before them; one without predecessors is ready at once.
    earliest = np.full(len(old_events), -1.0)
    earliest[changed] = 0.0
    earliest[targets] = np.inf
    is_old = old_events['position'][sources] >= 0
    earliest[targets[is_old]] = 0.0
    np.maximum.at(earliest, targets[is_old], ends[sources[is_old]])
    if len(changed):
        bound = min(bound, float(earliest[changed].min()))
    return int(np.searchsorted(before.last_ready[:before.snapshots[0]], bound))


def _dispatch_all(table, resources, timeline, tasks, ready, pending, dispatched, limit):
    record = table.tasks[:table.used]
    work, latency, order = record['work'].tolist(), record['latency'].tolist(), record['order'].tolist()
    first, second = record['resource'].tolist(), record['second'].tolist()
    high_priority, arithmetic = record['high_priority'].tolist(), record['arithmetic'].tolist()
    inner, inner_end, successors = record['inner'].tolist(), record['inner_end'].tolist(), table.successors.tolist()
    outer, outer_end = record['outer'].tolist(), record['outer_end'].tolist()
    outer_successors = table.outer_successors[:table.counts[2]].tolist()
    queue = _ReadyTasks(order, [(2 * one + kind, 2 * other + kind) if other >= 0 else None
                                for one, other, kind in zip(first, second, high_priority)], resources)
    for task in tasks.tolist():
        if not pending[task]:
            queue.push(task, ready[task])
    numbers, starts, ends = [], [], []
    now, first_position = 0.0, dispatched
    finish, least_end = float(timeline.finish[0]), 0.0
    if limit < np.inf:
        for task in tasks.tolist():
            if not high_priority[task]:
                for resource in _resources_of(first[task], second[task]):
                    resources.remaining[resource] += work[task]
        least_end = resources.least_end(range(len(resources.remaining)))
    while True:
        task = queue.find_next()
        if task is None:
            break
        if finish > limit or least_end > limit:
            timeline.finish[0] = max(finish, least_end)
            return dispatched
        if (dispatched > first_position and dispatched % timeline.stride == 0
                and timeline.snapshots[0] < len(timeline.dispatched)):
            number = int(timeline.snapshots[0])
            timeline.dispatched[number], timeline.last_ready[number] = dispatched, now
            timeline.states[number] = resources.state()
            timeline.snapshots[0] = number + 1
        now = queue.now
        start, end = resources.dispatch(first[task], second[task], work[task], arithmetic[task],
                                        bool(high_priority[task]), now)
        queue.remove_front()
        dispatched += 1
        numbers.append(task)
        starts.append(start)
        ends.append(end)
        finish = max(finish, end)
        if limit < np.inf and not high_priority[task]:
            for resource in _resources_of(first[task], second[task]):
                resources.remaining[resource] -= work[task]
            least_end = max(least_end, resources.least_end(_resources_of(first[task], second[task])))
        after = end + latency[task]
        for targets, begin, stop in ((successors, inner[task], inner_end[task]),
                                     (outer_successors, outer[task], outer_end[task])):
            for successor in targets[begin:stop]:
                ready[successor] = max(ready[successor], after)
                pending[successor] -= 1
                if not pending[successor]:
                    queue.push(successor, ready[successor])
    events = timeline.events
    events['ready'][numbers] = np.array(ready)[numbers] if numbers else 0.0
    events['start'][numbers], events['end'][numbers] = starts, ends
    events['position'][numbers] = np.arange(first_position, dispatched)
    timeline.finish[0] = finish
    return dispatched


def _resources_of(first, second):
    return () if first < 0 else (first,) if second < 0 else (first, second)


PYTHON_BACKEND = SimulatorBackend(PythonTaskTable, simulate)
