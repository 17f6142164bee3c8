"""The parts of operators, as arrays: operators of the same shapes have them in common, and splits that differ in their
ranks only the boxes.
"""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ..parallel.boxes import Box, full, shape_of, size_of
from ..parallel.composed import COMPOSED
from ..parallel.graph import Graph, Operator
from ..parallel.rule import OperatorPart
from ..parallel.rule_table import rule_of
from ..parallel.split import PartPlace, Split
from .flows import Placed, as_array


class ToldBoxes(NamedTuple):
    """What parts tell each other: boxes that they have, and want, and bytes of an element."""

    have: np.ndarray
    wanted: np.ndarray
    itemsize: int


def geometry_of(graph: Graph, one: Operator) -> Any:
    """What operators have in common whose parts are the same."""
    return (one.op, tuple(sorted(item for item in one.attrs.items() if not item[0].startswith('__'))),
            tuple((graph.shapes[entry], graph.dtypes[entry]) for entry in one.inputs),
            tuple((graph.shape(one, output), graph.dtypes[one.number, output]) for output in range(one.outputs)))


class Cut:
    """An operator that is cut in some degrees.

    Attributes
    ----------
    places : list of PartPlace
        In the order of a split's ranks.
    parts : list of OperatorPart
    """

    def __init__(self, graph: Graph, one: Operator, split: Split):
        rule, shape = rule_of(one), graph.shape(one)
        self._graph, self._one = graph, one
        self.places = list(split.places(shape, rule.grains(graph, one)).values())
        known: Dict[PartPlace, OperatorPart] = {}
        for place in self.places:
            if place not in known:
                known[place] = rule.part(graph, one, place)
        self.parts = [known[place] for place in self.places]
        composed = COMPOSED[True].get(one.op)
        self._composed = composed if composed is not None and composed.applies(graph, one, split) else None
        self._told: Optional[ToldBoxes] = None
        self._alike: Optional[Tuple[List[int], np.ndarray]] = None
        self._bytes: Optional[np.ndarray] = None
        #: By what an operator reads or makes: which positions, and boxes of those.
        self._boxes: Dict[Tuple[bool, int], Tuple[np.ndarray, np.ndarray]] = {}

    def boxes(self, is_input: bool, at: int) -> Tuple[np.ndarray, np.ndarray]:
        """Of an input or an output: the positions that have a box, and the boxes."""
        if (is_input, at) not in self._boxes:
            every = [part.inputs[at] if is_input else part.outputs[at] for part in self.parts]
            there = [position for position, box in enumerate(every) if box is not None]
            boxes: List[Box] = [box for box in every if box is not None]
            self._boxes[is_input, at] = np.array(there, int), as_array(boxes)
        return self._boxes[is_input, at]

    @property
    def output_bytes(self) -> np.ndarray:
        """Of each position."""
        if self._bytes is None:
            itemsizes = [self._graph.dtypes[self._one.number, output].itemsize for output in range(self._one.outputs)]
            self._bytes = np.array([sum(size_of(box) * itemsize for box, itemsize in zip(part.outputs, itemsizes))
                                    for part in self.parts], float)
        return self._bytes

    @property
    def told(self) -> Optional[ToldBoxes]:
        """Of operators that are several where they are split, else None."""
        if self._told is None and self._composed is not None:
            have, wanted, dtype = self._composed.told(self._graph, self._one, dict(enumerate(
                place.box for place in self.places)))
            positions = range(len(self.places))
            self._told = ToldBoxes(as_array([have.boxes[at] for at in positions]),
                              as_array([wanted[at] for at in positions]), np.dtype(dtype).itemsize)
        return self._told

    @property
    def alike(self) -> Tuple[List[int], np.ndarray]:
        """Positions of parts that differ in what they take, and which of these is like each position."""
        if self._alike is None:
            known: Dict[Any, int] = {}
            positions: List[int] = []
            numbers = []
            for at, (place, part) in enumerate(zip(self.places, self.parts)):
                shapes = tuple(None if box is None else shape_of(box) for box in part.inputs)
                key = shape_of(place.box), place.addends, shapes, tuple(sorted(part.attrs.items()))
                if key not in known:
                    known[key] = len(positions)
                    positions.append(at)
                numbers.append(known[key])
            self._alike = positions, np.array(numbers)
        return self._alike


class PlacedCut:
    """A cut on ranks.

    Attributes
    ----------
    cut : Cut
    ranks : numpy.ndarray of int32
        In the order of the split.
    """

    def __init__(self, cut: Cut, split: Split, intern: Callable[[np.ndarray, np.ndarray], Placed]):
        self.cut, self.ranks, self._intern = cut, np.array(split.ranks, np.int32), intern
        self._order = self.ranks.argsort()
        self._is_ordered = bool((self._order[1:] > self._order[:-1]).all())
        self._placed: Dict[Tuple[bool, int], Placed] = {}

    def inputs(self, at: int) -> Placed:
        """What of an input each rank reads."""
        return self._get(True, at)

    def outputs(self, at: int) -> Placed:
        """What of an output each rank makes."""
        return self._get(False, at)

    def _get(self, is_input: bool, at: int) -> Placed:
        found = self._placed.get((is_input, at))
        if found is None:
            positions, boxes = self.cut.boxes(is_input, at)
            found = self._placed[is_input, at] = (
                self.place(boxes) if len(positions) == len(self.ranks) else self._some(positions, boxes))
        return found

    def place(self, boxes: np.ndarray) -> Placed:
        """Boxes of all positions."""
        if self._is_ordered:
            return self._intern(self.ranks, boxes)
        return self._intern(self.ranks[self._order], np.ascontiguousarray(boxes[self._order]))

    def _some(self, positions: np.ndarray, boxes: np.ndarray) -> Placed:
        ranks = self.ranks[positions]
        order = ranks.argsort()
        return self._intern(ranks[order], np.ascontiguousarray(boxes[order]))


def all_of(shape: Tuple[int, ...], placed: Placed) -> Placed:
    """All of a tensor on the same ranks."""
    return Placed(placed.ranks, np.ascontiguousarray(
        np.broadcast_to(as_array([full(shape)]), (len(placed.ranks), len(shape), 2))))
