"""How fast a core computes: seconds of three fixed pieces of work, by which machines are compared.

They stand for what networks do: a dense product, which is bound by arithmetic, a convolution, and a pass over memory
that no cache holds.
"""
import math
import statistics
import time
from typing import Any, Callable, Iterable, List, NamedTuple, Tuple

import mxnet as mx

from .other_programs import BUSY_SHARE, OtherPrograms
from .timer import clock

#: Seconds of a repeat, of whose runs the median counts, and repeats of which the least one counts.
REPEAT_S, REPEATS = 0.25, 8
#: Runs of a repeat at least.
_FEWEST = 3
#: A machine is not steady where half of the repeats are by more than this share slower than the fastest.
_UNSTEADY = 0.15


class KernelTimes(NamedTuple):
    """Seconds of a core for each piece of work."""

    dense: float
    convolution: float
    memory: float

    def speed_relative_to(self, other: 'KernelTimes') -> float:
        """How many times as fast this is as another one: the geometric mean over all pieces."""
        return math.exp(statistics.mean(math.log(theirs / mine) for mine, theirs in zip(self, other)))

    @classmethod
    def fastest(cls, repeats: Iterable['KernelTimes']) -> 'KernelTimes':
        """Return the least seconds of each piece: other programs make them longer, nothing makes them shorter."""
        return cls(*map(min, zip(*repeats)))


class CoreBenchmark:
    """The pieces of work, with their arrays, warmed up."""

    def __init__(self) -> None:
        self._pieces = _pieces()
        self.run()

    def run(self) -> KernelTimes:
        """Time the pieces in turn for :data:`REPEAT_S` seconds, by the clock that operators are timed with.

        Of the runs of each piece the median counts.
        """
        now = clock()
        times: Tuple[List[float], ...] = tuple([] for _ in self._pieces)
        end = time.perf_counter() + REPEAT_S
        while len(times[0]) < _FEWEST or time.perf_counter() < end:
            for work, found in zip(self._pieces, times):
                before = now()
                work()
                mx.nd.waitall()
                found.append(now() - before)
        return KernelTimes(*map(statistics.median, times))


class BenchmarkResult(NamedTuple):
    """A timing of the pieces of work.

    Attributes
    ----------
    times : KernelTimes
        The least of the repeats.
    others : float
        Share of the processors that other programs had meanwhile.
    spread : float
        By which share half of the repeats were slower than the fastest, at least.
    """

    times: KernelTimes
    others: float
    spread: float

    @property
    def problem(self) -> str:
        """Words for what disturbs the reading; empty on a quiet machine."""
        if self.others > BUSY_SHARE:
            return 'other programs have %.0f %% of the processors' % (100 * self.others)
        if self.spread > _UNSTEADY:
            return 'the same work takes from one moment to the next %.0f %% longer' % (100 * self.spread)
        return ''


def run_core_benchmark(repeats: int = REPEATS) -> BenchmarkResult:
    """Time the pieces of work on this machine, as busy as it is now.

    Parameters
    ----------
    repeats : int, optional
        Each takes :data:`REPEAT_S` seconds, and so does one more that warms up; the least of them counts.
    """
    work, others = CoreBenchmark(), OtherPrograms()
    return benchmark_result([work.run() for _ in range(repeats)], others.share())


def benchmark_result(repeats: List[KernelTimes], others: float) -> BenchmarkResult:
    """Return what repeats show, and the share of other programs meanwhile."""
    least = KernelTimes.fastest(repeats)
    slower = [1 / one.speed_relative_to(least) for one in repeats]
    return BenchmarkResult(least, others, statistics.median(slower) - 1)


def _ones(*shape: int) -> Any:
    return mx.nd.ones(shape, ctx=mx.cpu())


def _pieces() -> Tuple[Callable[[], Any], ...]:
    rows, weights = _ones(256, 1024), _ones(1024, 1024)
    images, filters = _ones(8, 64, 28, 28), _ones(64, 64, 3, 3)
    values, target = _ones(4 << 20), _ones(4 << 20)
    return (lambda: mx.nd.dot(rows, weights, transpose_b=True),
            lambda: mx.nd.Convolution(images, filters, kernel=(3, 3), pad=(1, 1), num_filter=64, no_bias=True),
            lambda: mx.nd.elemwise_add(values, target, out=target))
