"""The rule of softmax and log_softmax, and both along an axis that is split."""
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_length, axis_of
from ..sharding.box import Box
from ..sharding.layout import Layout
from ..sharding.split import OutputShard, Split
from .collective_groups import groups_of


class SplitSoftmax:
    """softmax and log_softmax along an axis that is split: ranks send each other the maxima and sums of their shards,
    in one redistribution, so that no rank has the whole axis.
    """

    @staticmethod
    def build_alone(program: Any, operator: Operator, given: List[Any]) -> Any:
        """Return None: a shard with the whole axis is the operator itself."""
        return None

    @staticmethod
    def _axis(operator: Operator, dimensions: int) -> int:
        return axis_of(operator, dimensions, -1)

    @classmethod
    def applies(cls, graph: Graph, operator: Operator, split: Split) -> bool:
        """Tell whether the axis is split."""
        return split.degrees[cls._axis(operator, len(split.degrees))] > 1

    @classmethod
    def layouts(cls, graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], Any]:
        """Return the layout of what ranks have computed, the box of it that each rank needs, and its type."""
        shape = graph.shape(operator)
        axis = cls._axis(operator, len(shape))
        groups = groups_of(boxes, (axis,))
        count = max(map(len, groups.values()))
        places = {rank: group.index(boxes[rank]) for rank, group in groups.items()}

        def both(rank: int, of: Tuple[int, int]) -> Box:
            return ((0, 2),) + boxes[rank][:axis] + (of,) + boxes[rank][axis + 1:]
        have = Layout((2,) + shape[:axis] + (count,) + shape[axis + 1:],
                      {rank: both(rank, (at, at + 1)) for rank, at in places.items()})
        wanted = {rank: both(rank, (0, len(group))) for rank, group in groups.items()}
        return have, wanted, graph.dtypes[operator.number, 0]

    @classmethod
    def build(cls, program: Any, operator: Operator, given: List[Any]) -> Any:
        """Return the symbol of this rank's shard; None if it has none."""
        graph: Graph = program.graph
        axis = cls._axis(operator, len(graph.shape(operator)))
        boxes = {rank: output_shard.box for rank, output_shard in program.shards.output_shards[operator.number].items()}
        have, needed, dtype = cls.layouts(graph, operator, boxes)
        local = data = None
        if program.rank in boxes:
            data = given[0] / float(operator.get('temperature', 1.0)) if operator.get('temperature') else given[0]
            if graph.dtypes[operator.inputs[0]] != dtype:
                data = mx.sym.cast(data, dtype)
            largest = mx.sym.BlockGrad(mx.sym.max(data, axis=axis, keepdims=True))
            # A whole shard may be masked by -inf, though the whole axis is not.
            shift = mx.sym.where(largest == float('-inf'), mx.sym.zeros_like(largest), largest)
            total = mx.sym.sum(mx.sym.exp(mx.sym.broadcast_sub(data, shift)), axis=axis, keepdims=True)
            local = mx.sym.stack(largest, total, axis=0)
        maxima_and_sums = program.redistribute(local, have, needed, dtype, operator,
                                               plain=program.learns(graph.operators[operator.inputs[0][0]]))
        if maxima_and_sums is None:
            return None
        both = mx.sym.SliceChannel(maxima_and_sums, num_outputs=2, axis=0, squeeze_axis=True)
        largest = mx.sym.BlockGrad(mx.sym.max(both[0], axis=axis, keepdims=True))
        total = mx.sym.sum(both[1] * mx.sym.exp(mx.sym.broadcast_sub(mx.sym.BlockGrad(both[0]), largest)), axis=axis,
                           keepdims=True)
        lower = mx.sym.broadcast_sub(data, largest)
        if operator.op == 'log_softmax':
            return mx.sym.broadcast_sub(lower, mx.sym.log(total), name=operator.name)
        return mx.sym.broadcast_div(mx.sym.exp(lower), total, name=operator.name)


@register('softmax', 'log_softmax')
class Softmax(Rule):
    """softmax and log_softmax: every dimension can be split; ranks compute a split axis together
    (:class:`SplitSoftmax`).  The axis stays whole where there are lengths, which count from its beginning.
    """

    index_input = 1
    collective = SplitSoftmax

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return one more than the greatest length."""
        return axis_length(graph, operator, -1) + 1

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for every dimension, but for the axis where there are lengths."""
        shape = graph.shape(operator)
        return [len(operator.inputs) == 1 or at != axis_of(operator, len(shape), -1) for at in range(len(shape))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`."""
        axis = axis_of(operator, len(output_shard.box), -1)
        lengths: Box = output_shard.box[:axis] + output_shard.box[axis + 1:]
        return OperatorShard([output_shard.box] + [lengths] * (len(operator.inputs) - 1), [output_shard.box])
