"""The rule of dense layers."""
from typing import Any, List, Tuple

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, elements_of, summed
from ..sharding.box import Box, Range, full, shape_of
from ..sharding.split import OutputShard


@register('FullyConnected')
class FullyConnected(Rule):
    """A dense layer: every dimension can be split; partial sums cover ranges of inputs."""

    splits_every_dimension = True
    layer_kind = 'dense'
    is_searched = splits_weight = adds_weight_gradients = True

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each output and each input."""
        weight = shard.inputs[1]
        assert weight is not None
        return 2.0 * elements_of(shard.outputs[:operator.outputs]) * shape_of(weight)[-1]

    @staticmethod
    def _flattens(operator: Operator) -> bool:
        return bool(operator.get('flatten', True))

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of inputs; where images are flattened, that of channels, whose inputs stay together."""
        data = graph.inputs(operator)[0]
        return data[1] if self._flattens(operator) else data[-1]

    def summed_axes(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        return [(0, 1 if self._flattens(operator) else len(graph.inputs(operator)[0]) - 1)]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out = output_shard.box
        data, weight = graph.inputs(operator)[:2]
        if self._flattens(operator):
            inner = weight[1] // data[1]
            read = summed(data[1], output_shard)
            image: Box = (out[0], read) + full(data[2:])
            columns = (read[0] * inner, read[1] * inner)
        else:
            columns = summed(data[-1], output_shard)
            image = out[:-1] + (columns,)
        return with_bias(operator, [image, (out[-1], columns)], out[-1], output_shard,
                         {'num_hidden': out[-1][1] - out[-1][0]})


def with_bias(operator: Operator, boxes: List[Any], channels: Range, output_shard: OutputShard,
              attrs: Any) -> OperatorShard:
    """Return a shard that reads these boxes, and the bias if it is the first of several partial sums."""
    if len(operator.inputs) == 3:
        boxes.append((channels,) if output_shard.partial_index == 0 else None)
        if output_shard.partial_index:
            attrs['no_bias'] = True
    return OperatorShard(boxes, [output_shard.box], attrs)
