"""The rules of concat, stack and split."""
from typing import List, Optional, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_of, with_range
from ..sharding.box import Box
from ..sharding.sample_axis import SampleAxis, after_slice
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


@register('Concat', keeps_blocked=True)
@register('concat')
class Concat(Rule):
    """concat: every dimension can be split; a shard leaves out inputs of which it has no element."""

    splits_every_dimension = True

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        dimension = axis_of(operator, len(output_shard.box), 1, 'dim')
        boxes: List[Optional[Box]] = []
        at, (low, high) = 0, output_shard.box[dimension]
        for shape in graph.inputs(operator):
            start, end = max(low - at, 0), min(high - at, shape[dimension])
            boxes.append(with_range(output_shard.box, dimension, (start, end)) if start < end else None)
            at += shape[dimension]
        return OperatorShard(boxes, [output_shard.box], {'num_args': sum(box is not None for box in boxes)})

    def samples(self, graph: Graph, operator: Operator,
                known: Sequence[Optional[SampleAxis]]) -> List[Optional[SampleAxis]]:
        """Return the sample axis: inputs that are concatenated along their samples are rounds of them."""
        first, dimension = known[0], axis_of(operator, len(graph.shape(operator)), 1, 'dim')
        if not any(axis is not None and axis.axis == dimension for axis in known):
            return super().samples(graph, operator, known)
        if first is None or any(axis is None or axis[:2] != first[:2] for axis in known):
            return [None]
        return [first._replace(rounds=sum(axis.rounds for axis in known if axis is not None))]


@register('stack')
class Stack(Rule):
    """stack: every dimension can be split; a shard leaves out inputs of which it has no element."""

    splits_every_dimension = True

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        axis = axis_of(operator, len(output_shard.box), 0)
        low, high = output_shard.box[axis]
        box = output_shard.box[:axis] + output_shard.box[axis + 1:]
        return OperatorShard([box if low <= at < high else None for at in range(len(operator.inputs))],
                             [output_shard.box], {'num_args': high - low})


@register('SliceChannel', 'split', '_split_v2')
class SliceChannel(Aligned):
    """split: every dimension but the axis can be split; slices may have different lengths, like those of ``split_v2``.
    """

    def _axis(self, graph: Graph, operator: Operator) -> int:
        return axis_of(operator, len(graph.inputs(operator)[0]), 0 if operator.op == '_split_v2' else 1)

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        axis, squeezes = self._axis(graph, operator), bool(operator.get('squeeze_axis', False))
        return [[None if at == axis else at - (squeezes and at > axis) for at in range(len(graph.inputs(operator)[0]))]]

    def samples(self, graph: Graph, operator: Operator,
                known: Sequence[Optional[SampleAxis]]) -> List[Optional[SampleAxis]]:
        """Return the sample axes: a slice along the samples has whole rounds of them, or some samples only."""
        axis, count, whole = self._axis(graph, operator), graph.inputs(operator)[0], known[0]
        if whole is None or whole.axis != axis or operator.get('squeeze_axis', False):
            return super().samples(graph, operator, known)
        sample_axes, low = [], 0
        for output in range(operator.outputs):
            high = low + graph.shape(operator, output)[axis]
            sample_axes.append(after_slice(whole, axis, count[axis], low, high))
            low = high
        return sample_axes
