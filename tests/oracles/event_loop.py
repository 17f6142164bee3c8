"""A simulated step by the rules: look through all ready tasks for the next one, again and again.

``src/event_loop.cc`` finds the same times, to the last bit, and faster.
"""
import collections

from mxhybrid.planner.simulator.resource_groups import group_arrays
from mxhybrid.planner.simulator.task_block import TASK

Task = collections.namedtuple('Task', TASK.names)


class Resources:
    """The states of all resources while tasks are dispatched."""

    def __init__(self, buckets, groups):
        self._buckets, (self._groups, self._slowdowns) = buckets, group_arrays(buckets, groups)
        #: By resource: when it is free for tasks of normal priority, and for high-priority tasks.
        self._free = [[0.0, 0.0] for _ in buckets]
        self._level = [bucket.burst for bucket in buckets]
        #: By resource: the share of its last task that is bound by arithmetic.
        self._arithmetic = [0.0] * len(buckets)

    def turn_of(self, task, ready):
        """Return when it is the turn of a ready task: once its two resources are free, at once if it has fewer."""
        return ready if task.second < 0 else self._start_of(task, ready)

    def dispatch(self, task, ready):
        """Return the start and the end of a task, and occupy its resources."""
        start = self._start_of(task, ready)
        levels = {resource: self._level_at(resource, start) for resource in _resources_of(task)}
        seconds = max((self._seconds(resource, level, task.work) for resource, level in levels.items()), default=0.0)
        if len(levels) == 1 and self._groups[task.resource] >= 0 and not task.high_priority:
            seconds = self._shared_seconds(task.resource, start, seconds, task.arithmetic)
            self._arithmetic[task.resource] = task.arithmetic
        for resource, level in levels.items():
            bucket, free = self._buckets[resource], self._free[resource]
            # The bucket gains the rate and loses the work.
            self._level[resource] = min(bucket.burst, max(0.0, level + bucket.rate * seconds - task.work))
            free[:] = [max(free[0], start) + seconds, start + seconds] if task.high_priority else [
                start + seconds, free[1]]
        return start, start + seconds

    def _start_of(self, task, ready):
        return max([ready] + [self._free[resource][task.high_priority] for resource in _resources_of(task)])

    def _level_at(self, resource, start):
        """Return the level of a bucket after the idle time until `start`."""
        idle = max(0.0, start - self._free[resource][0])
        return min(self._buckets[resource].burst, self._level[resource] + idle * self._buckets[resource].rate)

    def _seconds(self, resource, level, work):
        bucket = self._buckets[resource]
        if level <= 0:
            return work / bucket.rate
        burst_seconds, seconds = level / (bucket.peak - bucket.rate), work / bucket.peak
        return seconds if seconds <= burst_seconds else (
            burst_seconds + (work - burst_seconds * bucket.peak) / bucket.rate)

    def _shared_seconds(self, resource, start, seconds, arithmetic):
        """Return the duration of a task that starts on a resource of a group, and would take `seconds` alone.

        Each busy resource of a group is slowed down by the number of busy ones, as its task is bound by arithmetic or
        by memory.  The new task delays the tasks that are under way: the next tasks on their resources begin later, but
        their own ends stay, because successors know them already.
        """
        of_arithmetic, of_memory = self._slowdowns[self._groups[resource]].tolist()

        def slowdown(share, count):
            return share * of_arithmetic[count] + (1 - share) * of_memory[count]
        busy = sorted((free, other) for other, (free, _) in enumerate(self._free)
                      if self._groups[other] == self._groups[resource] and other != resource and free > start)
        # Convert the time until each other resource is free to seconds of work at its full rate.
        remaining = [[seconds, arithmetic, resource]]
        for number, (_, other) in enumerate(busy):
            now, work, share = start, 0.0, self._arithmetic[other]
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
                self._free[remaining[number][2]][0] = now
            for task in remaining:
                task[0] = max(0.0, task[0] - passed / slowdown(task[1], count))
            del remaining[number]
        return duration


def simulate(blocks, buckets, groups=()):
    """Return the end of the last task of some blocks, and the start and the end of each task.

    A task is named by the key of its block and its index there.
    """
    blocks = list(blocks)
    tasks = {(block.key, index): Task(*values) for block in blocks
             for index, values in enumerate(block.content.tasks.tolist())}
    successors, resources = successors_of(blocks), Resources(buckets, groups)
    pending = collections.Counter(name for names in successors.values() for name in names)
    ready_at, times = dict.fromkeys(tasks, 0.0), {}
    ready = {name for name in tasks if not pending[name]}
    while ready:
        _, name = min((resources.turn_of(tasks[name], ready_at[name]), name) for name in ready)
        ready.remove(name)
        times[name] = resources.dispatch(tasks[name], ready_at[name])
        for successor in successors[name]:
            ready_at[successor] = max(ready_at[successor], times[name][1] + tasks[name].latency)
            pending[successor] -= 1
            if not pending[successor]:
                ready.add(successor)
    return max((end for _, end in times.values()), default=0.0), times


def successors_of(blocks):
    """Return the names of the tasks that come after each task, in its block and in others."""
    contents, successors = {block.key: block.content for block in blocks}, collections.defaultdict(list)
    for block in blocks:
        for index, (begin, end) in enumerate(block.content.tasks[['inner', 'inner_end']].tolist()):
            successors[block.key, index] += [(block.key, task) for task in block.content.successors[begin:end].tolist()]
        for key, dependencies, offset in block.inputs:
            output_tasks = contents[key].output_tasks.tolist() if key in contents else [-1]
            for task, output in zip(dependencies.tasks.tolist(), (dependencies.outputs + offset).tolist()):
                before = output_tasks[min(output, len(output_tasks) - 1)]
                if before >= 0:
                    successors[key, before].append((block.key, task))
    return successors


def _resources_of(task):
    return [resource for resource in (task.resource, task.second) if resource >= 0]
