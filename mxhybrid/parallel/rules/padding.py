"""The rules of operators that add or cut off elements at the borders of images."""
from typing import Any, List, Optional, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple, shape_only
from ..sharding.box import Range
from ..sharding.split import OutputShard


@register('Pad')
class Pad(Rule):
    """Pad: every dimension can be split."""

    splits_every_dimension = True

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        widths, mode = operator.get('pad_width'), operator.get('mode', 'constant')
        data, before = graph.inputs(operator)[0], [int(width) for width in widths[::2]]
        box = tuple((low - first, high - first) for (low, high), first in zip(output_shard.box, before))
        if mode == 'constant':  # the elements beyond the tensor are the constant
            fill = float(operator.get('constant_value', 0.0))
            return OperatorShard([box], [output_shard.box], fills=[fill], build=lambda inputs, name, attributes:
                                 mx.sym.identity(inputs[0], name=name))
        reads = [_mirrored(side, count, mode == 'edge') for side, count in zip(box, data)]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            symbol = inputs[0]
            for axis, (side, count, read) in enumerate(zip(box, data, reads)):
                if read != side:
                    symbol = mx.sym.take(symbol, _sources(side, count, read, mode == 'edge'), axis=axis)
            return mx.sym.identity(symbol, name=name)
        return OperatorShard([tuple(reads)], [output_shard.box], build=build)


def _mirrored(side: Range, count: int, repeats_edge: bool) -> Range:
    """Return the range of the elements that stand at some coordinates, which may lie before or after the tensor."""
    sources = [_source(at, count, repeats_edge) for at in range(*side)]
    return min(sources), max(sources) + 1


def _source(index: int, count: int, repeats_edge: bool) -> int:
    if repeats_edge:
        return min(max(index, 0), count - 1)
    return count - 1 - abs(count - 1 - abs(index))


def _sources(side: Range, count: int, read: Range, repeats_edge: bool) -> Any:
    """Return the symbol of the elements' indices in the range that is read."""
    at = mx.sym.arange(side[0], side[1], dtype='float64')
    at = mx.sym.clip(at, 0, count - 1) if repeats_edge else count - 1 - mx.sym.abs(count - 1 - mx.sym.abs(at))
    return at - read[0]


@register('Crop')
class Crop(Rule):
    """Crop: every dimension can be split; a shard reads the elements that it returns."""

    splits_every_dimension = True

    @staticmethod
    def _offsets(graph: Graph, operator: Operator) -> Tuple[int, ...]:
        data, shape = graph.inputs(operator)[0], graph.shape(operator)
        if operator.get('center_crop', False):
            return tuple((count - kept) // 2 for count, kept in zip(data[2:], shape[2:]))
        return as_tuple(operator.get('offset'), 2, 0)

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out = output_shard.box
        box = out[:2] + tuple((low + first, high + first)
                              for (low, high), first in zip(out[2:], self._offsets(graph, operator)))
        boxes: List[Optional[Any]] = [box]
        return OperatorShard(boxes + shape_only(graph, operator), [out], build=lambda inputs, name, attributes:
                             mx.sym.identity(inputs[0], name=name))
