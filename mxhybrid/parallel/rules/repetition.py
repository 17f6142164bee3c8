"""The rules of operators that repeat elements."""
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, shape_only, with_range
from ..sharding.box import shape_of
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard


@register('broadcast_to', 'broadcast_axis', 'broadcast_like')
class Broadcast(Rule):
    """broadcast_to, broadcast_axis and broadcast_like: every dimension can be split."""

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        count = len(graph.shape(operator))
        return [len(graph.inputs(operator)[0]) == count] * count

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data = graph.inputs(operator)[0]
        if len(data) != len(output_shard.box):
            return super().shard(graph, operator, output_shard)
        box = tuple((0, 1) if count == 1 else chosen for count, chosen in zip(data, output_shard.box))

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            return mx.sym.broadcast_to(inputs[0], shape=shape_of(output_shard.box), name=name)
        return OperatorShard([box, *shape_only(graph, operator)], [output_shard.box], build=build)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis: of the data, or, in a repeated dimension, of the input that gives the shape."""
        data, candidates = graph.inputs(operator)[0], {known[0]} - {None}
        if len(data) != len(graph.shape(operator)):
            return [None]
        like = known[1] if len(known) > 1 else None
        if like is not None:
            data_axes, like_axes = (operator.get(key) for key in ('lhs_axes', 'rhs_axes'))
            count = len(graph.inputs(operator)[1])
            pairs = {at: at for at in range(count)} if data_axes is None or like_axes is None else {
                int(like_axis) % count: int(data_axis) % len(data)
                for data_axis, like_axis in zip(data_axes, like_axes)}
            axis = pairs.get(like.axis)
            if axis is not None and data[axis] == 1:
                candidates.add(like._replace(axis=axis))
        return [next(iter(candidates)) if len(candidates) == 1 else None]


@register('repeat')
class Repeat(Rule):
    """repeat: each element several times in a row.  Without an axis nothing can be split."""

    @staticmethod
    def _axis(graph: Graph, operator: Operator) -> Optional[int]:
        axis = operator.get('axis')
        return None if axis is None else int(axis) % len(graph.inputs(operator)[0])

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [self._axis(graph, operator) is not None] * len(graph.shape(operator))

    def repeated(self, graph: Graph, operator: Operator) -> Dict[int, int]:
        """Return the number of copies of each element along the axis."""
        axis = self._axis(graph, operator)
        return {} if axis is None else {axis: int(operator.get('repeats'))}

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        axis, times = self._axis(graph, operator), int(operator.get('repeats'))
        if axis is None:
            return super().shard(graph, operator, output_shard)
        low, high = output_shard.box[axis]
        first = low // times

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            repeated, before = mx.sym.repeat(inputs[0], repeats=times, axis=axis), first * times
            return mx.sym.slice_axis(repeated, axis=axis, begin=low - before, end=high - before, name=name)
        cuts_copies = low % times or high % times
        return OperatorShard([with_range(output_shard.box, axis, (first, -(-high // times)))], [output_shard.box],
                             build=build if cuts_copies else None)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis: where samples are repeated, each has several times as many coordinates."""
        axis, whole = self._axis(graph, operator), known[0]
        if axis is None or whole is None:
            return [None]
        return [whole._replace(each=whole.each * int(operator.get('repeats'))) if whole.axis == axis else whole]


@register('tile')
class Tile(Rule):
    """tile: copies of a tensor, concatenated; every dimension can be split, but where several elements are tiled."""

    @staticmethod
    def _repetitions(graph: Graph, operator: Operator) -> List[int]:
        """Return the number of repetitions of each dimension of the output."""
        times = operator.get('reps', ())
        times = [int(count) for count in (times if isinstance(times, (tuple, list)) else [times])]
        return [1] * (len(graph.shape(operator)) - len(times)) + times

    @staticmethod
    def _data(graph: Graph, operator: Operator) -> Tuple[int, ...]:
        """Return the shape of the data, with as many dimensions as the output."""
        data = graph.inputs(operator)[0]
        return (1,) * (len(graph.shape(operator)) - len(data)) + data

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [times == 1 or count == 1
                for count, times in zip(self._data(graph, operator), self._repetitions(graph, operator))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data, chosen = self._data(graph, operator), output_shard.box
        times = self._repetitions(graph, operator)
        box = tuple(where if number == 1 and count > 1 else (0, count)
                    for where, count, number in zip(chosen, data, times))
        reps = tuple(high - low if count == 1 else number for (low, high), count, number in zip(chosen, data, times))
        return OperatorShard([box[len(box) - len(graph.inputs(operator)[0]):]], [chosen], {'reps': reps})

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis: where samples are tiled, there are several times as many rounds of them."""
        whole = known[0]
        if whole is None:
            return [None]
        axis = whole.axis + len(graph.shape(operator)) - len(graph.inputs(operator)[0])
        return [whole._replace(axis=axis, rounds=whole.rounds * self._repetitions(graph, operator)[axis])]
