"""The rules of InstanceNorm and GroupNorm, and both with the statistics of several parts of images; of LayerNorm, and
of the normalization by neighbouring channels.
"""
import math
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import Collective, OperatorShard, Rule, axis_of, with_range
from ..sharding.box import Box, Range, full, groups_of, shape_of, size_of
from ..sharding.layout import Layout, Movement, exchange_of_parts
from ..sharding.split import OutputShard, Split
from .aligned import Aligned, Alignment


def _groups(operator: Operator, channel_count: int) -> int:
    """Return the number of ranges of channels of which each has a mean and a variance."""
    return channel_count if operator.op == 'InstanceNorm' else int(operator.get('num_groups', 1))


class JointGroupNorm(Collective):
    """InstanceNorm and GroupNorm where images are split: each rank sends mean and variance of its part of each image,
    as in :class:`~mxhybrid.parallel.rules.batch_norm.JointBatchNorm`.
    """

    @staticmethod
    def applies(graph: Graph, operator: Operator, split: Split) -> bool:
        """Return whether images are split."""
        return any(degree > 1 for degree in split.degrees[2:])

    @classmethod
    def layouts(cls, graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], str]:
        shape = graph.shape(operator)
        group_count = _groups(operator, shape[1])
        per_group = shape[1] // group_count

        def moments(rank: int, parts: Range) -> Box:
            samples, channels = boxes[rank][:2]
            return parts, (0, 2), samples, (channels[0] // per_group, channels[1] // per_group)
        layout, needed = exchange_of_parts(boxes, tuple(range(2, len(shape))),
                                           lambda count: (count, 2, shape[0], group_count), moments)
        return layout, needed, 'float64' if graph.dtypes[operator.inputs[0]] == 'float64' else 'float32'

    @classmethod
    def build(cls, program: Any, operator: Operator, inputs: List[Any]) -> Any:
        graph: Graph = program.graph
        boxes = {rank: output_shard.box for rank, output_shard in program.shards.output_shards[operator.number].items()}
        layout, needed, dtype = cls.layouts(graph, operator, boxes)
        source = operator.inputs[0]
        moments = rows = mean = None
        if program.rank in boxes:
            shape = shape_of(boxes[program.rank])
            group_count = shape_of(layout.boxes[program.rank])[3]
            size = math.prod(shape[1:]) // group_count
            data = inputs[0] if graph.dtypes[source] == dtype else mx.sym.cast(inputs[0], dtype)
            rows = mx.sym.reshape(data, shape=(shape[0] * group_count, size))
            # Products with ones: MXNet's reductions take ten times as long.
            average = mx.sym.ones((size, 1), dtype=dtype) / size
            mean = mx.sym.dot(rows, average)
            variance = mx.sym.dot(mx.sym.square(mx.sym.broadcast_sub(rows, mean)), average)
            moments = mx.sym.reshape(mx.sym.stack(mean, variance, axis=0), shape=(1, 2, shape[0], group_count))
        joint = program.redistribute(moments, Movement(layout, needed, dtype), operator,
                                     program.learns(graph.operators[source[0]]))
        if program.rank not in boxes:
            return None
        parts = groups_of(boxes, tuple(range(2, len(shape))))[program.rank]
        sizes = np.array([[size_of(box) for box in parts]], dtype)
        shares = program.constant(operator, 'shares', sizes / sizes.sum())
        means, variances = mx.sym.SliceChannel(mx.sym.reshape(joint, shape=(len(parts), 2, -1)), num_outputs=2, axis=1,
                                               squeeze_axis=True)
        joint_mean = mx.sym.dot(shares, means)
        joint_variance = mx.sym.dot(shares, variances + mx.sym.square(mx.sym.broadcast_sub(means, joint_mean)))
        joint_mean, joint_variance = (mx.sym.reshape(moment, shape=(-1, 1)) for moment in (joint_mean, joint_variance))
        # MXNet has it as float32 for all types (instance_norm-inl.h, group_norm-inl.h).
        epsilon = float(np.float32(operator.get('eps', 1e-3 if operator.op == 'InstanceNorm' else 1e-5)))
        normal = mx.sym.broadcast_mul(mx.sym.broadcast_sub(rows, joint_mean), mx.sym.rsqrt(joint_variance + epsilon))
        return cls._scaled(operator, normal, inputs, shape, group_count, str(graph.dtypes[operator.number, 0]))

    @staticmethod
    def _scaled(operator: Operator, normal: Any, inputs: List[Any], shape: Tuple[int, ...], group_count: int,
                dtype: str) -> Any:
        """Return the normalized values, times gamma, plus beta: both have an element for each group."""
        shaped = mx.sym.cast(mx.sym.reshape(normal, shape=(shape[0], group_count, -1)), dtype)
        gamma, beta = (mx.sym.reshape(parameter, shape=(1, -1, 1)) for parameter in inputs[1:])
        return mx.sym.reshape(mx.sym.broadcast_add(mx.sym.broadcast_mul(shaped, gamma), beta), shape=shape,
                              name=operator.name)


@register('InstanceNorm', 'GroupNorm')
class GroupNorm(Rule):
    """InstanceNorm and GroupNorm: samples, channels (whole groups) and every dimension of images can be split; where
    images are split, ranks compute joint statistics together (:class:`JointGroupNorm`).
    """

    adds_weight_gradients = True
    collective = JointGroupNorm

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the channels of a group for the channels."""
        shape = graph.shape(operator)
        return [1, shape[1] // _groups(operator, shape[1])] + [1] * (len(shape) - 2)

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for every dimension; images stay whole where statistics are outputs."""
        return [True, True] + [operator.outputs == 1] * (len(graph.shape(operator)) - 2)

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out, channel_count = output_shard.box, graph.shape(operator)[1]
        group_count = _groups(operator, channel_count)
        per_group = channel_count // group_count
        own = out[1][0] // per_group, out[1][1] // per_group
        attrs = {} if operator.op == 'InstanceNorm' else {'num_groups': own[1] - own[0]}
        statistics = [out[:1] + (own,) + full(graph.shape(operator, output)[2:])
                      for output in range(1, operator.outputs)]
        return OperatorShard([out, (own,), (own,)], [out] + statistics, attrs)


@register('LayerNorm')
class LayerNorm(Aligned):
    """LayerNorm: every dimension that is not normalized can be split."""

    adds_weight_gradients = True

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        count = len(graph.shape(operator))
        axis = axis_of(operator, count, -1)
        return [[None if at == axis else at for at in range(count)], [None], [None]]


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
