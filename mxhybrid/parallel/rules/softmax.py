"""The rule of softmax and log_softmax, and both along an axis that is split."""
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx

from ...kernels.library import compiled
from ...kernels.operators import softmax_of, softmax_parts
from ...native.symbols import copied_input
from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import Collective, OperatorShard, Rule, axis_length, axis_of, with_range
from ..sharding.box import Box, Range, shape_of
from ..sharding.layout import Layout, Movement, exchange_of_parts
from ..sharding.split import OutputShard, Split


class SplitSoftmax(Collective):
    """softmax and log_softmax along an axis that is split: ranks send each other the maxima and sums of their shards,
    in one redistribution, so that no rank has the whole axis.
    """

    @staticmethod
    def applies(graph: Graph, operator: Operator, split: Split) -> bool:
        """Return whether the axis is split."""
        return split.degrees[axis_of(operator, len(split.degrees), -1)] > 1

    @staticmethod
    def layouts(graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], Any]:
        shape = graph.shape(operator)
        axis = axis_of(operator, len(shape), -1)

        def maxima_and_sums(rank: int, parts: Range) -> Box:
            return ((0, 2), *with_range(boxes[rank], axis, parts))
        layout, needed = exchange_of_parts(boxes, (axis,), lambda count: (2, *shape[:axis], count, *shape[axis + 1:]),
                                           maxima_and_sums)
        return layout, needed, graph.dtypes[operator.number, 0]

    @classmethod
    def build(cls, program: Any, operator: Operator, inputs: List[Any]) -> Any:
        graph: Graph = program.graph
        axis = axis_of(operator, len(graph.shape(operator)), -1)
        boxes = {rank: output_shard.box for rank, output_shard in program.shards.output_shards[operator.number].items()}
        layout, needed, dtype = cls.layouts(graph, operator, boxes)
        source = operator.inputs[0]
        is_float32 = dtype == graph.dtypes[source] == 'float32'
        if is_float32 and program.is_plain(source) and compiled() is not None and program.rank in boxes:
            return cls._compiled(program, operator, inputs[0], axis, boxes[program.rank], layout, needed)
        local = data = None
        if program.rank in boxes:
            data = cls._cooled(operator, inputs[0])
            if graph.dtypes[operator.inputs[0]] != dtype:
                data = mx.sym.cast(data, dtype)
            largest = mx.sym.BlockGrad(mx.sym.max(data, axis=axis, keepdims=True))
            # A whole shard may be masked by -inf, though the whole axis is not.
            shift = mx.sym.where(largest == float('-inf'), mx.sym.zeros_like(largest), largest)
            total = mx.sym.sum(mx.sym.exp(mx.sym.broadcast_sub(data, shift)), axis=axis, keepdims=True)
            local = mx.sym.stack(largest, total, axis=0)
        maxima_and_sums = program.redistribute(local, Movement(layout, needed, dtype), operator,
                                               program.learns(graph.operators[operator.inputs[0][0]]))
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

    @staticmethod
    def _cooled(operator: Operator, data: Any) -> Any:
        """Return the data, divided by the temperature if there is one."""
        return data / float(operator.get('temperature')) if operator.get('temperature') else data

    @classmethod
    def _compiled(cls, program: Any, operator: Operator, data: Any, axis: int, box: Box, layout: Layout,
                  needed: Dict[int, Box]) -> Any:
        """Return the symbol of this rank's shard by compiled operators."""
        data, shape = copied_input(cls._cooled(operator, data)), shape_of(box)
        copy, parts = softmax_parts(data, shape, axis, '%s_parts' % operator.name)
        all_parts = program.redistribute(parts, Movement(layout, needed, 'float32'), operator, True)
        count = shape_of(needed[program.rank])[1 + axis]
        return softmax_of(copy, copied_input(all_parts), shape, axis, count, operator.op == 'log_softmax',
                          operator.name)


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
        shape = graph.shape(operator)
        return [len(operator.inputs) == 1 or at != axis_of(operator, len(shape), -1) for at in range(len(shape))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        axis = axis_of(operator, len(output_shard.box), -1)
        lengths: Box = output_shard.box[:axis] + output_shard.box[axis + 1:]
        return OperatorShard([output_shard.box] + [lengths] * (len(operator.inputs) - 1), [output_shard.box])
