"""Speeds of the cores of a job's hosts, by the number of them that are busy (collective)."""
import dataclasses
import statistics
import time
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ...job.job import Job
from ..cluster.cluster_spec import Host
from ..profiling.core_benchmark import CoreBenchmark, KernelTimes
from ..profiling.other_programs import BUSY_SHARE, processor_seconds
from .cpu_meter import CpuMeter
from .step_benchmark import StepBenchmark, StepTimes, slowdowns

#: Maximal number of counts of busy cores that are measured; speeds between them are interpolated.
_MOST_COUNTS = 4

#: The phase in which worker 0 computes alone.
_ALONE = 0


def busy_counts(most: int) -> List[int]:
    """Return the counts of busy cores that are measured: one, all, and some in between."""
    counts = {1, most}
    count = 2
    while count < most and len(counts) < _MOST_COUNTS:
        counts.add(count)
        count *= 4
    return sorted(counts)


def speeds_by_count(measured: Dict[int, float], cores: int) -> Tuple[float, ...]:
    """Return the speeds of a core while 1, 2, and so on up to `cores` of them are busy.

    The time that work takes is interpolated linearly between the measured counts.  A core does not become faster when
    more of them are busy: a measurement that says so was disturbed, and the speed with fewer busy cores is returned.
    """
    counts = sorted(measured)
    seconds = np.interp(range(1, cores + 1), counts, [1 / measured[count] for count in counts])
    return tuple((1 / np.maximum.accumulate(seconds)).tolist())


class CpuSeconds(NamedTuple):
    """The time on the clock, and the seconds that a rank's processors have worked: for all programs, and for the rank's
    worker and servers.
    """

    clock: float
    all_programs: float
    own_programs: float


def others_share(processors: Sequence[Any], before: Sequence[CpuSeconds], after: Sequence[CpuSeconds]
                 ) -> List[float]:
    """Return, by rank, the share of its processors that programs outside of the job used.

    - `processors`: by rank: equal for ranks that share processors; the last item is their number.
    - `before`, `after`: by rank.
    """
    shares = []
    for mine, begun, ended in zip(processors, before, after):
        own_s = sum(end.own_programs - begin.own_programs
                    for theirs, begin, end in zip(processors, before, after) if theirs == mine)
        all_s = ended.all_programs - begun.all_programs
        shares.append(max(0.0, all_s - own_s) / max(1e-9, (ended.clock - begun.clock) * mine[-1]))
    return shares


class CoreSpeeds:
    """Repeats of the core benchmark and of the step benchmark on all hosts at once: on one core of each, on all of
    them, and in between.

    - `hosts`: with their ranks and cores.
    - `resources`: by rank, what :func:`.host_resources.local_resources` returns.
    """

    def __init__(self, job: Job, meter: CpuMeter, hosts: Sequence[Host], resources: Sequence[Dict[str, Any]]):
        self._meter, self._hosts, self._rank = meter, hosts, job.rank
        #: By rank: the number of its host, and its number among the ranks there.
        self._places = [(number, local_rank) for number, host in enumerate(hosts) for local_rank in range(host.ranks)]
        self._cores = [max(1, min(host.ranks, int(host.cores))) for host in hosts]
        self._phases = busy_counts(max(self._cores)) + [_ALONE] * (len(hosts) > 1)
        self._cpus = resources[job.rank]['cpus']
        self._processors = [(local['boot'], tuple(local['cpus']), len(local['cpus'])) for local in resources]
        self._benchmark = CoreBenchmark()
        self._repeats: Dict[int, List[KernelTimes]] = {phase: [] for phase in self._phases}
        self._step_benchmark = StepBenchmark() if max(self._cores) > 1 else None
        self._steps: Dict[int, List[StepTimes]] = {phase: [] for phase in self._phases}
        #: By rank, the largest share of its processors that other programs used.
        self.others = [0.0] * len(self._places)

    def _takes_part(self, rank: int, phase: int) -> bool:
        host, local_rank = self._places[rank]
        if phase == _ALONE:
            return rank == 0
        # Where ranks share cores, all of them compute when all cores are busy.
        return local_rank < phase or phase >= self._cores[host]

    def repeat(self, times: int) -> None:
        """Run the benchmarks in each phase, `times` times."""
        before = self._cpu_seconds()
        for _ in range(times):
            for phase in self._phases:
                self._meter.barrier()
                if self._takes_part(self._rank, phase):
                    self._repeats[phase].append(self._benchmark.run())
                if self._step_benchmark is None or phase == _ALONE:
                    continue
                self._meter.barrier()
                if self._takes_part(self._rank, phase):
                    self._steps[phase].append(self._step_benchmark.run())
        self._meter.barrier()
        shares = others_share(self._processors, before, self._cpu_seconds())
        self.others = [max(pair) for pair in zip(self.others, shares)]

    def _cpu_seconds(self) -> List[CpuSeconds]:
        all_programs, own = processor_seconds(self._cpus), self._meter.cpu_seconds()
        # If the kernel does not tell how long processors have worked, no other program is assumed to compute.
        mine = CpuSeconds(time.perf_counter(), own if all_programs is None else all_programs, own)
        return [CpuSeconds(*seconds) for seconds in self._meter.allgather(mine)]

    def reference(self) -> Tuple[KernelTimes, float]:
        """Return the kernel times of worker 0's core alone, and the seconds of the memory kernel while all cores are
        busy.
        """
        by_rank = self._kernel_times()
        return by_rank[0][self._alone], statistics.median(times[max(self._phases)].memory for times in by_rank)

    def hosts_with_speeds(self) -> List[Host]:
        """Return the hosts with their speeds relative to worker 0's core alone."""
        by_rank = self._kernel_times()
        alone = by_rank[0][self._alone]
        # While several cores are busy, steps show the speed: kernels by themselves slow each other down less.
        slowed = self._meter.allgather([[phase, *slowdowns(steps, self._steps[1])] for phase, steps
                                        in self._steps.items() if steps and self._steps[1]])
        hosts, first_rank = [], 0
        for host, cores in zip(self._hosts, self._cores):
            ranks = range(first_rank, first_rank + host.ranks)
            first_rank += host.ranks
            if cores == 1:
                # All cores of the host are busy in a phase for more cores than it has.
                hosts.append(dataclasses.replace(host, speed=statistics.mean(
                    by_rank[rank][max(self._phases)].speed_relative_to(alone) for rank in ranks)))
                continue
            speed = by_rank[ranks[0]][1].speed_relative_to(alone)
            # The first rank of a host takes part in all phases.
            kinds = [speeds_by_count({min(int(phase), cores): speed / of_kind[kind] for phase, *of_kind
                                      in slowed[ranks[0]]}, cores) for kind in range(len(StepTimes._fields))]
            hosts.append(dataclasses.replace(host, speed=kinds[0][-1], speeds=kinds[0], memory_speeds=kinds[1]))
        return hosts

    @property
    def _alone(self) -> int:
        """The phase in which worker 0 computes alone."""
        return _ALONE if _ALONE in self._phases else 1

    def _kernel_times(self) -> List[Dict[int, KernelTimes]]:
        """Return the fastest repeat of each rank by phase."""
        mine = {phase: KernelTimes.fastest(repeats) for phase, repeats in self._repeats.items() if repeats}
        # JSON has no numbers as keys.
        return [{phase: KernelTimes(*seconds) for phase, seconds in pairs}
                for pairs in self._meter.allgather([[phase, list(times)] for phase, times in mine.items()])]

    def problem(self) -> str:
        """Return a description of the hosts on which other programs compute; empty if there are none."""
        busy: Dict[str, float] = {}
        for (host, _), share in zip(self._places, self.others):
            if share > BUSY_SHARE:
                busy[self._hosts[host].name] = max(share, busy.get(self._hosts[host].name, 0.0))
        return ', '.join('other programs use %.0f %% of the processors of %s' % (100 * share, name)
                         for name, share in busy.items())
