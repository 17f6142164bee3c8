"""The rule of pooling."""
import math
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, as_tuple, summed
from ..sharding.box import full
from ..sharding.split import OutputShard
from .windows import is_channels_first, window


class ImageSums(Rule):
    """An operator on images whose partial sums, if it has any, cover parts of an image."""

    makes_images = True

    def propagate(self, graph: Graph, operator: Operator,
                  degrees: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, ...], int]]:
        """Return degrees and partial sums, see :meth:`Rule.propagate`: sums over parts of an image are partial."""
        other_degrees, partials = degrees[:2] + (1,) * (len(degrees) - 2), math.prod(degrees[2:])
        if 1 < partials <= self.partials(graph, operator) and self._within(graph, operator, other_degrees):
            return other_degrees, partials
        return super().propagate(graph, operator, degrees)


@register('Pooling')
class Pooling(ImageSums):
    """Pooling: samples, channels and every dimension of images that is not pooled as a whole can be split; where whole
    images are summed or averaged, partial sums cover ranges of their first dimension.
    """

    keeps_blocked = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the dimensions of images where each output reads a window of its own."""
        shape = graph.shape(operator)
        windows = not operator.get('global_pool', False) and is_channels_first(operator) and self._is_plain(operator)
        return [True, is_channels_first(operator)] + [windows] * (len(shape) - 2)

    @staticmethod
    def _is_plain(operator: Operator) -> bool:
        kind = operator.get('pool_type', 'max')
        return kind == 'max' or kind == 'avg' and operator.get('count_include_pad', True) is True and \
            operator.get('pooling_convention', 'valid') == 'valid'

    @staticmethod
    def _adds(graph: Graph, operator: Operator) -> bool:
        """Return whether whole images are summed or averaged."""
        data, kind = graph.inputs(operator)[0], operator.get('pool_type', 'max')
        count = len(data) - 2
        return kind in ('avg', 'sum') and is_channels_first(operator) and (bool(operator.get('global_pool', False)) or (
            as_tuple(operator.get('kernel'), count, 1) == tuple(data[2:])
            and not any(as_tuple(operator.get('pad'), count, 0))))

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of rows of an image, if whole images are summed."""
        return graph.inputs(operator)[0][2] if self._adds(graph, operator) else 1

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        out, data, shape = output_shard.box, graph.inputs(operator)[0], graph.shape(operator)
        if not is_channels_first(operator):
            return OperatorShard([(out[0],) + full(data[1:])], [out])
        if output_shard.partials > 1:
            scale = 1 / math.prod(data[2:]) if operator.get('pool_type') == 'avg' else 1.0

            def build(inputs: List[Any], name: str, attributes: Any) -> Any:
                return mx.sym.sum(inputs[0], axis=tuple(range(2, len(data))), keepdims=True) * scale
            return OperatorShard([out[:2] + (summed(data[2], output_shard),) + full(data[3:])], [out], build=build)
        if operator.get('global_pool', False) or out[2:] == full(shape[2:]):
            return OperatorShard([out[:2] + full(data[2:])], [out])
        count = len(data) - 2
        kernel = as_tuple(operator.get('kernel'), count, 1)
        strides, pads = as_tuple(operator.get('stride'), count, 1), as_tuple(operator.get('pad'), count, 0)
        fill = float('-inf') if operator.get('pool_type', 'max') == 'max' else 0.0
        if operator.get('pooling_convention', 'valid') == 'valid':
            windows = [window(*dimension) for dimension in zip(out[2:], data[2:], shape[2:], kernel, strides, pads)]
            attrs: Dict[str, Any] = {'pad': tuple(pad for _, pad in windows)}
        else:  # where the count is rounded up, windows reach beyond the image: the padding is part of the input
            windows = [window(out_range, count_in, -1, *rest) for out_range, count_in, *rest in
                       zip(out[2:], data[2:], kernel, strides, pads)]
            attrs = {'pad': (0,) * count, 'pooling_convention': 'valid'}
        return OperatorShard([out[:2] + tuple(rows for rows, _ in windows)], [out], attrs, [fill])


def halves_images(graph: Graph, operator: Operator) -> bool:
    """Return whether an operator takes the largest value of each window of two rows and two columns of images."""
    return operator.op == 'Pooling' and is_channels_first(operator) and len(graph.shape(operator)) == 4 and \
        operator.get('pool_type', 'max') == 'max' and not operator.get('global_pool', False) and \
        operator.get('pooling_convention', 'valid') != 'same' and \
        as_tuple(operator.get('kernel'), 2, 1) == as_tuple(operator.get('stride'), 2, 1) == (2, 2) and \
        not any(as_tuple(operator.get('pad'), 2, 0))
