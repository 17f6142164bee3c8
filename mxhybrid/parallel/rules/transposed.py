"""The rules of transposed convolutions, and of images that are made larger by a factor."""
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple, elements_of
from ..sharding.box import Box, Range, full
from ..sharding.split import OutputShard
from .convolution import GroupedFilters, filter_size
from .dense import with_bias
from .windows import is_channels_first, transposed_window


class _Filters(NamedTuple):
    """The sizes of a transposed convolution's filters, a number for each dimension of images."""

    kernel: Tuple[int, ...]
    strides: Tuple[int, ...]
    pads: Tuple[int, ...]
    dilates: Tuple[int, ...]
    adjusts: Tuple[int, ...]


def _transposed(graph: Graph, operator: Operator, output_shard: OutputShard, filters: _Filters
                ) -> Tuple[Tuple[Range, ...], Dict[str, Any], Optional[Tuple[Any, Any]]]:
    """Return the ranges of inputs that a box reads, attributes of the shard, and begin and end of its outputs among
    those that it computes; None if these are the same.
    """
    data, shape, out = graph.inputs(operator)[0], graph.shape(operator), output_shard.box
    parts: List[Tuple[Any, ...]] = []
    for side, count, whole, kernel, stride, pad, dilate, adjust in zip(out[2:], data[2:], shape[2:], *filters):
        if side == (0, whole):
            parts.append(((0, count), pad, adjust, None, None))
        else:
            read, first = transposed_window(side, count, kernel, stride, pad, dilate)
            parts.append((read, 0, 0, first, first + side[1] - side[0]))
    rows, pads, adjusts, begins, ends = zip(*parts)
    attrs = {'kernel': filters.kernel, 'stride': filters.strides, 'dilate': filters.dilates, 'pad': pads,
             'adj': adjusts, 'target_shape': ()}
    is_cut = any(begin is not None for begin in begins)
    return rows, attrs, ((None, None) + begins, (None, None) + ends) if is_cut else None


def _cut(symbol: Any, ends: Optional[Tuple[Any, Any]], name: str) -> Any:
    return symbol if ends is None else mx.sym.slice(symbol, begin=ends[0], end=ends[1], name=name)


@register('Deconvolution')
class Deconvolution(GroupedFilters):
    """A transposed convolution: samples, output channels (whole groups) and every dimension of images can be split;
    partial sums cover ranges of input channels.  With channels last, samples alone.
    """

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each input and each element of a filter."""
        return 2.0 * elements_of(shard.inputs[:1]) * filter_size(shard)

    def lone_weight(self, graph: Graph, operator: Operator, shards: Sequence[OperatorShard]) -> Optional[int]:
        """Return the position of the filters of float32, unless each channel has filters of its own.

        MXNet 1.9.1 describes their gradient to oneDNN with the memory that the array has before the operator
        (IOLogicalSwapMKLDNNMem of mkldnn_deconvolution-inl.h).  If MXNet has allocated none yet, as for a term of a sum
        or the gradient of another operator's output, the backward pass ends with "could not execute a primitive" or a
        segmentation fault.  Filters of one channel keep their layout there; but a shard of one channel alone is an
        operator without groups, which fails, too.
        """
        groups = [int(shard.attrs.get('num_group', self._groups(operator))) for shard in shards]
        has_own_filters = (is_channels_first(operator) and min(groups, default=1) > 1
                           and graph.inputs(operator)[0][1] == graph.shape(operator)[1] == self._groups(operator))
        return 1 if graph.dtypes[operator.inputs[1]] == np.float32 and not has_own_filters else None

    @staticmethod
    def _filters(graph: Graph, operator: Operator) -> _Filters:
        """Return the sizes; MXNet derives pads and adjustments from a target (InferPad of deconvolution-inl.h)."""
        data, shape = graph.inputs(operator)[0], graph.shape(operator)
        count = len(data) - 2
        kernel, strides, dilates = (as_tuple(operator.get(key), count, 1) for key in ('kernel', 'stride', 'dilate'))
        pads, adjusts = (as_tuple(operator.get(key), count, 0) for key in ('pad', 'adj'))
        if any(as_tuple(operator.get('target_shape'), count, 0)):
            surplus = [(length - 1) * stride + dilate * (side - 1) + 1 - target for length, stride, dilate, side, target
                       in zip(data[2:], strides, dilates, kernel, shape[2:])]
            pads, adjusts = tuple((more + 1) // 2 for more in surplus), tuple(more % 2 for more in surplus)
        return _Filters(kernel, strides, pads, dilates, adjusts)

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        if not is_channels_first(operator):
            return super().shard(graph, operator, output_shard)
        out, weight = output_shard.box, graph.inputs(operator)[1]
        channels, (read, group_count) = out[1], self._channels_read(graph, operator, output_shard)
        filters_read = channels if self._groups(operator) == 1 else (0, weight[1])
        rows, attrs, ends = _transposed(graph, operator, output_shard, self._filters(graph, operator))
        attrs.update(num_filter=channels[1] - channels[0], num_group=group_count)
        image: Box = (out[0], read) + rows
        shard = with_bias(operator, [image, (read, filters_read) + full(weight[2:])], channels, output_shard, attrs)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            return _cut(mx.sym.Deconvolution(*inputs, name=name, **attributes), ends, name + '_cut')
        shard.build = build if ends else None
        return shard


@register('UpSampling')
class UpSampling(Rule):
    """UpSampling: samples and every dimension of images can be split, and the channels of a single input or of a sum of
    inputs.
    """

    makes_images = True

    @staticmethod
    def _is_bilinear(operator: Operator) -> bool:
        return operator.get('sample_type') == 'bilinear'

    def _scales(self, graph: Graph, operator: Operator) -> List[int]:
        """Return how much larger than each image the output is."""
        images = graph.inputs(operator)[:1] if self._is_bilinear(operator) else graph.inputs(operator)
        return [graph.shape(operator)[2] // image[2] for image in images]

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return a number that all scales divide for the dimensions of images, so that shards read whole elements."""
        scale = 1 if self._is_bilinear(operator) else int(np.lcm.reduce(self._scales(graph, operator)))
        return [1, 1] + [scale] * (len(graph.shape(operator)) - 2)

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        joins = len(self._scales(graph, operator)) > 1 and operator.get('multi_input_mode', 'concat') == 'concat'
        return [True, not joins] + [self._has_exact_scales(graph, operator)] * (len(graph.shape(operator)) - 2)

    def _has_exact_scales(self, graph: Graph, operator: Operator) -> bool:
        return all(count == image[at] * scale for image, scale in
                   zip(graph.inputs(operator), self._scales(graph, operator))
                   for at, count in enumerate(graph.shape(operator)) if at > 1)

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out = output_shard.box
        if self._is_bilinear(operator):
            return self._bilinear(graph, operator, output_shard)
        joins = not self.splittable(graph, operator)[1]
        boxes: List[Box] = [(out[0], (0, image[1]) if joins else out[1]) + (
            tuple((low // scale, high // scale) for low, high in out[2:])
            if self._has_exact_scales(graph, operator) else full(image[2:]))
            for image, scale in zip(graph.inputs(operator), self._scales(graph, operator))]
        return OperatorShard(boxes, [out])

    def _bilinear(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard: a transposed convolution of each channel (upsampling-inl.h)."""
        out, scale = output_shard.box, int(operator.get('scale'))
        kernel, pad = 2 * scale - scale % 2, -(-(scale - 1) // 2)
        filters = _Filters(*[(number,) * 2 for number in (kernel, scale, pad, 1, 0)])
        rows, attrs, ends = _transposed(graph, operator, output_shard, filters)
        channel_count = out[1][1] - out[1][0]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            made = mx.sym.Deconvolution(*inputs, num_filter=channel_count, num_group=channel_count, no_bias=True,
                                        name=name, **attrs)
            return _cut(made, ends, name + '_cut')
        return OperatorShard([(out[0], out[1]) + rows, (out[1],) + full(graph.inputs(operator)[1][1:])], [out],
                             build=build)
