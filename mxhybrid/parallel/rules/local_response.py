"""The rule of the normalization by neighbouring channels."""
from typing import Any, List

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, with_range
from ..sharding.split import OutputShard


@register('LRN')
class LocalResponse(Rule):
    """LRN: every dimension can be split; a shard also reads the neighbours of its channels."""

    splits_every_dimension = True

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        channel_count, (low, high) = graph.shape(operator)[1], output_shard.box[1]
        reach = int(operator.get('nsize')) // 2
        read = max(0, low - reach), min(channel_count, high + reach)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            return mx.sym.slice_axis(mx.sym.LRN(inputs[0], **attributes), axis=1, begin=low - read[0],
                                     end=high - read[0], name=name)
        return OperatorShard([with_range(output_shard.box, 1, read)], [output_shard.box],
                             build=None if read == (low, high) else build)
