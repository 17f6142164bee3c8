"""The rule of operators that return the shape of an array."""
from typing import Any, List

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule
from ..sharding.box import full, size_of
from ..sharding.split import OutputShard


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
