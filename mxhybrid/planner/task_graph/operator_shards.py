"""The parts of operators, as arrays: operators of the same shapes have them in common, and splits that differ in their
ranks only the boxes.
"""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...parallel.ops.collective_ops import COMPOSED
from ...parallel.ops.graph import Graph, Operator
from ...parallel.ops.registry import rule_of
from ...parallel.ops.rule import OperatorPart
from ...parallel.sharding.box import Box, full, shape_of
from ...parallel.sharding.split import PartPlace, Split
from .redistribution import RankBoxes, as_array


class InnerRedistribution(NamedTuple):
    """What parts tell each other: boxes that they have, and want, and bytes of an element."""

    have: np.ndarray
    wanted: np.ndarray
    itemsize: int


class _Boxes(NamedTuple):
    """Of what parts read or make."""

    #: Which of them do, in the order of a split's ranks.
    positions: np.ndarray
    #: Of these.
    boxes: np.ndarray


class OperatorShards:
    """An operator that is cut in some degrees.  Of its parts arrays are kept, not what they were made of: many objects
    take memory, and whoever looks through them time.

    Attributes
    ----------
    inputs, outputs : list of _Boxes
    fills : list of float
        What stands in inputs beyond the tensor.
    output_bytes : numpy.ndarray
        Of each part, in the order of a split's ranks.
    different : list of (PartPlace, OperatorPart)
        Parts that may take other times, one of each kind.
    kinds : numpy.ndarray
        Which of these each part is like.
    told : InnerRedistribution or None
        Of operators that are several where they are split.
    """

    def __init__(self, graph: Graph, one: Operator, split: Split):
        rule = rule_of(one)
        places = list(split.places(graph.shape(one), rule.grains(graph, one)).values())
        known: Dict[PartPlace, OperatorPart] = {}
        for place in places:
            if place not in known:
                known[place] = rule.part(graph, one, place)
        parts = [known[place] for place in places]
        self.inputs = [_boxes([part.inputs[at] for part in parts]) for at in range(len(one.inputs))]
        self.outputs = [_boxes([part.outputs[at] for part in parts]) for at in range(one.outputs)]
        self.fills = parts[0].fills
        self.output_bytes = np.zeros(len(places))
        for at, made in enumerate(self.outputs):
            self.output_bytes += ((made.boxes[:, :, 1] - made.boxes[:, :, 0]).prod(axis=1)
                                  * graph.dtypes[one.number, at].itemsize)
        self.different: List[Tuple[PartPlace, OperatorPart]] = []
        numbers: Dict[Any, int] = {}
        kinds: Dict[PartPlace, int] = {}
        for place, part in known.items():
            shapes = tuple(None if box is None else shape_of(box) for box in part.inputs)
            key = shape_of(place.box), place.addends, shapes, tuple(sorted(part.attrs.items()))
            if key not in numbers:
                numbers[key] = len(numbers)
                self.different.append((place, part))
            kinds[place] = numbers[key]
        self.kinds = np.array([kinds[place] for place in places])
        composed = COMPOSED[True].get(one.op)
        self.told: Optional[InnerRedistribution] = None
        if composed is not None and composed.applies(graph, one, split):
            have, wanted, dtype = composed.told(graph, one, dict(enumerate(place.box for place in places)))
            positions = range(len(places))
            self.told = InnerRedistribution(as_array([have.boxes[at] for at in positions]),
                                  as_array([wanted[at] for at in positions]), np.dtype(dtype).itemsize)


def _boxes(boxes: Sequence[Optional[Box]]) -> _Boxes:
    there = [box for box in boxes if box is not None]
    if len(there) == len(boxes):
        return _Boxes(np.arange(len(boxes)), as_array(there))
    return _Boxes(np.array([at for at, box in enumerate(boxes) if box is not None], int), as_array(there))


class ShardedOperator:
    """A cut on ranks.

    Attributes
    ----------
    cut : OperatorShards
    ranks : numpy.ndarray of int32
        In the order of the split.
    """

    def __init__(self, cut: OperatorShards, split: Split, intern: Callable[[np.ndarray, np.ndarray], RankBoxes]):
        self.cut, self.ranks, self._intern = cut, np.array(split.ranks, np.int32), intern
        self._order = self.ranks.argsort()
        self._is_ordered = bool((self._order[1:] > self._order[:-1]).all())
        self._placed: Dict[Tuple[bool, int], RankBoxes] = {}

    def inputs(self, at: int) -> RankBoxes:
        """What of an input each rank reads."""
        return self._get(True, at)

    def outputs(self, at: int) -> RankBoxes:
        """What of an output each rank makes."""
        return self._get(False, at)

    def _get(self, is_input: bool, at: int) -> RankBoxes:
        found = self._placed.get((is_input, at))
        if found is None:
            positions, boxes = (self.cut.inputs if is_input else self.cut.outputs)[at]
            found = self._placed[is_input, at] = (
                self.place(boxes) if len(positions) == len(self.ranks) else self._some(positions, boxes))
        return found

    def place(self, boxes: np.ndarray) -> RankBoxes:
        """Boxes of all positions."""
        if self._is_ordered:
            return self._intern(self.ranks, boxes)
        return self._intern(self.ranks[self._order], np.ascontiguousarray(boxes[self._order]))

    def _some(self, positions: np.ndarray, boxes: np.ndarray) -> RankBoxes:
        ranks = self.ranks[positions]
        order = ranks.argsort()
        return self._intern(ranks[order], np.ascontiguousarray(boxes[order]))


def all_of(shape: Tuple[int, ...], placed: RankBoxes) -> RankBoxes:
    """All of a tensor on the same ranks."""
    return RankBoxes(placed.ranks, np.ascontiguousarray(
        np.broadcast_to(as_array([full(shape)]), (len(placed.ranks), len(shape), 2))))
