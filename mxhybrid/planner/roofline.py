"""What a part computes and moves, and times of parts that were not measured, by those of others that were.

The model is that of Williams, Waterman and Patterson, "Roofline" (CACM 2009), with a sum in the place of a maximum: an
operator of MXNet's does not compute while it waits for memory.
"""
import math
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..parallel.boxes import shape_of, size_of
from ..parallel.graph import Graph, Operator
from ..parallel.rule import OperatorPart

#: A core that is nobody's: only how two parts compare counts.
_FLOP_PER_S, _BYTES_PER_S = 1e11, 1e10

#: Parts of which an estimate_part is made.
_NEIGHBOURS = 3


class Work(NamedTuple):
    """Of one direction, forward."""

    flop: float
    bytes: float


class Timed(NamedTuple):
    """A part that was measured."""

    op: str
    work: Work
    forward: float
    backward: float


class TimedParts:
    """Parts that were measured, of which those next to another one are found quickly."""

    def __init__(self, parts: Iterable[Timed]):
        self._all = list(parts)
        self._by_op: Dict[str, List[Timed]] = {}
        for one in self._all:
            self._by_op.setdefault(one.op, []).append(one)
        self._logs: Dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._all)

    def next_to(self, op: str, work: Work) -> List[Timed]:
        """Some of the same operator, or of any, in order, all that :func:`estimate_part` takes among them."""
        others = self._by_op.get(op, self._all)
        if len(others) <= _NEIGHBOURS:
            return others
        if op not in self._logs:
            self._logs[op] = np.log(np.maximum([one.work for one in others], 1.0))
        far = np.abs(self._logs[op] - np.log(np.maximum(work, 1.0))).sum(axis=1)
        # More than rounding makes of it.
        enough = np.partition(far, _NEIGHBOURS - 1)[_NEIGHBOURS - 1] + 1e-6
        return [others[at] for at in np.flatnonzero(far <= enough).tolist()]


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


def roof_seconds(work: Work) -> float:
    """Of the core that is nobody's."""
    return work.flop / _FLOP_PER_S + work.bytes / _BYTES_PER_S


def estimate_part(op: str, work: Work, known: Sequence[Timed]) -> Tuple[float, float]:
    """Seconds forward and backward: as far from the model as those parts of the same operator, or of any, that are
    next to it.
    """
    others = [one for one in known if one.op == op] or list(known)
    if not others:
        return roof_seconds(work), 2 * roof_seconds(work)
    nearest = sorted(others, key=lambda one: _distance(one.work, work))[:_NEIGHBOURS]
    weights = [1 / (0.1 + _distance(one.work, work)) for one in nearest]

    def beside(times: List[float]) -> float:
        logs = [math.log(max(seconds, 1e-9) / roof_seconds(one.work)) for one, seconds in zip(nearest, times)]
        return math.exp(sum(weight * log for weight, log in zip(weights, logs)) / sum(weights))
    roof = roof_seconds(work)
    return roof * beside([one.forward for one in nearest]), roof * beside([one.backward for one in nearest])


def _distance(one: Work, other: Work) -> float:
    return sum(abs(math.log(max(mine, 1.0) / max(theirs, 1.0))) for mine, theirs in zip(one, other))


def _product(shape: Sequence[int]) -> float:
    return float(math.prod(shape))
