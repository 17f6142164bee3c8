"""The rules of operators that add or cut off elements at the borders of images."""
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple, shape_only
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
        # The elements that stand at the coordinates of the box, which may lie before or after the tensor.
        sources = [_sources(np, np.arange(*side), count, mode) for side, count in zip(box, data)]
        reads = tuple((int(source.min()), int(source.max()) + 1) for source in sources)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            symbol = inputs[0]
            for axis, (side, count, read) in enumerate(zip(box, data, reads)):
                if read != side:
                    coordinates = mx.sym.arange(*side, dtype='float64')
                    symbol = mx.sym.take(symbol, _sources(mx.sym, coordinates, count, mode) - read[0], axis=axis)
            return mx.sym.identity(symbol, name=name)
        return OperatorShard([reads], [output_shard.box], build=build)


def _sources(library: Any, coordinates: Any, count: int, mode: str) -> Any:
    """Return the elements, of `count`, that stand at some coordinates: an array of NumPy, or a symbol of mx.sym."""
    if mode == 'edge':
        return library.clip(coordinates, 0, count - 1)
    return count - 1 - library.abs(count - 1 - library.abs(coordinates))


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
        return OperatorShard([box, *shape_only(graph, operator)], [out], build=lambda inputs, name, attributes:
                             mx.sym.identity(inputs[0], name=name))
