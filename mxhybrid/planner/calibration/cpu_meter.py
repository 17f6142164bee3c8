"""Measures the CPU seconds that an action takes: in each worker, and in the servers of its host that work for it.

A calibration measures with cold caches, and within a budget of time, which its parts share.
"""
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx
import numpy as np

from ...job.job import Job

_NAME = 'mxhybrid.calibrate.'
#: Rounds of an empty action, and rounds and seconds of idleness, by which other readings are corrected.
_EMPTY_ROUNDS, _IDLE_ROUNDS, _IDLE_S = 15, 5, 0.1
#: Minimal and maximal number of rounds of an action.
_MIN_ROUNDS, _MAX_ROUNDS = 3, 15
#: Minimal number of rounds if time is up, and seconds that are granted for them all the same.
_MIN_ROUNDS_LATE, _LATE_S = 2, 0.15
#: Seconds of a round; a shorter action is repeated within the round.
_ROUND_S = 0.004

#: A function whose time is measured.
Action = Callable[[], None]


class Measurement(NamedTuple):
    """The time of an action, averaged over all workers."""

    #: CPU seconds of a worker, its servers' included.
    core_s: float
    #: Seconds on the clock.
    elapsed_s: float
    #: CPU seconds of the thread that calls the action, that of the script.
    script_s: float


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of a process of this machine, all threads together; 0 if they cannot be read."""
    try:
        # clock_getcpuclockid(3) makes this number, by CPUCLOCK_SCHED in the kernel's posix-timers.
        return time.clock_gettime(~pid << 3 | 2) if pid > 0 else 0.0
    except OSError:
        return 0.0


class TimeBudget:
    """A time budget: later parts get the time that an earlier part does not use.

    - `seconds`: the time for all parts, from now on.
    - `shares`: the share of each part, in their order; relative to the sum of all shares.
    """

    def __init__(self, seconds: float, shares: Mapping[str, float], clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._ends: Dict[str, float] = {}
        self._began = end = clock()
        for part, share in shares.items():
            end += seconds * share / sum(shares.values())
            self._ends[part] = end
        self._end, self._measurements_left = self._began, 1

    @property
    def elapsed(self) -> float:
        """The seconds since the budget began."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """The seconds until the end of the current part; negative after it."""
        return self._end - self._clock()

    def begin(self, part: str, measurements: int) -> None:
        """Begin a part with this number of measurements."""
        self._end, self._measurements_left = self._ends[part], max(1, measurements)

    def next_seconds(self) -> float:
        """Return the seconds that the next measurement may take; 0 if the time is up."""
        seconds = max(0.0, self.left) / self._measurements_left
        self._measurements_left = max(1, self._measurements_left - 1)
        return seconds


class CpuMeter:
    """Times an action that all workers of a job do at once (every method is collective).

    The seconds of servers are divided among the workers of their host.  The time of barriers, and the time that threads
    take while nothing happens, are subtracted.
    """

    def __init__(self, job: Job, budget: TimeBudget):
        assert job.collective is not None
        self._collective: Any = job.collective
        self._budget = budget
        lane = None if job.servers is None else job.servers.lane
        self._servers = [] if lane is None else lane.local_agents
        #: True if the servers' CPU seconds can be read.
        self.includes_servers = all(process_seconds(pid) > 0 for pid in self._servers) and bool(self._servers)
        places = job.topology.memory_domains
        self._share = 1.0 / list(places).count(places[job.rank])
        self._idle_rate = self._barrier_s = 0.0
        self._idle_rate = min(self._measure_idle_rate() for _ in range(_IDLE_ROUNDS))
        self._barrier_s = float(np.median([self._once(lambda: None)[0] for _ in range(_EMPTY_ROUNDS)]))

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this worker, and its share of those of the host's servers."""
        return time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) + self._share * sum(map(process_seconds,
                                                                                         self._servers))

    def _measure_idle_rate(self) -> float:
        """Return the CPU seconds per second while no worker does anything."""
        self.barrier()
        before, began = self.cpu_seconds(), time.perf_counter()
        time.sleep(_IDLE_S)
        return (self.cpu_seconds() - before) / (time.perf_counter() - began)

    def barrier(self) -> None:
        """Wait for all workers."""
        self._collective.any(False, _NAME + 'meet')

    def is_out_of_time(self) -> bool:
        """Return whether the time for the current part is up, for the workers on average."""
        return bool(self.average([self._budget.left])[0] <= 0)

    def allgather(self, value: Any) -> List[Any]:
        """Return the JSON `value` of every worker, in rank order."""
        return self._collective.allgather_json(value, _NAME + 'values')

    def average(self, values: Any) -> np.ndarray:
        """Return the mean over all workers of each of some numbers."""
        return np.mean(np.array(self.allgather(np.asarray(values, float).tolist())), axis=0)

    def _once(self, action: Action, before: Optional[Action] = None, times: int = 1) -> List[float]:
        if before is not None:
            before()
            mx.nd.waitall()
        self.barrier()
        core, script, began = self.cpu_seconds(), time.thread_time(), time.perf_counter()
        for _ in range(times):
            action()
        script = time.thread_time() - script
        mx.nd.waitall()
        elapsed = time.perf_counter() - began
        self.barrier()  # or servers would still work for others
        until_all_ended = time.perf_counter() - began
        core = self.cpu_seconds() - core - self._idle_rate * until_all_ended - self._barrier_s
        return [core / times, elapsed / times, script / times]

    def measure(self, action: Action, before: Optional[Action] = None, budget_s: float = 0.3) -> Measurement:
        """Time an action.

        The number of rounds follows from `budget_s` and from the time that the budget has for this measurement: at
        least three, or two if that time is spent.

        - `action`: the same on all workers.
        - `before`: called before each round and not timed; none of its work is under way when the round begins.
        - `budget_s`: seconds.
        """
        allowed_s = self._budget.next_seconds()
        warm_up_began = time.perf_counter()
        self._once(action, before)
        began = time.perf_counter()
        rounds = [self._once(action, before)]
        ended = time.perf_counter()
        once_s, round_s, left_s = self.average([rounds[0][1], ended - began, allowed_s - (ended - warm_up_began)])
        times = 1 if before is not None else max(1, min(16, int(_ROUND_S / once_s)))
        round_s += (times - 1) * once_s
        count = max(_MIN_ROUNDS, min(_MAX_ROUNDS, int(budget_s / round_s)))
        count_in_time = int(max(left_s, _LATE_S) / round_s)
        if count_in_time >= _MIN_ROUNDS_LATE or times > 1:
            rounds = []  # later rounds are warmer
        count = max(_MIN_ROUNDS_LATE - len(rounds), min(count, count_in_time))
        rounds += [self._once(action, before, times) for _ in range(count)]
        core, elapsed, script = self.average(typical_round(rounds))
        return Measurement(max(0.0, float(core)), float(elapsed), float(script))


def typical_round(rounds: Sequence[Sequence[float]]) -> List[float]:
    """Return the median of each time of several rounds.

    Latency is the elapsed time less the CPU time, so both are of the same kind of round.  In the fastest round on the
    clock a worker happened to come last and waited for nobody, which no worker does in every step.
    """
    return [float(np.median(seconds)) for seconds in zip(*rounds)]


#: Bytes of an array that is larger than the caches of a core, and than its share of those that cores have in common.
_EVICTING_BYTES = 1 << 26


class CacheEviction:
    """Fills all caches of a core with other data, as a network does in training.

    A network computes before each step.  It reads and writes so much memory that neither the weights and their
    gradients nor the code and the objects of the script are in a cache afterwards; then a script takes up to twice as
    long.
    """

    def __init__(self) -> None:
        self._data: Any = mx.nd.zeros(_EVICTING_BYTES // 4, ctx=mx.cpu())

    def run(self) -> None:
        """Read and write the data, and wait."""
        mx.nd.waitall()
        self._data += 1
        mx.nd.waitall()

    def after(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return a function that calls `action`, and fills the caches."""
        def act_and_evict() -> None:
            action()
            self.run()
        return act_and_evict
