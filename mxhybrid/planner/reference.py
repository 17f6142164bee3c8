"""How fast a core computes: seconds of three fixed pieces of work, by which machines are compared.

They stand for what networks do: a dense product, which is bound by arithmetic, a convolution, and a pass over memory
that no cache holds.
"""
import math
import statistics
import time
from typing import Any, Callable, List, NamedTuple, Tuple

import mxnet as mx

#: Of each piece: runs that only warm it up, and runs of which the median counts.
WARMUP, RUNS = 2, 7


class Reference(NamedTuple):
    """CPU seconds of each piece of work."""

    dense: float
    convolution: float
    memory: float

    def speed_beside(self, other: 'Reference') -> float:
        """How many times as fast this is as another one: the geometric mean over all pieces."""
        return math.exp(statistics.mean(math.log(theirs / mine) for mine, theirs in zip(self, other)))


def _ones(*shape: int) -> Any:
    return mx.nd.ones(shape, ctx=mx.cpu())


def reference_seconds(runs: int = RUNS) -> Reference:
    """Time the pieces of work on this machine, as busy as it is now.

    Parameters
    ----------
    runs : int, optional
        Of each piece; the median counts.

    Returns
    -------
    Reference
        CPU seconds of this process, all its threads together: other processes slow them down by the memory and the
        caches that they share, not by the time that they take away.  A tenth of a second in all on a core of today.
    """
    return Reference(*(_median(work, runs) for work in _pieces()))


def _pieces() -> Tuple[Callable[[], Any], ...]:
    rows, weights = _ones(256, 1024), _ones(1024, 1024)
    images, filters = _ones(8, 64, 28, 28), _ones(64, 64, 3, 3)
    values, target = _ones(4 << 20), _ones(4 << 20)
    return (lambda: mx.nd.dot(rows, weights, transpose_b=True),
            lambda: mx.nd.Convolution(images, filters, kernel=(3, 3), pad=(1, 1), num_filter=64, no_bias=True),
            lambda: mx.nd.elemwise_add(values, target, out=target))


def _median(work: Callable[[], Any], runs: int) -> float:
    found: List[float] = []
    for _ in range(WARMUP + runs):
        before = time.process_time()
        work()
        mx.nd.waitall()
        found.append(time.process_time() - before)
    return statistics.median(found[WARMUP:])
