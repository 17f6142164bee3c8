"""Seconds of cores: what a worker, and the servers of its host on its behalf, compute for something that all workers
do at once.
"""
import time
from typing import Any, Callable, List, NamedTuple, Optional

import mxnet as mx
import numpy as np

from ...job.job import Job
from .time_budget import TimeBudget

_NAME = 'mxhybrid.calibrate.'
#: Rounds of nothing, and seconds of idleness, by which other readings are corrected.
_EMPTY_ROUNDS, _IDLE_ROUNDS, _IDLE_S = 15, 5, 0.1
#: Rounds of an act, and where time is up, for which there are some seconds all the same; seconds that a round lasts,
#: where an act is repeated within it.
_FEWEST, _FEWEST_LATE, _LATE_S, _MOST, _LONG_ENOUGH_S = 3, 2, 0.15, 15, 0.004

#: What is timed.
Action = Callable[[], None]


class Measurement(NamedTuple):
    """What something took, on average over all workers: seconds of a worker's core, of the clock, and of that core in
    the thread that has it done, the script's.
    """

    core_s: float
    elapsed_s: float
    script_s: float


def process_seconds(pid: int) -> float:
    """CPU seconds of a process of this machine, of all its threads; 0 where it cannot be seen."""
    try:
        # clock_getcpuclockid(3) makes this number, of CPUCLOCK_SCHED in the kernel's posix-timers.
        return time.clock_gettime(~pid << 3 | 2) if pid > 0 else 0.0
    except OSError:
        return 0.0


class CpuMeter:
    """Times what all workers of a job do at once (every method is collective).

    Servers' seconds are shared by the workers of their host.  What threads take while nothing happens, and what it
    takes to meet, does not count.
    """

    def __init__(self, job: Job, budget: TimeBudget):
        assert job.collective is not None
        self._collective: Any = job.collective
        self._budget = budget
        lane = None if job.servers is None else job.servers.lane
        self._servers = [] if lane is None else lane.local_agents
        #: Whether the servers' seconds can be seen.
        self.includes_servers = all(process_seconds(pid) > 0 for pid in self._servers) and bool(self._servers)
        places = job.topology.memory_domains
        self._share = 1.0 / list(places).count(places[job.rank])
        self._burnt = self._met = 0.0
        self._burnt = min(self._idle() for _ in range(_IDLE_ROUNDS))
        self._met = float(np.median([self._once(lambda: None)[0] for _ in range(_EMPTY_ROUNDS)]))

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this worker, and its share of those of the host's servers."""
        return time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) + self._share * sum(map(process_seconds,
                                                                                         self._servers))

    def _idle(self) -> float:
        """Seconds of a core a second, while nobody does anything."""
        self.barrier()
        before, began = self.cpu_seconds(), time.perf_counter()
        time.sleep(_IDLE_S)
        return (self.cpu_seconds() - before) / (time.perf_counter() - began)

    def barrier(self) -> None:
        """Wait for all workers."""
        self._collective.any(False, _NAME + 'meet')

    def is_out_of_time(self) -> bool:
        """Whether time is up for what is measured, for the workers on average."""
        return bool(self.average([self._budget.left])[0] <= 0)

    def allgather(self, value: Any) -> List[Any]:
        """The JSON `value` of every worker, in rank order."""
        return self._collective.exchange(value, _NAME + 'values')

    def average(self, values: Any) -> np.ndarray:
        """Of an array of numbers, over all workers."""
        return np.mean(np.array(self.allgather(np.asarray(values, float).tolist())), axis=0)

    def _once(self, act: Action, before: Optional[Action] = None, times: int = 1) -> List[float]:
        if before is not None:
            before()
            mx.nd.waitall()
        self.barrier()
        core, script, began = self.cpu_seconds(), time.thread_time(), time.perf_counter()
        for _ in range(times):
            act()
        script = time.thread_time() - script
        mx.nd.waitall()
        seconds = time.perf_counter() - began
        self.barrier()  # or servers would still work for others
        lasted = time.perf_counter() - began
        core = self.cpu_seconds() - core - self._burnt * lasted - self._met
        return [core / times, seconds / times, script / times]

    def measure(self, act: Action, before: Optional[Action] = None, budget_s: float = 0.3) -> Measurement:
        """Time an act, by as many rounds as `budget_s` and what is left for it of the time for all have room for; three
        at least, or two where that is spent.

        Parameters
        ----------
        act : callable
            The same on all workers.
        before : callable, optional
            What comes before each time, and does not count; nothing is under way after it.
        budget_s : float, optional
            Seconds.
        """
        allowed = self._budget.next_seconds()
        warming = time.perf_counter()
        self._once(act, before)
        began = time.perf_counter()
        found = [self._once(act, before)]
        ended = time.perf_counter()
        once, round_s, left = self.average([found[0][1], ended - began, allowed - (ended - warming)])
        times = 1 if before is not None else max(1, min(16, int(_LONG_ENOUGH_S / once)))
        round_s += (times - 1) * once
        rounds = max(_FEWEST, min(_MOST, int(budget_s / round_s)))
        in_time = int(max(left, _LATE_S) / round_s)
        if in_time >= _FEWEST_LATE or times > 1:
            found = []  # what came before is warmer then
        rounds = max(_FEWEST_LATE - len(found), min(rounds, in_time))
        found += [self._once(act, before, times) for _ in range(rounds)]
        # Other programs make it last longer, nothing makes it shorter.
        cores, clock, scripts = zip(*found)
        core, seconds, script = self.average([np.median(cores), min(clock), np.median(scripts)])
        return Measurement(max(0.0, float(core)), float(seconds), float(script))
