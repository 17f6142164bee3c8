"""Rules of operators: how an operator can be split, which boxes a shard reads, and which attributes it has."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

from ...native.symbols import symbol_function
from ..sharding.box import Box, Range, full, size_of
from ..sharding.layout import Layout
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard, Split
from .graph import Alignment, Entry, Graph, Operator


class OperatorShard:
    """A shard of an operator.

    - `inputs`: the box of each input that it reads; None for an input that it leaves out.
    - `attrs`: attributes that differ from the whole operator's.
    - `fills`: the value of each input beyond the tensor.
    - `outputs`: the box of each output that it computes.
    - `build`: makes the outputs from inputs, name and attributes, where the shard is not the operator with other
      attributes.
    """

    def __init__(self, inputs: Sequence[Optional[Box]], outputs: Sequence[Box], attrs: Optional[Dict[str, Any]] = None,
                 fills: Optional[Sequence[float]] = None, build: Optional[Callable[..., Any]] = None):
        self.inputs, self.outputs, self.attrs, self.build = list(inputs), list(outputs), attrs or {}, build
        self.fills = list(fills or [0.0] * len(self.inputs))

    def attributes(self, operator: Operator) -> Dict[str, str]:
        """Return the attributes of the shard, as texts."""
        return {**operator.settings, **{key: str(value) for key, value in self.attrs.items()}}

    def symbol(self, operator: Operator, inputs: List[Any], name: str) -> Any:
        """Return the symbol of the outputs, given those of the inputs that the shard reads."""
        if self.build is not None:
            return self.build(inputs, name, self.attributes(operator))
        return symbol_function(operator.op)(*inputs, name=name, **self.attributes(operator))


class Rule:
    """The rule of a kind of operators: how they can be split, and other properties that runtime and planner need.

    The base class is the rule of operators that cannot be split.
    """

    #: Whether every dimension of the first output can be split.
    splits_every_dimension = False
    #: Whether a shard must have no copies, which would draw other numbers or update running averages of their own.
    not_replicable = False
    #: ``'convolution'`` or ``'dense'`` for the layers that grids and cost formulas know; ``''`` for all others.
    layer_kind = ''
    #: Whether the planner's search chooses the split; other operators are split like their inputs.
    is_searched = False
    #: Whether its weight is a matrix or a set of filters, which a split of the layer cuts.
    splits_weight = False
    #: Whether MXNet adds the gradients of its weights to those of other calls, for example if a cell is called at each
    #: time.
    adds_weight_gradients = False
    #: Whether the gradient of an input is the same array as that of the output.
    shares_gradient = False
    #: Whether outputs are in a layout of oneDNN: always, or where an input is.
    makes_blocked, keeps_blocked = False, False
    #: Whether outputs are images, with channels in front of height and width.
    makes_images = False
    #: Whether a dimension of the output may have another meaning than that of the input at the same position.
    moves_dimensions = False
    #: Whether each element of the output depends on the input elements at its position alone.
    is_elementwise = False
    #: Whether it reduces dimensions of its only input.
    reduces = False
    #: Whether a split of the last dimension of the input propagates as partial sums.
    sums_last_dimension = False
    #: Whether it returns the gradient of a loss, whatever gradient comes back to it.
    is_loss = False
    #: Whether it asks for no gradient of its output: MXNet makes no backward pass of what reads this output alone.
    ignores_gradient = False
    #: Whether it normalizes by statistics of the batch.
    has_statistics = False
    #: The input that has indices, lengths or labels, through which no gradient flows.
    index_input: Optional[int] = None
    #: Whether it takes factors of dimensions for dimensions; otherwise :class:`.factored_rule.FactoredRule` applies it.
    takes_factors = False
    #: Builds the operator where no rank can compute its shard alone.
    collective: Optional[Type['Collective']] = None

    def covers(self, operator: Operator) -> bool:
        """Return whether the rule holds for an operator with these attributes."""
        return True

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return, for each dimension of the first output, the number whose multiples are the ends of ranges."""
        return [1] * len(graph.shape(operator))

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the dimensions of the first output that can be split."""
        return [self.splits_every_dimension] * len(graph.shape(operator))

    def limits(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the highest degree of each dimension of the first output."""
        return [max(1, count // grain) if can else 1 for count, grain, can in
                zip(graph.shape(operator), self.grains(graph, operator), self.splittable(graph, operator))]

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the highest number of ranges into which the summed dimension can be split."""
        return 1

    def summed_axes(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        """Return the positions of inputs, and their dimensions, of which each partial sum reads a range."""
        return []

    def propagate(self, graph: Graph, operator: Operator,
                  degrees: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, ...], int]]:
        """Return degrees and partial sums with which each shard reads what its rank has of an input that is split in
        `degrees`; None if there are none.
        """
        return (degrees, 1) if self._within(graph, operator, degrees) else None

    def _within(self, graph: Graph, operator: Operator, degrees: Tuple[int, ...]) -> bool:
        return all(degree <= limit for degree, limit in zip(degrees, self.limits(graph, operator)))

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard that computes a box of the first output."""
        return OperatorShard([full(shape) for shape in graph.inputs(operator)],
                             [full(graph.shape(operator, output)) for output in range(operator.outputs)])

    def alignments(self, graph: Graph, operator: Operator) -> List[Optional[Alignment]]:
        """Return the alignment of each dimension of the first output; None for one that has no input's dimension.

        By default it is found by comparing what shards of the first and of the last range read and compute.
        """
        alignments: List[Optional[Alignment]] = []
        shapes, can_split = graph.inputs(operator), self.splittable(graph, operator)
        grains = self.grains(graph, operator)
        for dimension, length in enumerate(graph.shape(operator)):
            is_plain = can_split[dimension] and grains[dimension] == 1
            probes = self._probes(graph, operator, dimension) if is_plain else []

            def axis_in(boxes: List[Optional[Box]], shape: Tuple[int, ...], length: int = length,
                        probes: List[Tuple[Range, 'OperatorShard']] = probes) -> Optional[int]:
                if None in boxes:
                    return None
                return next((axis for axis, count in enumerate(shape) if count == length and all(
                    _range_of(box, axis) == probe for box, (probe, _) in zip(boxes, probes))), None)
            inputs = {position: axis for position, shape in enumerate(shapes) for axis in
                      [axis_in([shard.inputs[position] for _, shard in probes], shape)] if axis is not None}
            outputs = {output: axis for output in range(operator.outputs) for axis in
                       [axis_in([shard.outputs[output] for _, shard in probes], graph.shape(operator, output))]
                       if axis is not None}
            alignments.append(Alignment(inputs, outputs) if probes and inputs and 0 in outputs else None)
        return alignments

    def reshaped(self, graph: Graph, operator: Operator) -> List[Tuple[range, range]]:
        """Return the groups of neighbouring dimensions of the first input and the output that have the same elements,
        in the same order.
        """
        return []

    def repeated(self, graph: Graph, operator: Operator) -> Dict[int, int]:
        """Return the number of neighbouring copies of each element of the first input, by dimension."""
        return {}

    def heads(self, graph: Graph, operator: Operator) -> List[Tuple[Entry, int, int, int]]:
        """Return the dimensions of inputs and outputs that contain heads of attention: the entry, the dimension, the
        number of neighbouring coordinates of a head, and the number of heads.
        """
        return []

    def whole_axes(self, graph: Graph, operator: Operator) -> List[Tuple[Entry, int]]:
        """Return the dimensions of inputs that must have no factors, although the rule takes factors."""
        return []

    def batch_axes(self, graph: Graph, operator: Operator) -> Sequence[int]:
        """Return the dimensions of the first output along which it is many products of matrices."""
        return ()

    def averages(self, operator: Operator) -> Sequence[int]:
        """Return the inputs that are running averages, which each call updates."""
        return ()

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the exclusive upper bound of indices or lengths; None for labels that may be any numbers."""
        return None

    def lone_weight(self, graph: Graph, operator: Operator, shards: Sequence['OperatorShard']) -> Optional[int]:
        """Return the position of a weight whose gradient MXNet can neither add up nor pass on with these shards of all
        ranks; None if there is none.
        """
        return None

    def substitute(self, graph: Graph, operator: Operator) -> Optional[Callable[..., Any]]:
        """Return a function like :attr:`OperatorShard.build` that makes the operator of others, since MXNet's own has a
        fault; None if it has none.
        """
        return None

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return the number of floating-point operations of a shard's forward pass."""
        return float(self.elements_moved(operator, shard))

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the number of elements that a shard's forward pass reads and writes."""
        return elements_of(shard.outputs[:operator.outputs]) + elements_of(shard.inputs)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis of each output, given those of the inputs; None where it is not known.

        By default it is the one dimension of which every range is computed from the same range of the samples of every
        input that has samples.  Equal lengths say nothing: samples and times may be equally many.  Neither may a range
        that the rule cannot divide, such as a group of channels, contain several samples.
        """
        unknown: List[Optional[SampleAxis]] = [None] * operator.outputs
        sample_axes = {index: axis for index, axis in enumerate(known) if axis is not None}
        if len({axis[1:] for axis in sample_axes.values()}) != 1:
            return unknown
        candidates, shapes, grains = [], graph.inputs(operator), self.grains(graph, operator)
        pattern = next(iter(sample_axes.values()))
        for dimension, can in enumerate(self.splittable(graph, operator)):
            is_within_a_sample = pattern.each % grains[dimension] == 0
            probes = self._probes(graph, operator, dimension) if can and is_within_a_sample else []
            if not probes:
                continue
            length = graph.shape(operator)[dimension]
            matching = [index for index, axis in sample_axes.items() if shapes[index][axis.axis] == length
                        and all(_range_of(shard.inputs[index], axis.axis) == probe for probe, shard in probes)]
            if matching:
                candidates.append((matching, probes))
        if len(candidates) != 1 or len(candidates[0][0]) != len(sample_axes):
            return unknown  # no dimension, or several: then each element depends on several samples
        axes = [_axis_of_output([(probe, shard.outputs[output]) for probe, shard in candidates[0][1]])
                for output in range(operator.outputs)]
        return [None if axis is None else pattern._replace(axis=axis) for axis in axes]

    def _probes(self, graph: Graph, operator: Operator, dimension: int) -> List[Tuple[Range, 'OperatorShard']]:
        """Return the first and the last range of a dimension of the first output, and the shards that compute them."""
        shape = graph.shape(operator)
        grain, count = self.grains(graph, operator)[dimension], shape[dimension]
        if count < 2 * grain:
            return []
        return [(probe, self.shard(graph, operator, OutputShard(with_range(full(shape), dimension, probe))))
                for probe in ((0, grain), (count // grain * grain - grain, count))]


class Substituted(Rule):
    """An operator whose shards are made of other operators, see :meth:`Rule.substitute`; first among several bases."""

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shard = super().shard(graph, operator, output_shard)
        shard.build = self.substitute(graph, operator)
        return shard


class OnOneRank(Rule):
    """An operator without a rule that one rank computes for all: it draws numbers, or is a loss."""

    not_replicable = True


class Collective:
    """An operator that several ranks compute together: they send each other results of their shards."""

    @staticmethod
    def applies(graph: Graph, operator: Operator, split: Split) -> bool:
        """Return whether ranks need each other if the operator is split in this way."""
        raise NotImplementedError

    @staticmethod
    def layouts(graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], Any]:
        """Return the layout of the values that ranks have computed, the box that each rank needs, and their type."""
        raise NotImplementedError

    @staticmethod
    def build(program: Any, operator: Operator, inputs: List[Any]) -> Any:
        """Return the symbol of this rank's shard; None if it has none."""
        raise NotImplementedError

    @staticmethod
    def build_alone(program: Any, operator: Operator, inputs: List[Any]) -> Any:
        """Return the symbol of a shard that needs no other rank; None where that is the operator itself."""
        return None

    @staticmethod
    def complete(program: Any, operator: Operator) -> None:
        """Send values that other ranks need of the operator, once each rank has built its shard (all ranks call it)."""


def elements_of(boxes: Sequence[Optional[Box]]) -> int:
    """Return the number of elements of all boxes."""
    return sum(size_of(box) for box in boxes if box is not None)


def axis_length(graph: Graph, operator: Operator, default: int) -> int:
    """Return the length of the first input along the operator's axis."""
    return graph.inputs(operator)[0][int(operator.get('axis', default))]


def _range_of(box: Optional[Box], axis: int) -> Optional[Range]:
    return None if box is None else box[axis]


def _axis_of_output(probed: List[Tuple[Range, Box]]) -> Optional[int]:
    """Return the only dimension of which the shards compute the probed ranges."""
    axes = [axis for axis in range(len(probed[0][1])) if all(box[axis] == probe for probe, box in probed)]
    return axes[0] if len(axes) == 1 else None


def as_tuple(value: Any, count: int, default: int) -> Tuple[int, ...]:
    """Return an attribute with one number for each of several dimensions."""
    if value is None or value == ():
        value = default
    return tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * count


def axis_of(operator: Operator, dimensions: int, default: int, name: str = 'axis') -> int:
    """Return an axis, counted from 0."""
    return int(operator.get(name, default)) % dimensions


def summed(count: int, output_shard: OutputShard) -> Range:
    """Return the range of a dimension that a shard sums over."""
    partial_index, partials = output_shard.partial_index, output_shard.partials
    return count * partial_index // partials, count * (partial_index + 1) // partials


def with_range(box: Box, dimension: int, value: Range) -> Box:
    """Return a box with another range in one dimension."""
    return box[:dimension] + (value,) + box[dimension + 1:]


def shape_only(graph: Graph, operator: Operator) -> List[Optional[Box]]:
    """Return the boxes of all inputs but the first, of which shards read the shapes alone: None, or the whole box of a
    weight, so that some rank holds the weight.
    """
    return [full(graph.shapes[entry]) if entry[0] in graph.fixed else None for entry in operator.inputs[1:]]
