"""The rules of operators that give the same elements another shape or order of dimensions, or return their shape."""
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx

from ...native.symbols import symbol_function
from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, shape_only
from ..sharding.box import Range, full, shape_of, size_of
from ..sharding.sample_axis import SampleAxis, after_reshape
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


@register('SwapAxis', 'transpose')
class Permute(Aligned):
    """SwapAxis and transpose: every dimension can be split."""

    moves_dimensions = True

    def _order(self, graph: Graph, operator: Operator) -> List[int]:
        count = len(graph.shape(operator))
        if operator.op == 'SwapAxis':
            order = list(range(count))
            first, second = int(operator.get('dim1', 0)) % count, int(operator.get('dim2', 0)) % count
            order[first], order[second] = second, first
            return order
        axes = operator.get('axes', ())
        return [int(axis) % count for axis in axes] if axes else list(range(count))[::-1]

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        order = self._order(graph, operator)
        return [[order.index(at) for at in range(len(order))]]


def shape_groups(before: Sequence[int], after: Sequence[int]) -> List[Tuple[range, range]]:
    """Return the smallest groups of neighbouring dimensions of two shapes with the same elements in the same order."""
    groups, first, second = [], 0, 0
    while first < len(before) or second < len(after):
        start, begin = first, second
        left = right = 1
        if first < len(before):
            left, first = before[first], first + 1
        if second < len(after):
            right, second = after[second], second + 1
        while left != right:
            if left < right:
                left, first = left * before[first], first + 1
            else:
                right, second = right * after[second], second + 1
        groups.append((range(start, first), range(begin, second)))
    return groups


@register('Reshape', 'reshape', 'Flatten', 'flatten', 'expand_dims', 'squeeze', 'reshape_like')
class Reshape(Rule):
    """An operator that changes the shape, not the order of elements: shards are whole rows of both shapes."""

    moves_dimensions = takes_factors = True

    def reshaped(self, graph: Graph, operator: Operator) -> List[Tuple[range, range]]:
        return shape_groups(graph.inputs(operator)[0], graph.shape(operator))

    def _groups(self, graph: Graph, operator: Operator) -> Dict[int, Tuple[range, range]]:
        """Return the groups of dimensions whose first dimension can be split, by that dimension of the output."""
        before, after = graph.inputs(operator)[0], graph.shape(operator)
        groups = {}
        for old, new in shape_groups(before, after):
            # Dimensions of length 1 in front do not matter.
            old = range(next((at for at in old if before[at] > 1), old.start), old.stop)
            new = range(next((at for at in new if after[at] > 1), new.start), new.stop)
            if len(old) and len(new):
                groups[new.start] = (old, new)
        return groups

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return how many coordinates of an output dimension one coordinate of the input dimension holds; where heads
        have groups, one of the dimension of heads in a group.
        """
        before, after = graph.inputs(operator)[0], graph.shape(operator)
        grains = [1] * len(after)
        levels = _inner_heads(graph, operator.inputs[0])
        for first, (old, new) in self._groups(graph, operator).items():
            inner_old = _product(before, old) // before[old.start]
            for axis, features in levels.items():
                if axis in old:
                    inner_old = _product(before, range(axis + 1, old.stop)) * features
            inner_new = _product(after, new) // after[first]
            if inner_old % inner_new == 0:
                grains[first] = inner_old // inner_new
            elif inner_new % inner_old:
                grains[first] = after[first]
        for axis, features in _inner_heads(graph, (operator.number, 0)).items():
            grains[axis] = features
        return grains

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the first dimension of each group, and for heads in groups of heads."""
        groups, levels = self._groups(graph, operator), _inner_heads(graph, (operator.number, 0))
        return [at in groups or at in levels for at in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`.

        It reads whole rows around its box, and leaves out what it does not need.
        """
        before, after = graph.inputs(operator)[0], graph.shape(operator)
        box, rows = list(full(before)), list(full(after))
        flat: List[int] = []
        needed: List[Range] = []
        for old, new in self._groups(graph, operator).values():
            inner = _strides(after, new)
            low = sum(output_shard.box[at][0] * inner[at] for at in new)
            high = sum((output_shard.box[at][1] - 1) * inner[at] for at in new) + 1
            low, high = _rows_around(after, new, low, high, rows)
            first, last = _rows_around(before, old, low, high, box)
            flat.append(last - first)
            needed.append((low - first, high - first))
        offsets = [(low - start, high - start) for (low, high), (start, _) in zip(output_shard.box, rows)]
        is_exact = tuple(rows) == output_shard.box and needed == [(0, count) for count in flat]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            if is_exact:
                return mx.sym.reshape(inputs[0], shape=shape_of(output_shard.box), name=name)
            symbol = _sliced(mx.sym.reshape(inputs[0], shape=flat), flat, needed)
            symbol = _sliced(mx.sym.reshape(symbol, shape=shape_of(tuple(rows))), shape_of(tuple(rows)), offsets)
            return mx.sym.identity(symbol, name=name)
        return OperatorShard([tuple(box)] + shape_only(graph, operator), [output_shard.box], build=build)

    def samples(self, graph: Graph, operator: Operator,
                known: Sequence[Optional[SampleAxis]]) -> List[Optional[SampleAxis]]:
        """Return the sample axis, where samples are still whole coordinates of a dimension."""
        return [after_reshape(known[0], graph.inputs(operator)[0], graph.shape(operator))]


def _product(shape: Sequence[int], dimensions: range) -> int:
    return math.prod(shape[at] for at in dimensions)


def _strides(shape: Sequence[int], dimensions: range) -> Dict[int, int]:
    """Return the number of elements of each coordinate of neighbouring dimensions."""
    return {at: _product(shape, range(at + 1, dimensions.stop)) for at in dimensions}


def _rows_around(shape: Sequence[int], dimensions: range, low: int, high: int, box: List[Range]) -> Range:
    """Write the smallest box of neighbouring elements that contains a range of some dimensions; return its range."""
    start = 0
    for at, inner in _strides(shape, dimensions).items():
        box[at] = (low - start) // inner, -(-(high - start) // inner)
        if box[at][1] - box[at][0] > 1 or inner == 1:
            return start + box[at][0] * inner, start + box[at][1] * inner
        start += box[at][0] * inner
    raise AssertionError((shape, dimensions))


def _sliced(symbol: Any, shape: Sequence[int], ranges: Sequence[Range]) -> Any:
    """Return a part of an array."""
    for axis, (count, (low, high)) in enumerate(zip(shape, ranges)):
        if (low, high) != (0, count):
            symbol = mx.sym.slice_axis(symbol, axis=axis, begin=low, end=high)
    return symbol


def _inner_heads(graph: Graph, entry: Entry) -> Dict[int, int]:
    """Return the dimensions that are heads in groups of heads, and the features of a head."""
    return {heads.axis: heads.features for heads in graph.heads_of.get(entry, ()) if heads.above > 1}


@register('_contrib_arange_like')
@register('_contrib_MultiBoxPrior', ignored_dimensions=2)
class LikeShape(Rule):
    """arange_like and MultiBoxPrior: only the shape of the input counts, so that no element is read, and every worker
    computes the whole output.
    """

    #: The number of the first dimensions whose lengths do not count.
    ignored_dimensions = 0

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shape, dtype = graph.inputs(operator)[0], graph.dtypes[operator.number, 0]
        shape = (1,) * self.ignored_dimensions + shape[self.ignored_dimensions:]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            return symbol_function(operator.op)(mx.sym.zeros(shape=shape, dtype=dtype), name=name, **attributes)
        return OperatorShard([None], [full(graph.shape(operator))], build=build)


@register('shape_array', 'size_array')
class ShapeOf(Rule):
    """shape_array and size_array: the shape for all samples, which every worker knows, so that no element is read."""

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shape = graph.inputs(operator)[0]
        numbers = shape if operator.op == 'shape_array' else (size_of(full(shape)),)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            dtype = graph.dtypes[operator.number, 0]
            return mx.sym.concat(*[mx.sym.full((1,), number, dtype=dtype) for number in numbers], dim=0, name=name)
        return OperatorShard([None], [full(graph.shape(operator))], build=build)
