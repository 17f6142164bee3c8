"""The rules of slices."""
from typing import Any, List, Optional, Sequence, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_of, shape_only
from ..sharding.sample_axis import SampleAxis, after_slice
from ..sharding.split import OutputShard


@register('slice', 'slice_like')
class Slice(Rule):
    """slice and slice_like: every dimension can be split in which the slice takes all elements between two ends."""

    def _where(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        """Return for each dimension the first element that is taken, and the step to the next."""
        shape = graph.inputs(operator)[0]
        if operator.op == 'slice_like':
            return [(0, 1)] * len(shape)
        begins, steps = (self._each(operator, key, len(shape)) for key in ('begin', 'step'))
        starts = []
        for count, begin, step in zip(shape, begins, steps):
            step = 1 if step is None else step
            if begin is None:
                begin = 0 if step > 0 else count - 1
            starts.append((begin + count * (begin < 0), step))
        return starts

    @staticmethod
    def _each(operator: Operator, key: str, count: int) -> List[Optional[int]]:
        values = operator.get(key, ())
        values = list(values) if isinstance(values, (tuple, list)) else [values]
        return values + [None] * (count - len(values))

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [step == 1 for _, step in self._where(graph, operator)]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        box = tuple((low + begin, high + begin) if step == 1 else (0, count) for (low, high), (begin, step), count in
                    zip(output_shard.box, self._where(graph, operator), graph.inputs(operator)[0]))

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            if all(step == 1 for _, step in self._where(graph, operator)):
                return mx.sym.identity(inputs[0], name=name)
            begins, ends, steps = (self._each(operator, key, len(box)) for key in ('begin', 'end', 'step'))
            begin, end = (tuple(None if step in (1, None) else value for value, step in zip(values, steps))
                          for values in (begins, ends))
            return mx.sym.slice(inputs[0], name=name, begin=begin, end=end, step=steps)
        return OperatorShard([box, *shape_only(graph, operator)], [output_shard.box], build=build)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis: a slice along the samples has whole rounds of them, or some samples only."""
        whole = known[0]
        if whole is None:
            return [None]
        axis, (begin, step) = whole.axis, self._where(graph, operator)[whole.axis]
        if step != 1:
            return [None]
        return [after_slice(whole, axis, graph.inputs(operator)[0][axis], begin, begin + graph.shape(operator)[axis])]


@register('slice_axis')
class SliceAxis(Slice):
    """slice_axis: every dimension can be split; a shard reads the elements that it returns."""

    def _where(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        shape = graph.inputs(operator)[0]
        axis, starts = axis_of(operator, len(shape), 0), [(0, 1)] * len(shape)
        starts[axis] = int(operator.get('begin', 0)) % max(1, shape[axis]), 1
        return starts

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shard = super().shard(graph, operator, output_shard)
        low, high = output_shard.box[axis_of(operator, len(output_shard.box), 0)]
        shard.attrs, shard.build = {'begin': 0, 'end': high - low}, None
        return shard
