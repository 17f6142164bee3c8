"""Benchmark of a core: the seconds of three fixed kernels, by which machines are compared.

The kernels stand for the work of networks: a dense product, which is bound by arithmetic, a convolution, and a pass
over memory that no cache holds.  Before and after a batch of timed operators, the benchmark shows whether the machine
was quiet.
"""
import statistics
import time
from typing import Any, Callable, Iterable, List, NamedTuple, Tuple

import mxnet as mx

from .other_programs import BUSY_SHARE, OtherPrograms
from .timer import clock

#: Seconds that a repeat takes; the median of its runs counts.
REPEAT_S = 0.25
#: Number of repeats; the fastest one counts.
REPEATS = 8
#: Floating-point operations of the kernels, and the bytes that the memory kernel reads and writes.
_DENSE_FLOP, _CONVOLUTION_FLOP = 2.0 * 256 * 1024 * 1024, 2.0 * 8 * 28 * 28 * 64 * 64 * 3 * 3
MEMORY_BYTES = 3.0 * (16 << 20)
#: Minimal number of runs in a repeat.
_MIN_RUNS = 3
#: A machine is unsteady if half of the repeats are slower than the fastest one by more than this share.
_UNSTEADY = 0.15


class KernelTimes(NamedTuple):
    """Seconds of a core for each kernel."""

    dense: float
    convolution: float
    memory: float

    def speed_relative_to(self, other: 'KernelTimes') -> float:
        """Return how many times as fast this core is as the other one: the geometric mean over all kernels."""
        return statistics.geometric_mean(theirs / mine for mine, theirs in zip(self, other))

    @property
    def rates(self) -> Tuple[float, float]:
        """Floating-point operations per second of the kernels that are bound by arithmetic, and bytes per second."""
        return (_DENSE_FLOP + _CONVOLUTION_FLOP) / (self.dense + self.convolution), MEMORY_BYTES / self.memory

    @classmethod
    def fastest(cls, repeats: Iterable['KernelTimes']) -> 'KernelTimes':
        """Return the minimum for each kernel: other programs can only make a repeat slower."""
        return cls(*map(min, zip(*repeats)))


class CoreBenchmark:
    """The kernels with their arrays, warmed up."""

    def __init__(self) -> None:
        self._kernels = _make_kernels()
        self.run()

    def run(self) -> KernelTimes:
        """Run the kernels in turn for :data:`REPEAT_S` seconds and return the median of each.

        They are timed by the same clock as operators.
        """
        now = clock()
        times: Tuple[List[float], ...] = tuple([] for _ in self._kernels)
        end = time.perf_counter() + REPEAT_S
        while len(times[0]) < _MIN_RUNS or time.perf_counter() < end:
            for kernel, kernel_times in zip(self._kernels, times):
                before = now()
                kernel()
                mx.nd.waitall()
                kernel_times.append(now() - before)
        return KernelTimes(*map(statistics.median, times))


class BenchmarkResult(NamedTuple):
    """The result of a benchmark of several repeats."""

    #: The fastest of the repeats.
    times: KernelTimes
    #: Share of the processors that other programs used during the benchmark.
    others: float
    #: Half of the repeats were slower than the fastest one by at least this share.
    spread: float

    @property
    def problem(self) -> str:
        """A description of other programs that disturbed the benchmark; empty on a quiet machine."""
        if self.others > BUSY_SHARE:
            return 'other programs use %.0f %% of the processors' % (100 * self.others)
        if self.spread > _UNSTEADY:
            return 'repeats of the same work differ by %.0f %%' % (100 * self.spread)
        return ''


def run_core_benchmark(repeats: int = REPEATS) -> BenchmarkResult:
    """Run the benchmark on this machine, however busy it is now.

    - `repeats`: each takes :data:`REPEAT_S` seconds; one more warms up.
    """
    benchmark, others = CoreBenchmark(), OtherPrograms()
    return benchmark_result([benchmark.run() for _ in range(repeats)], others.share())


def benchmark_result(repeats: List[KernelTimes], others: float) -> BenchmarkResult:
    """Summarize the repeats, during which other programs had the share `others` of the processors."""
    fastest = KernelTimes.fastest(repeats)
    slowdowns = [1 / repeat.speed_relative_to(fastest) for repeat in repeats]
    return BenchmarkResult(fastest, others, statistics.median(slowdowns) - 1)


def _ones(*shape: int) -> Any:
    return mx.nd.ones(shape, ctx=mx.cpu())


def _make_kernels() -> Tuple[Callable[[], Any], ...]:
    rows, weights = _ones(256, 1024), _ones(1024, 1024)
    images, filters = _ones(8, 64, 28, 28), _ones(64, 64, 3, 3)
    values, target = _ones(4 << 20), _ones(4 << 20)
    return (lambda: mx.nd.dot(rows, weights, transpose_b=True),
            lambda: mx.nd.Convolution(images, filters, kernel=(3, 3), pad=(1, 1), num_filter=64, no_bias=True),
            lambda: mx.nd.elemwise_add(values, target, out=target))


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
