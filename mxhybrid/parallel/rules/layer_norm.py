"""LayerNorm."""
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_of, with_range
from ..sharding.box import full
from ..sharding.split import OutputShard


@register('LayerNorm')
class LayerNorm(Rule):
    """Whatever is not normalised."""

    adds_weight_gradients = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All but the axis."""
        shape = graph.shape(one)
        return [dimension != axis_of(one, len(shape), -1) for dimension in range(len(shape))]

    def shard(self, graph: Graph, one: Operator, output_shard: OutputShard) -> OperatorShard:
        """As :meth:`Rule.shard`."""
        statistics = with_range(output_shard.box, axis_of(one, len(output_shard.box), -1), (0, 1))
        return OperatorShard([output_shard.box] + [full(shape) for shape in graph.inputs(one)[1:]],
                            [output_shard.box] + [statistics] * (one.outputs - 1))
