"""The rule of convolutions."""
import math
from typing import List, Tuple

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple, elements_of, summed
from ..sharding.box import Box, Range, full, shape_of
from ..sharding.split import OutputShard
from .dense import with_bias
from .windows import is_channels_first, window


def filter_size(shard: OperatorShard) -> float:
    """Return the number of elements of a filter."""
    weight = shard.inputs[1]
    assert weight is not None
    return float(math.prod(shape_of(weight)[1:]))


class GroupedFilters(Rule):
    """An operator with filters, whose channels may be in groups."""

    is_searched = splits_weight = adds_weight_gradients = makes_images = True

    @staticmethod
    def _groups(operator: Operator) -> int:
        return int(operator.get('num_group', 1))

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the channels of a group for the channels: a shard needs whole groups of input channels."""
        shape, groups = graph.shape(operator), self._groups(operator)
        return [1, shape[1] // groups if groups > 1 else 1] + [1] * (len(shape) - 2)

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [True] + [is_channels_first(operator)] * (len(graph.shape(operator)) - 1)

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of input channels; 1 where there are groups."""
        return graph.inputs(operator)[0][1] if is_channels_first(operator) and self._groups(operator) == 1 else 1

    def _channels_read(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> Tuple[Range, int]:
        """Return the input channels that a shard reads, and the number of its groups."""
        count, out_count, groups = graph.inputs(operator)[0][1], graph.shape(operator)[1], self._groups(operator)
        if groups == 1:
            return summed(count, output_shard), 1
        first, last = (end // (out_count // groups) for end in output_shard.box[1])
        return (first * (count // groups), last * (count // groups)), last - first

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard for channels that come last: it reads its samples of the images, and all of the weights."""
        images, *weights = graph.inputs(operator)
        return OperatorShard([output_shard.box[:1] + full(images[1:])] + [full(weight) for weight in weights],
                             [output_shard.box])


@register('Convolution')
class Convolution(GroupedFilters):
    """A convolution: samples, output channels and every dimension of images can be split; partial sums cover ranges of
    input channels.
    """

    layer_kind = 'convolution'
    makes_blocked = True

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each output and each element of a filter."""
        return 2.0 * elements_of(shard.outputs[:operator.outputs]) * filter_size(shard)

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        if not is_channels_first(operator):
            return super().shard(graph, operator, output_shard)
        out, shape = output_shard.box, graph.shape(operator)
        data, weight = graph.inputs(operator)[:2]
        count = len(data) - 2
        kernel, strides, dilates = (as_tuple(operator.get(key), count, 1) for key in ('kernel', 'stride', 'dilate'))
        pads = as_tuple(operator.get('pad'), count, 0)
        channels, (read, group_count) = out[1], self._channels_read(graph, operator, output_shard)
        weights: Box = (channels, read if self._groups(operator) == 1 else (0, weight[1])) + full(weight[2:])
        windows = [window(*dimension) for dimension in
                   zip(out[2:], data[2:], shape[2:], kernel, strides, pads, dilates)]
        attrs = {'num_filter': channels[1] - channels[0], 'num_group': group_count,
                 'pad': tuple(pad for _, pad in windows)}
        image: Box = (out[0], read) + tuple(rows for rows, _ in windows)
        return with_bias(operator, [image, weights], channels, output_shard, attrs)
