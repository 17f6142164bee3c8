"""What a rule of an operator says: how it can be split, what a part of it reads, which attributes the part has."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .boxes import Box, Range, full
from .graph import Graph, Operator
from .split import PartPlace


class OperatorPart:
    """A part of an operator.

    Attributes
    ----------
    inputs : list of Box or None
        What it reads of each input; None where it leaves that out.
    attrs : dict
        Attributes that differ from the whole operator's.
    fills : list of float
        What stands in inputs beyond the tensor.
    outputs : list of Box
        What it makes of each output.
    build : callable, optional
        Makes the outputs of inputs, name and attributes, where that is not the operator alone.
    """

    def __init__(self, inputs: Sequence[Optional[Box]], outputs: Sequence[Box], attrs: Optional[Dict[str, Any]] = None,
                 fills: Optional[Sequence[float]] = None, build: Optional[Callable[..., Any]] = None):
        self.inputs, self.outputs, self.attrs, self.build = list(inputs), list(outputs), attrs or {}, build
        self.fills = list(fills or [0.0] * len(self.inputs))


class Rule:
    """How operators of a kind are split.  The base class has what holds for operators that cannot be split at all."""

    #: Whether a part must have no copies: they would draw other numbers, or keep averages that others do not.
    alone = False

    def grains(self, graph: Graph, one: Operator) -> List[int]:
        """Of what each dimension of the first output is cut in multiples."""
        return [1] * len(graph.shape(one))

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """Which dimensions of the first output can be cut."""
        return [False] * len(graph.shape(one))

    def limits(self, graph: Graph, one: Operator) -> List[int]:
        """The highest degree of each dimension of the first output."""
        return [max(1, count // grain) if can else 1 for count, grain, can in
                zip(graph.shape(one), self.grains(graph, one), self.splittable(graph, one))]

    def addends(self, graph: Graph, one: Operator) -> int:
        """Into how many ranges what it sums over can be cut at most."""
        return 1

    def following(self, graph: Graph, one: Operator, degrees: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, ...], int]]:
        """Degrees and addends with which each part reads what its rank has, of what is split in `degrees`; None where
        there are none.
        """
        return (degrees, 1) if self._within(graph, one, degrees) else None

    def _within(self, graph: Graph, one: Operator, degrees: Tuple[int, ...]) -> bool:
        return all(degree <= limit for degree, limit in zip(degrees, self.limits(graph, one)))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """The part that makes a box of the first output."""
        return OperatorPart([full(shape) for shape in graph.inputs(one)],
                    [full(graph.shape(one, output)) for output in range(one.outputs)])


def as_tuple(value: Any, count: int, default: int) -> Tuple[int, ...]:
    """An attribute with one number for each of several dimensions."""
    if value is None or value == ():
        value = default
    return tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * count


def axis_of(one: Operator, dimensions: int, default: int, name: str = 'axis') -> int:
    """An axis, counted from 0."""
    return int(one.get(name, default)) % dimensions


def summed(count: int, place: PartPlace) -> Range:
    """The range of what an operator sums over that makes an addend."""
    return count * place.addend // place.addends, count * (place.addend + 1) // place.addends


def with_range(box: Box, dimension: int, value: Range) -> Box:
    """A box with another range in one dimension."""
    return box[:dimension] + (value,) + box[dimension + 1:]
