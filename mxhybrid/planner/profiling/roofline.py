"""What a part computes and moves, and times of parts that were not measured, by those of others that were.

The model is that of Williams, Waterman and Patterson, "Roofline" (CACM 2009), with a sum in the place of a maximum: an
operator of MXNet's does not compute while it waits for memory.
"""
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.rule import OperatorPart
from ...parallel.sharding.box import shape_of, size_of

#: A core that is nobody's: only how two parts compare counts.
_FLOP_PER_S, _BYTES_PER_S = 1e11, 1e10

#: Parts of which an estimate is made.
_NEIGHBOURS = 3


class Work(NamedTuple):
    """Of one direction, forward."""

    flop: float
    bytes: float


class OperatorTime(NamedTuple):
    """A part that was measured."""

    op: str
    work: Work
    forward: float
    backward: float


class RooflineEstimator:
    """Parts that were measured, by which others are estimated."""

    def __init__(self, parts: Iterable[OperatorTime] = ()):
        self._all = list(parts)
        self._works = {(one.op, one.work) for one in self._all}
        self._by_op: Dict[str, _Measured] = {}
        self._estimates: Dict[Tuple[str, Work], Tuple[float, float]] = {}

    def has(self, op: str, work: Work) -> bool:
        """Whether any part of an operator that does so much was measured."""
        return (op, work) in self._works

    def __len__(self) -> int:
        return len(self._all)

    def estimate(self, op: str, work: Work) -> Tuple[float, float]:
        """Seconds forward and backward: as far from the model as those parts of the same operator, or of any, that are
        next to it.
        """
        if (op, work) not in self._estimates:
            self._estimates[op, work] = self._estimate(op, work)
        return self._estimates[op, work]

    def _estimate(self, op: str, work: Work) -> Tuple[float, float]:
        roof = roofline_seconds(work)
        if not self._all:
            return roof, 2 * roof
        if op not in self._by_op:
            self._by_op[op] = _Measured([one for one in self._all if one.op == op] or self._all)
        forward, backward = self._by_op[op].logs_next_to(work)
        return roof * math.exp(forward), roof * math.exp(backward)


class _Measured:
    """Some parts, and the logarithms of how far each is from the model."""

    def __init__(self, parts: Sequence[OperatorTime]):
        self._works = _logs([one.work for one in parts])
        roofs = np.array([roofline_seconds(one.work) for one in parts])
        seconds = np.array([(one.forward, one.backward) for one in parts])
        self._above = np.log(np.maximum(seconds, 1e-9) / roofs[:, None])

    def logs_next_to(self, work: Work) -> List[float]:
        """Forward and backward, of the parts next to one that does so much: the nearer, the more it counts."""
        far = np.abs(self._works - _logs(work)).sum(axis=1)
        nearest = far.argsort(kind='stable')[:_NEIGHBOURS]
        weights = 1 / (0.1 + far[nearest])
        return (weights @ self._above[nearest] / weights.sum()).tolist()


def _logs(works: Any) -> np.ndarray:
    return np.log(np.maximum(works, 1.0))


def work_of(graph: Graph, one: Operator, part: OperatorPart) -> Work:
    """What a part of an operator computes, and what it reads and writes."""
    boxes = [box for box in part.inputs if box is not None]
    outputs = sum(map(size_of, part.outputs[:one.outputs]))
    moved = outputs + sum(map(size_of, boxes))
    shapes = [shape_of(box) for box in boxes]
    itemsize = graph.dtypes[one.number, 0].itemsize
    if one.op == 'Convolution':
        flop = 2.0 * outputs * _product(shapes[1][1:])
    elif one.op == 'Deconvolution':
        flop = 2.0 * size_of(boxes[0]) * _product(shapes[1][1:])
    elif one.op == 'FullyConnected':
        flop = 2.0 * outputs * shapes[1][-1]
    elif one.op == 'RNN':
        flop = 2.0 * shapes[0][0] * shapes[0][1] * _product(shapes[1])
    elif one.op == 'Embedding':  # it reads rows, not the table
        flop, moved = float(outputs), 2 * outputs
    else:
        flop = float(moved)
    return Work(flop, float(moved) * itemsize)


def roofline_seconds(work: Work) -> float:
    """Of the core that is nobody's."""
    return work.flop / _FLOP_PER_S + work.bytes / _BYTES_PER_S


def _product(shape: Sequence[int]) -> float:
    return float(math.prod(shape))
