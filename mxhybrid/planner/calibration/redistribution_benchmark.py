"""Times of redistributions between a job's workers: after a pause, one after the other, and within a network."""
import time
from typing import Callable, List

from ...parallel.redistribution.worker_group import WorkerGroup
from .cpu_meter import CpuMeter, Measurement
from .redistribution_workload import RedistributionChain, Step

#: Number of redistributions of the longer chain, and of dense layers in both chains; the shorter chain has one
#: redistribution.
CHAIN = 5
#: Seconds of the pause before a transfer.
_PAUSE_S = 0.03
#: Number of transfers of each size; fewer if the fastest ones differ by less than a share, or time is up.
_ROUNDS, _STEADY_ROUNDS, _STEADY = 9, 3, 0.02


class RedistributionBenchmark:
    """Times redistributions (every method is collective).

    `step` describes each redistribution of a chain by its number, and `size` is the bytes that a rank sends in it.
    """

    def __init__(self, workers: WorkerGroup, meter: CpuMeter):
        self._workers, self._meter = workers, meter

    def per_direction(self, step: Callable[[int], Step], size: int, in_network: bool = False) -> Measurement:
        """Return the time of one direction of a redistribution.

        It is the difference between a long and a short chain, by the difference of their lengths.
        """
        measurements = []
        for length in (1, CHAIN):
            chain = RedistributionChain(self._workers, size // 4, step, length, CHAIN if in_network else 0)
            measurements.append(self._meter.measure(chain.forward_and_backward))
            self._forget(chain)
        directions = 2 * (CHAIN - 1)
        return Measurement(*((long - short) / directions for short, long in zip(*measurements)))

    def after_idle(self, step: Callable[[int], Step], size: int) -> float:
        """Return the seconds of the fastest of some transfers, each after a pause.

        Other programs can only make a transfer longer.
        """
        chain = RedistributionChain(self._workers, size // 4, step, 1)
        chain.forward()
        seconds: List[float] = []
        rounds = _STEADY_ROUNDS if self._meter.is_out_of_time() else _ROUNDS
        while len(seconds) < rounds:
            seconds = sorted(seconds + [self._slowest_worker(chain)])
            if len(seconds) >= _STEADY_ROUNDS and seconds[_STEADY_ROUNDS - 1] <= (1 + _STEADY) * seconds[0]:
                break
        self._forget(chain)
        return seconds[0]

    def _slowest_worker(self, chain: RedistributionChain) -> float:
        """Return the seconds of a transfer on the worker where it takes longest."""
        self._meter.barrier()
        time.sleep(_PAUSE_S)
        began = time.perf_counter()
        chain.forward()
        return max(self._meter.allgather(time.perf_counter() - began))

    def _forget(self, chain: RedistributionChain) -> None:
        self._meter.barrier()
        chain.forget()
