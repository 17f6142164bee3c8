"""The work of a shard, and estimates of its time from the times of shards that were measured.

The model is that of Williams, Waterman and Patterson, "Roofline" (CACM 2009), with a sum in place of the maximum: an
operator of MXNet does not compute while it waits for memory.
"""
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.ops.rule import OperatorShard

#: The rates of a nominal core: only ratios between shards count.
_FLOP_PER_S, _BYTES_PER_S = 1e11, 1e10

#: Number of measured shards that an estimate is made from.
_NEIGHBOURS = 3

#: The end of the kind of shards that ranks compute together: its other letters are the operator.
COLLECTIVE = '+'
#: The kind of conversions between layouts of arrays.
CONVERSION = 'conversion'


class Work(NamedTuple):
    """Floating-point operations and bytes moved in the forward pass."""

    flop: float
    bytes: float


class OperatorTime(NamedTuple):
    """A measured shard of an operator, of a kind as :meth:`.profile_key.ProfileKeys.kind` returns it."""

    op: str
    work: Work
    forward: float
    backward: float


class RooflineEstimator:
    """Estimates times from those of measured shards."""

    def __init__(self, measured: Iterable[OperatorTime] = ()):
        self._all = list(measured)
        self._works = {(shard.op, shard.work) for shard in self._all}
        self._by_op: Dict[str, _RooflineRatios] = {}
        self._estimates: Dict[Tuple[str, Work], Tuple[float, float]] = {}

    def has(self, op: str, work: Work) -> bool:
        """Return whether any shard of the operator with this work was measured."""
        return (op, work) in self._works

    def __len__(self) -> int:
        return len(self._all)

    def estimate(self, op: str, work: Work) -> Tuple[float, float]:
        """Return seconds forward and backward.

        The ratio to the roofline model is that of the measured shards nearest in work: of the same kind, or else of the
        same operator where a rank computes it alone, or of any if none of the same was measured.
        """
        if (op, work) not in self._estimates:
            self._estimates[op, work] = self._estimate(op, work)
        return self._estimates[op, work]

    def _estimate(self, op: str, work: Work) -> Tuple[float, float]:
        roofline = roofline_seconds(work)
        if not self._all:
            return roofline, 2 * roofline
        if op not in self._by_op:
            alone = op.rstrip(COLLECTIVE)
            self._by_op[op] = _RooflineRatios(next(shards for shards in (
                [shard for shard in self._all if shard.op == op],
                [shard for shard in self._all if shard.op == alone], self._all) if shards))
        forward, backward = self._by_op[op].log_ratios_near(work)
        return roofline * math.exp(forward), roofline * math.exp(backward)


class _RooflineRatios:
    """Measured shards with the logarithm of each one's ratio to the roofline model."""

    def __init__(self, measured: Sequence[OperatorTime]):
        self._log_works = _logs([shard.work for shard in measured])
        rooflines = np.array([roofline_seconds(shard.work) for shard in measured])
        seconds = np.array([(shard.forward, shard.backward) for shard in measured])
        self._log_ratios = np.log(np.maximum(seconds, 1e-9) / rooflines[:, None])

    def log_ratios_near(self, work: Work) -> List[float]:
        """Return the weighted mean of the nearest shards, forward and backward: the nearer, the larger the weight."""
        distances = np.abs(self._log_works - _logs(work)).sum(axis=1)
        nearest = distances.argsort(kind='stable')[:_NEIGHBOURS]
        weights = 1 / (0.1 + distances[nearest])
        return (weights @ self._log_ratios[nearest] / weights.sum()).tolist()


def _logs(works: Any) -> np.ndarray:
    return np.log(np.maximum(works, 1.0))


def work_of(graph: Graph, operator: Operator, operator_shard: OperatorShard) -> Work:
    """Return the arithmetic of a shard of an operator, and the bytes that it reads and writes."""
    rule, itemsize = rule_of(operator), graph.dtypes[operator.number, 0].itemsize
    return Work(rule.flop(operator, operator_shard), float(rule.elements_moved(operator, operator_shard)) * itemsize)


def arithmetic_share(work: Work, flop_per_s: float = _FLOP_PER_S, bytes_per_s: float = _BYTES_PER_S) -> float:
    """Return the share of time that is bound by arithmetic on a core, by default the nominal one; 0 for no work."""
    arithmetic_s = work.flop / flop_per_s
    return arithmetic_s / max(arithmetic_s + work.bytes / bytes_per_s, 1e-30)


def roofline_seconds(work: Work) -> float:
    """Return the seconds that the nominal core takes."""
    return work.flop / _FLOP_PER_S + work.bytes / _BYTES_PER_S
