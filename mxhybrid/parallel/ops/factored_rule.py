"""Applies the rule of an operator to arrays whose dimensions have factors, such as samples and heads of attention.

A shard's box has a range of each factor.  Ranks keep its elements as an array with a dimension for each factor; around
the operator itself, factors are merged to the dimensions that it knows.
"""
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..sharding.box import Box, Range, shape_of
from ..sharding.sample_axis import SampleAxis, after_reshape
from ..sharding.split import OutputShard, Split
from .graph import Alignment, Entry, Factors, Graph, Operator
from .rule import OperatorShard, Rule


class FactoredRule(Rule):
    """A rule for operators that have inputs or outputs with factors.

    A dimension that is the same in inputs and outputs (:class:`.graph.Alignment`) can be split in each of its factors:
    its shard is the operator on smaller arrays.  Other dimensions can be split in the first factor alone.  Dimensions
    stay whole if ranks would have to compute the operator together.
    """

    def __init__(self, rule: Rule):
        for name in dir(Rule):
            if not name.startswith('_') and not callable(getattr(Rule, name)):
                setattr(self, name, getattr(rule, name))
        self.rule, self.collective = rule, None

    def _dimensions(self, graph: Graph, operator: Operator) -> List[Tuple[int, int, Optional[Alignment]]]:
        """Return, for each dimension of the first output, the dimension of the array, the position among the factors of
        that dimension, and the alignment of that dimension.
        """
        alignments = graph.alignments[operator.number]
        return [(axis, position, alignments[axis])
                for axis, part in enumerate(factors_of(graph, (operator.number, 0))) for position in range(len(part))]

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the grains of the array's dimensions, in units of their first factors."""
        grains = self.rule.grains(graph.arrays, operator)
        factors = factors_of(graph, (operator.number, 0))
        result = []
        for axis, position, _ in self._dimensions(graph, operator):
            result.append(grains[axis] // math.gcd(grains[axis], math.prod(factors[axis][1:])) if position == 0 else 1)
        return result

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for factors of aligned dimensions, and for the first factor of others."""
        plain = self.rule.splittable(graph.arrays, operator)
        factors = factors_of(graph, (operator.number, 0))
        return [plain[axis] and not self._is_collective(graph, operator, axis) and (
                    alignment is not None or position == 0
                    and self._reads_products(graph, operator, axis, math.prod(factors[axis][1:])))
                for axis, position, alignment in self._dimensions(graph, operator)]

    def _is_collective(self, graph: Graph, operator: Operator, axis: int) -> bool:
        """Return whether ranks would need each other if a dimension of the array is split."""
        degrees = [2 if at == axis else 1 for at in range(len(graph.array_shapes[operator.number, 0]))]
        return self.rule.collective is not None and self.rule.collective.applies(
            graph.arrays, operator, Split(degrees, (0, 1)))

    def _reads_products(self, graph: Graph, operator: Operator, axis: int, inner: int) -> bool:
        """Return whether shards of a dimension that is not aligned read whole inner factors of inputs."""
        if not self._has_unaligned_factors(graph, operator):
            return True
        arrays = graph.arrays
        shape = graph.array_shapes[operator.number, 0]
        grain = int(np.lcm(self.rule.grains(arrays, operator)[axis], inner))
        for low in range(0, shape[axis], grain):
            box = tuple((low, min(low + grain, shape[axis])) if at == axis else (0, count)
                        for at, count in enumerate(shape))
            shard = self.rule.shard(arrays, operator, OutputShard(box))
            for entry, read in zip(operator.inputs, shard.inputs):
                if read is not None and any(len(part) > 1 and _in_factors(where, part) is None
                                            for where, part in zip(read, factors_of(graph, entry))):
                    return False
        return True

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the most partial sums, 1 if the dimension that is summed over may have factors."""
        return 1 if self._has_unaligned_factors(graph, operator) else self.rule.partials(graph.arrays, operator)

    def summed_axes(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        """Return the dimensions of inputs, see :meth:`Rule.summed_axes`; none if partial sums are not possible."""
        if self.partials(graph, operator) == 1:
            return []
        return [(position, sum(map(len, factors_of(graph, operator.inputs[position])[:axis])))
                for position, axis in self.rule.summed_axes(graph.arrays, operator)]

    @staticmethod
    def _has_unaligned_factors(graph: Graph, operator: Operator) -> bool:
        """Return whether an input has a dimension with factors that is not one of the output."""
        aligned = {pair for alignment in graph.alignments[operator.number] if alignment is not None
                   for pair in alignment.inputs.items()}
        return any(len(part) > 1 and (position, axis) not in aligned for position, entry in enumerate(operator.inputs)
                   for axis, part in enumerate(factors_of(graph, entry)))

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        alignments = graph.alignments[operator.number]
        outputs = [(operator.number, output) for output in range(operator.outputs)]
        parts = _parts(output_shard.box, factors_of(graph, outputs[0]))
        shapes: Dict[Entry, List[int]] = {entry: list(graph.array_shapes[entry])
                                          for entry in operator.inputs + outputs}
        box: List[Range] = []
        aligned_inputs: Dict[Tuple[int, int], Box] = {}
        aligned_outputs: Dict[Tuple[int, int], Box] = {}
        for axis, (part, ranges) in enumerate(zip(factors_of(graph, outputs[0]), parts)):
            alignment = alignments[axis]
            if len(part) == 1:
                box.append(ranges[0])
            elif alignment is None:
                inner = math.prod(part[1:])
                box.append((ranges[0][0] * inner, ranges[0][1] * inner))
            else:
                count = math.prod(shape_of(ranges))
                box.append((0, count))
                for position, input_axis in alignment.inputs.items():
                    shapes[operator.inputs[position]][input_axis] = count
                    aligned_inputs[position, input_axis] = ranges
                for output, output_axis in alignment.outputs.items():
                    shapes[outputs[output]][output_axis] = count
                    aligned_outputs[output, output_axis] = ranges
        arrays = graph.with_arrays({entry: tuple(shape) for entry, shape in shapes.items()})
        shard = self.rule.shard(arrays, operator, output_shard._replace(box=tuple(box)))
        inputs = [None if read is None else _with_factors(read, factors_of(graph, entry), aligned_inputs, position)
                  for position, (entry, read) in enumerate(zip(operator.inputs, shard.inputs))]
        computed = [_with_factors(whole, factors_of(graph, entry), aligned_outputs, output)
                    for output, (entry, whole) in enumerate(zip(outputs, shard.outputs))]
        merged = [shape_of(read) for read in shard.inputs if read is not None]
        with_factors = [shape_of(read) for read in inputs if read is not None]

        def build(symbols: List[Any], name: str, attributes: Any) -> Any:
            arrays = [mx.sym.reshape(symbol, shape=shape) if shape != factors else symbol
                      for symbol, shape, factors in zip(symbols, merged, with_factors)]
            computing = shard.symbol(operator, arrays, name)
            several = len(computing.list_outputs()) > 1
            results = [computing[output] if several else computing for output in range(operator.outputs)]
            results = [result if shape_of(array) == shape_of(factors) else
                       mx.sym.reshape(result, shape=shape_of(factors))
                       for result, array, factors in zip(results, shard.outputs, computed)]
            return results[0] if len(results) == 1 else mx.sym.Group(results)
        return OperatorShard(inputs, computed, shard.attrs, shard.fills, build)

    def averages(self, operator: Operator) -> Sequence[int]:
        return self.rule.averages(operator)

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        return self.rule.index_limit(graph.arrays, operator)

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        return self.rule.flop(operator, shard)

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        return self.rule.elements_moved(operator, shard)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        merged = [after_reshape(axis, graph.shapes[entry], graph.array_shapes[entry])
                  for axis, entry in zip(known, operator.inputs)]
        axes = self.rule.samples(graph.arrays, operator, merged)
        outputs = [(operator.number, output) for output in range(operator.outputs)]
        return [after_reshape(axis, graph.array_shapes[entry], graph.shapes[entry])
                for axis, entry in zip(axes, outputs)]


def factors_of(graph: Graph, entry: Entry) -> Factors:
    """Return the factors of each dimension of an array."""
    return graph.factors.get(entry) or tuple((count,) for count in graph.array_shapes[entry])


def _parts(box: Box, factors: Factors) -> List[Box]:
    """Return the ranges of the factors of each dimension of an array."""
    parts, position = [], 0
    for part in factors:
        parts.append(box[position:position + len(part)])
        position += len(part)
    return parts


def _in_factors(where: Range, part: Sequence[int]) -> Optional[Box]:
    """Return the ranges of factors that are a range of their product; None if there are none."""
    inner = math.prod(part[1:])
    if where[0] % inner or where[1] % inner:
        return None
    return ((where[0] // inner, where[1] // inner),) + tuple((0, count) for count in part[1:])


def _with_factors(box: Box, factors: Factors, aligned: Dict[Tuple[int, int], Box], number: int) -> Box:
    """Return the box of an array with factors, given the aligned dimensions' ranges."""
    ranges: List[Range] = []
    for axis, (where, part) in enumerate(zip(box, factors)):
        if (number, axis) in aligned and len(part) > 1:
            ranges += aligned[number, axis]
        elif len(part) > 1:
            in_factors = _in_factors(where, part)
            assert in_factors is not None, (box, factors)
            ranges += in_factors
        else:
            ranges.append(where)
    return tuple(ranges)
