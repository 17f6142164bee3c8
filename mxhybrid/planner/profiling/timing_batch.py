"""A batch of timed operators between two runs of the core benchmark, which show whether the machine was quiet."""
from .core_benchmark import REPEATS, KernelTimes, run_core_benchmark
from .other_programs import BUSY_SHARE, OtherPrograms

#: The share by which the machine's speed may change between both runs.
_MOVED = 0.1


class TimingBatch:
    """Runs the core benchmark, then watches how much other programs compute until the end.

    - `kernel_times`: the times of the kernels before the batch.
    """

    def __init__(self) -> None:
        result = run_core_benchmark()
        self.kernel_times: KernelTimes = result.times
        self._problem = result.problem
        self._others = OtherPrograms()

    def end(self) -> str:
        """Return a description of other programs that disturbed the batch; empty if the machine was quiet."""
        share = self._others.share()
        if share > BUSY_SHARE and not self._problem:
            self._problem = 'other programs used %.0f %% of the processors' % (100 * share)
        result = run_core_benchmark(REPEATS // 2)
        speedup = result.times.speed_relative_to(self.kernel_times)
        if not self._problem and max(speedup, 1 / speedup) > 1 + _MOVED:
            self._problem = 'its speed changed by a factor of %.2f meanwhile' % speedup
        return self._problem or result.problem
