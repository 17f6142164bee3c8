"""The rule of LayerNorm."""
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_of, with_range
from ..sharding.box import full
from ..sharding.split import OutputShard


@register('LayerNorm')
class LayerNorm(Rule):
    """LayerNorm: every dimension that is not normalized can be split."""

    adds_weight_gradients = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for every dimension but the axis."""
        shape = graph.shape(operator)
        return [dimension != axis_of(operator, len(shape), -1) for dimension in range(len(shape))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        statistics = with_range(output_shard.box, axis_of(operator, len(output_shard.box), -1), (0, 1))
        return OperatorShard([output_shard.box] + [full(shape) for shape in graph.inputs(operator)[1:]],
                             [output_shard.box] + [statistics] * (operator.outputs - 1))
