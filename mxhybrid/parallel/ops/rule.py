"""What a rule of an operator says: how it can be split, what a part of it reads, which attributes the part has."""
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from ..sharding.box import Box, Range, full, size_of
from ..sharding.layout import Layout
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard, Split
from .graph import Graph, Operator


class OperatorShard:
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
    not_replicable = False
    #: ``'convolution'`` or ``'dense'`` for the layers that grids and cost formulas know; ``''`` for all others.
    layer_kind = ''
    #: Whether the planner's search chooses the split; other operators follow what they read.
    is_searched = False
    #: Whether its weight is a matrix or a set of filters, which a split of the layer cuts.
    splits_weight = False
    #: Whether MXNet adds the gradients of its weights to those of other calls, as where a cell is called for each time.
    adds_weight_gradients = False
    #: Whether the gradient of an input is the output's own array.
    shares_gradient = False
    #: Whether outputs are in a layout of oneDNN's, always or where an input is.
    makes_blocked, keeps_blocked = False, False
    #: Whether channels of images stand in front of height and width.
    makes_images = False
    #: Whether dimensions of the output are others than those of the input at the same places.
    moves_dimensions = False
    #: Whether each element of the output comes of the elements at its place.
    is_elementwise = False
    #: Whether addends follow the last dimension of what is read: each part takes the elements that are in its range.
    sums_last_dimension = False
    #: Whether it gives the gradient of a loss, whatever gradient comes back to it.
    is_loss = False
    #: Whether it normalises by statistics of the batch.
    has_statistics = False
    #: Which input has indices, lengths or labels, through which no gradient flows.
    index_input: Optional[int] = None
    #: Builds the operator where ranks compute together what one of them alone cannot, see :class:`Collective`.
    collective: Optional['Collective'] = None

    def covers(self, operator: Operator) -> bool:
        """Tell whether the rule holds for an operator, whatever its attributes are."""
        return True

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Of what each dimension of the first output is cut in multiples."""
        return [1] * len(graph.shape(operator))

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Which dimensions of the first output can be cut."""
        return [False] * len(graph.shape(operator))

    def limits(self, graph: Graph, operator: Operator) -> List[int]:
        """The highest degree of each dimension of the first output."""
        return [max(1, count // grain) if can else 1 for count, grain, can in
                zip(graph.shape(operator), self.grains(graph, operator), self.splittable(graph, operator))]

    def addends(self, graph: Graph, operator: Operator) -> int:
        """Into how many ranges what it sums over can be cut at most."""
        return 1

    def propagate(self, graph: Graph, operator: Operator,
                  degrees: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, ...], int]]:
        """Degrees and addends with which each part reads what its rank has, of what is split in `degrees`; None where
        there are none.
        """
        return (degrees, 1) if self._within(graph, operator, degrees) else None

    def _within(self, graph: Graph, operator: Operator, degrees: Tuple[int, ...]) -> bool:
        return all(degree <= limit for degree, limit in zip(degrees, self.limits(graph, operator)))

    def shard(self, graph: Graph, operator: Operator, place: OutputShard) -> OperatorShard:
        """The part that makes a box of the first output."""
        return OperatorShard([full(shape) for shape in graph.inputs(operator)],
                    [full(graph.shape(operator, output)) for output in range(operator.outputs)])

    def averages(self, operator: Operator) -> Sequence[int]:
        """Return which inputs are running averages that each call updates."""
        return ()

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number that indices, or lengths, are below; None for labels that may be any numbers."""
        return None

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return the floating-point operations of the forward pass of a part."""
        return float(self.elements_moved(operator, shard))

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the number of elements that the forward pass of a part reads and writes."""
        return elements_of(shard.outputs[:operator.outputs]) + elements_of(shard.inputs)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return where each output has the samples, of where each input has them; None where that is not known.

        By default they are along the one dimension of which any range is made of the same range of the samples of every
        input that has them.  Equal lengths say nothing: samples and times may be equally many.
        """
        unknown: List[Optional[SampleAxis]] = [None] * operator.outputs
        having = {at: axis for at, axis in enumerate(known) if axis is not None}
        if len({axis[1:] for axis in having.values()}) != 1:
            return unknown
        found, shapes = [], graph.inputs(operator)
        for dimension, can in enumerate(self.splittable(graph, operator)):
            probes = self._probes(graph, operator, dimension) if can else []
            if not probes:
                continue
            moved = [at for at, axis in having.items() if shapes[at][axis.axis] == graph.shape(operator)[dimension]
                     and all(_range_of(shard.inputs[at], axis.axis) == probe for probe, shard in probes)]
            if moved:
                found.append((moved, probes))
        if len(found) != 1 or len(found[0][0]) != len(having):
            return unknown  # of no dimension, or of several: then each element is of several samples
        runs = next(iter(having.values()))
        axes = [_axis_of_output([(probe, shard.outputs[output]) for probe, shard in found[0][1]])
                for output in range(operator.outputs)]
        return [None if axis is None else runs._replace(axis=axis) for axis in axes]

    def _probes(self, graph: Graph, operator: Operator, dimension: int) -> List[Tuple[Range, 'OperatorShard']]:
        """The first and the last range of a dimension of the first output, and the parts that make them."""
        shape = graph.shape(operator)
        grain, count = self.grains(graph, operator)[dimension], shape[dimension]
        if count < 2 * grain:
            return []
        return [(cut, self.shard(graph, operator, OutputShard(with_range(full(shape), dimension, cut))))
                for cut in ((0, grain), (count // grain * grain - grain, count))]


class OnOneRank(Rule):
    """An operator without a rule that one rank computes for all: it draws numbers, or makes a loss."""

    not_replicable = True


class Collective(Protocol):
    """An operator that several ranks compute together: each tells the others what it has computed of its part."""

    @staticmethod
    def applies(graph: Graph, operator: Operator, split: Split) -> bool:
        """Tell whether ranks need each other, the operator being split so."""

    @staticmethod
    def layouts(graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], Any]:
        """Return what each rank tells, what it is told, and the type of that."""

    @staticmethod
    def build(program: Any, operator: Operator, given: List[Any]) -> Any:
        """Return the symbol of this rank's part; None if it has none."""

    @staticmethod
    def build_alone(program: Any, operator: Operator, given: List[Any]) -> Any:
        """Return the symbol of a part that needs no other rank; None where it is the operator as it is."""


def elements_of(boxes: Sequence[Optional[Box]]) -> int:
    """Return the number of elements of boxes together."""
    return sum(size_of(box) for box in boxes if box is not None)


def axis_length(graph: Graph, operator: Operator, default: int) -> int:
    """Return the length of the first input along the operator's axis."""
    return graph.inputs(operator)[0][int(operator.get('axis', default))]


def _range_of(box: Optional[Box], axis: int) -> Optional[Range]:
    return None if box is None else box[axis]


def _axis_of_output(made: List[Tuple[Range, Box]]) -> Optional[int]:
    """The only dimension of which parts make the ranges that were asked for."""
    found = [axis for axis in range(len(made[0][1])) if all(box[axis] == probe for probe, box in made)]
    return found[0] if len(found) == 1 else None


def as_tuple(value: Any, count: int, default: int) -> Tuple[int, ...]:
    """An attribute with one number for each of several dimensions."""
    if value is None or value == ():
        value = default
    return tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * count


def axis_of(operator: Operator, dimensions: int, default: int, name: str = 'axis') -> int:
    """An axis, counted from 0."""
    return int(operator.get(name, default)) % dimensions


def summed(count: int, place: OutputShard) -> Range:
    """The range of what an operator sums over that makes an addend."""
    return count * place.addend // place.addends, count * (place.addend + 1) // place.addends


def with_range(box: Box, dimension: int, value: Range) -> Box:
    """A box with another range in one dimension."""
    return box[:dimension] + (value,) + box[dimension + 1:]


def shape_only(graph: Graph, operator: Operator, first: int = 1) -> List[Optional[Box]]:
    """Return what parts read of an operator's inputs, from one on, of which the shapes alone count: nothing, but all of
    a weight, so that somebody holds it.
    """
    return [full(graph.shapes[entry]) if entry[0] in graph.fixed else None for entry in operator.inputs[first:]]
