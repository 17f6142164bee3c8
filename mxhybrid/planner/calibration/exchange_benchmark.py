"""What exchanges of a job's workers take: after idleness, one behind the other, and within a network."""
import time
from typing import Callable, List

from ...job.job import Job
from ...parallel.redistribution.worker_group import Team
from .cpu_meter import CpuMeter, Measurement
from .exchange_workload import ExchangeChain, Step

#: Exchanges of the longer chain, and dense layers in both; the shorter one has one exchange.
CHAIN = 5
#: Seconds of idleness before a transfer.
_IDLE_S = 0.03
#: Transfers of each size, and fewer where the fastest ones differ by less than a share, or time is up.
_ROUNDS, _STEADY_ROUNDS, _STEADY = 9, 3, 0.02

#: What an exchange of so many columns is made of, by its number in a chain.
Steps = Callable[[int], Callable[[int], Step]]


class ExchangeBenchmark:
    """Every method is collective."""

    def __init__(self, job: Job, team: Team, meter: CpuMeter):
        self._ranks, self._team, self._meter = job.num_workers, team, meter

    def per_exchange(self, steps: Steps, size: int, in_network: bool = False) -> Measurement:
        """What one direction of one exchange takes, in which a rank gives so many bytes: a long chain without a short
        one.
        """
        taken = []
        for length in (1, CHAIN):
            chain = self._chain(steps, size, length, CHAIN if in_network else 0)
            taken.append(self._meter.measure(chain.there_and_back))
            self._forget(chain)
        ways = 2 * (CHAIN - 1)
        return Measurement(*((long - short) / ways for short, long in zip(*taken)))

    def after_idle(self, steps: Steps, size: int) -> float:
        """Seconds of the fastest of some transfers, each after a pause: programs that compute beside it make it longer,
        nothing makes it shorter.
        """
        chain = self._chain(steps, size, 1)
        chain.there()
        found: List[float] = []
        rounds = _STEADY_ROUNDS if self._meter.is_out_of_time() else _ROUNDS
        while len(found) < rounds:
            found = sorted(found + [self._slowest_worker(chain)])
            if len(found) >= _STEADY_ROUNDS and found[_STEADY_ROUNDS - 1] <= (1 + _STEADY) * found[0]:
                break
        self._forget(chain)
        return found[0]

    def _slowest_worker(self, chain: ExchangeChain) -> float:
        """Seconds of a transfer on the worker that it takes longest."""
        self._meter.barrier()
        time.sleep(_IDLE_S)
        began = time.perf_counter()
        chain.there()
        return max(self._meter.allgather(time.perf_counter() - began))

    def _chain(self, steps: Steps, size: int, length: int, layers: int = 0) -> ExchangeChain:
        columns = size // 4
        return ExchangeChain(self._team, self._ranks, columns, steps(columns), length, layers)

    def _forget(self, chain: ExchangeChain) -> None:
        self._meter.barrier()
        chain.forget()
