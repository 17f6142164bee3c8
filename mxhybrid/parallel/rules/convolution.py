"""The rule of convolutions."""
import math
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple, elements_of, summed
from ..sharding.box import Box, full, shape_of
from ..sharding.split import OutputShard
from .dense import with_bias
from .windows import is_channels_first, shard_of_samples, window


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
        """Return True for every dimension where channels come first, else for the samples alone."""
        return [True] + [is_channels_first(operator)] * (len(graph.shape(operator)) - 1)

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of input channels; 1 where there are groups."""
        return graph.inputs(operator)[0][1] if is_channels_first(operator) and self._groups(operator) == 1 else 1


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
        out, shape = output_shard.box, graph.shape(operator)
        data, weight = graph.inputs(operator)[:2]
        if not is_channels_first(operator):
            return shard_of_samples(graph, operator, out)
        count = len(data) - 2
        kernel = as_tuple(operator.get('kernel'), count, 1)
        strides, pads = as_tuple(operator.get('stride'), count, 1), as_tuple(operator.get('pad'), count, 0)
        dilates = as_tuple(operator.get('dilate'), count, 1)
        groups = self._groups(operator)
        per_group = shape[1] // groups
        channels = out[1]
        if groups == 1:
            read = summed(data[1], output_shard)
            weights: Box = (channels, read) + full(weight[2:])
            group_count = 1
        else:
            first, last = channels[0] // per_group, channels[1] // per_group
            group_channels = data[1] // groups
            read, group_count = (first * group_channels, last * group_channels), last - first
            weights = (channels,) + full(weight[1:])
        windows = [window(*dimension) for dimension in
                   zip(out[2:], data[2:], shape[2:], kernel, strides, pads, dilates)]
        attrs = {'num_filter': channels[1] - channels[0], 'num_group': group_count,
                 'pad': tuple(pad for _, pad in windows)}
        image: Box = (out[0], read) + tuple(rows for rows, _ in windows)
        return with_bias(operator, [image, weights], channels, output_shard, attrs)
