"""A batch of operators that are timed between two readings of the reference, which show whether the machine was quiet.
"""
from .core_benchmark import REPEATS, KernelTimes, run_core_benchmark
from .other_programs import BUSY_SHARE, OtherPrograms

#: Between both readings the machine's speed may change by this share.
_MOVED = 0.1


class TimingBatch:
    """Reads the reference, then watches what other programs compute until the end.

    Attributes
    ----------
    reference : KernelTimes
        What the pieces of work took before the batch.
    """

    def __init__(self) -> None:
        reading = run_core_benchmark()
        self.kernel_times: KernelTimes = reading.times
        self._problem = reading.problem
        self._others = OtherPrograms()

    def end(self) -> str:
        """Return words for what disturbed the batch; empty where the machine was quiet."""
        share = self._others.share()
        if share > BUSY_SHARE and not self._problem:
            self._problem = 'other programs had %.0f %% of the processors' % (100 * share)
        reading = run_core_benchmark(REPEATS // 2)
        moved = reading.times.speed_relative_to(self.kernel_times)
        if not self._problem and max(moved, 1 / moved) > 1 + _MOVED:
            self._problem = 'it became %.2f times as fast meanwhile' % moved
        return self._problem or reading.problem
