"""The rules of operators on sequences: recurrent layers, masks, losses of whole sequences."""
import math
from typing import List, Optional

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_length, axis_of, elements_of
from ..sharding.box import Box, full, shape_of
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


@register('RNN')
class Recurrent(Rule):
    """The fused recurrent layer: samples can be split."""

    is_searched = adds_weight_gradients = True

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each weight, time and sample."""
        data, weights = shard.inputs[:2]
        assert data is not None and weights is not None
        return 2.0 * math.prod(shape_of(data)[:2]) * elements_of([weights])

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the samples: data has shape (times, samples, features)."""
        return [False, True, False]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`."""
        samples, shapes = output_shard.box[1], graph.inputs(operator)
        states: List[Box] = [((0, shape[0]), samples) + full(shape[2:]) if len(shape) == 3 else (samples,)
                             for shape in shapes[2:]]
        boxes: List[Box] = [((0, shapes[0][0]), samples, (0, shapes[0][2])), full(shapes[1])] + states
        outputs = [graph.shape(operator, output) for output in range(operator.outputs)]
        return OperatorShard(boxes, [((0, shape[0]), samples) + full(shape[2:]) for shape in outputs])


@register('SequenceMask', 'SequenceReverse', 'SequenceLast')
class Sequences(Aligned):
    """SequenceMask, SequenceReverse and SequenceLast: every dimension but that of the times can be split; there is a
    length for each sample.
    """

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return one more than the greatest length."""
        return axis_length(graph, operator, 0) + 1

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        count = len(graph.inputs(operator)[0])
        times = axis_of(operator, count, 0)
        drops_times = operator.op == 'SequenceLast'
        data: Alignment = [None if at == times else at - (drops_times and at > times) for at in range(count)]
        return [data] + [[data[1 - times]]] * (len(operator.inputs) - 1)


@register('CTCLoss')
class CTCLoss(Aligned):
    """CTCLoss: data of shape (times, samples, letters), of which the samples can be split, labels and lengths."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        return [[None, 0, None], [0, None]] + [[0]] * (len(operator.inputs) - 2)
