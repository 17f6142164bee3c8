"""How fast cores of a job's hosts compute, by the number of them that are busy (collective)."""
import statistics
import time
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ...job.job import Job
from ..cluster.cluster_spec import Host
from ..profiling.core_benchmark import CoreBenchmark, KernelTimes
from ..profiling.other_programs import BUSY_SHARE, processor_seconds
from .cpu_meter import CpuMeter

#: Counts of busy cores that are measured at most; speeds between them are interpolated.
_MOST_COUNTS = 4

#: The phase in which worker 0 computes alone.
_ALONE = 0


def busy_counts(most: int) -> List[int]:
    """Return the counts of busy cores that are measured: one, all, and some between."""
    found = {1, most}
    count = 2
    while count < most and len(found) < _MOST_COUNTS:
        found.add(count)
        count *= 4
    return sorted(found)


def speeds_by_count(measured: Dict[int, float], cores: int) -> Tuple[float, ...]:
    """Return the speeds of a core while 1, 2, and so on up to `cores` of them are busy.

    The time that work takes is linear between counts that were measured.  A core is no faster because more are busy:
    then the measurement was disturbed, and the speed of fewer counts.
    """
    found: List[float] = []
    counts = sorted(measured)
    for busy in range(1, cores + 1):
        low = max([count for count in counts if count <= busy], default=counts[0])
        high = min([count for count in counts if count >= busy], default=counts[-1])
        part = (busy - low) / (high - low) if high > low else 0.0
        speed = 1 / ((1 - part) / measured[low] + part / measured[high])
        found.append(min([speed] + found[-1:]))
    return tuple(found)


class CpuSeconds(NamedTuple):
    """What the processors of a rank have worked: for anybody, and for its worker and servers."""

    clock: float
    everybody: float
    own: float


def others_share(processors: Sequence[Any], before: Sequence[CpuSeconds], after: Sequence[CpuSeconds]
                 ) -> List[float]:
    """Return the share of its processors that programs outside of the job had, by rank.

    Parameters
    ----------
    processors : sequence of tuple
        By rank: equal for ranks that share some, and the last item is how many these are.
    before, after : sequence of CpuSeconds
        By rank.
    """
    found = []
    for mine, begun, ended in zip(processors, before, after):
        own = sum(end.own - begin.own for theirs, begin, end in zip(processors, before, after) if theirs == mine)
        everybody = ended.everybody - begun.everybody
        found.append(max(0.0, everybody - own) / max(1e-9, (ended.clock - begun.clock) * mine[-1]))
    return found


class CoreSpeeds:
    """Repeats of the reference pieces on all hosts at once: on one core of each, on all of them, and between.

    Parameters
    ----------
    job : Job
    meter : CpuMeter
    hosts : sequence of Host
        With their ranks and cores.
    found : sequence of dict
        What :func:`.host_resources.local_resources` returns, by rank.
    """

    def __init__(self, job: Job, meter: CpuMeter, hosts: Sequence[Host], found: Sequence[Dict[str, Any]]):
        self._meter, self._hosts, self._rank = meter, hosts, job.rank
        #: The host of each rank, and which of its ranks it is.
        self._places = [(host, local) for host, one in enumerate(hosts) for local in range(one.ranks)]
        self._cores = [max(1, min(host.ranks, int(host.cores))) for host in hosts]
        self._phases = busy_counts(max(self._cores)) + [_ALONE] * (len(hosts) > 1)
        self._cpus = found[job.rank]['cpus']
        self._processors = [(one['boot'], tuple(one['cpus']), len(one['cpus'])) for one in found]
        self._work = CoreBenchmark()
        self._repeats: Dict[int, List[KernelTimes]] = {phase: [] for phase in self._phases}
        #: By rank, the largest share of its processors that other programs had.
        self.others = [0.0] * len(self._places)

    def _takes_part(self, rank: int, phase: int) -> bool:
        host, local = self._places[rank]
        if phase == _ALONE:
            return rank == 0
        # Where ranks share cores, all of them compute when all cores are busy.
        return local < phase or phase >= self._cores[host]

    def repeat(self, times: int) -> None:
        """Time the pieces of work in each phase."""
        before = self._look()
        for _ in range(times):
            for phase in self._phases:
                self._meter.barrier()
                if self._takes_part(self._rank, phase):
                    self._repeats[phase].append(self._work.run())
        self._meter.barrier()
        shares = others_share(self._processors, before, self._look())
        self.others = [max(pair) for pair in zip(self.others, shares)]

    def _look(self) -> List[CpuSeconds]:
        everybody, own = processor_seconds(self._cpus), self._meter.cpu_seconds()
        # Where the kernel does not say what processors do, nobody else does anything.
        load = CpuSeconds(time.perf_counter(), own if everybody is None else everybody, own)
        return [CpuSeconds(*one) for one in self._meter.allgather(load)]

    def speeds(self) -> Tuple[KernelTimes, List[Tuple[float, ...]], float]:
        """Return the reference of worker 0's core alone, the speeds of each host beside it, and the seconds of the pass
        over memory while all cores are busy.
        """
        mine = {phase: KernelTimes.fastest(repeats) for phase, repeats in self._repeats.items() if repeats}
        # JSON has no numbers as keys.
        everyone = [{phase: KernelTimes(*pieces) for phase, pieces in one}
                    for one in self._meter.allgather([[phase, list(pieces)] for phase, pieces in mine.items()])]
        alone = everyone[0][_ALONE if _ALONE in everyone[0] else 1]
        speeds = []
        for number, cores in enumerate(self._cores):
            ranks = [rank for rank, (host, _) in enumerate(self._places) if host == number]
            # In a phase for more cores than it has, all of its own are busy.
            measured = {min(phase, cores): statistics.mean(everyone[rank][phase].speed_relative_to(alone)
                                                           for rank in ranks if phase in everyone[rank])
                        for phase in self._phases if phase != _ALONE}
            speeds.append(speeds_by_count(measured, cores))
        last = max(self._phases)
        return alone, speeds, statistics.median(one[last].memory for one in everyone)

    def problem(self) -> str:
        """Return words for hosts on which other programs compute; empty where there are none."""
        busy: Dict[str, float] = {}
        for (host, _), share in zip(self._places, self.others):
            if share > BUSY_SHARE:
                busy[self._hosts[host].name] = max(share, busy.get(self._hosts[host].name, 0.0))
        return ', '.join('other programs have %.0f %% of the processors of %s' % (100 * share, name)
                         for name, share in busy.items())
