"""The rules of operators of which each input dimension is one of the output or is read whole, and of those that are
split over samples alone.
"""
from typing import List, Optional, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule
from ..sharding.box import Box, full
from ..sharding.split import OutputShard

#: For each input dimension, the dimension of the first output whose range a shard reads; None where it reads all.
Alignment = List[Optional[int]]


class Aligned(Rule):
    """An operator of which every dimension can be split that is aligned with one of an input."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return how each input is aligned with the first output."""
        raise NotImplementedError

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the dimensions that are aligned with one of an input."""
        aligned = {at for alignment in self.aligned(graph, operator) for at in alignment}
        return [at in aligned for at in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`; other outputs have the first one's dimensions."""
        boxes: List[Box] = [tuple((0, count) if at is None else output_shard.box[at]
                                  for at, count in zip(alignment, shape))
                            for alignment, shape in zip(self.aligned(graph, operator), graph.inputs(operator))]
        return OperatorShard(boxes, [output_shard.box] * operator.outputs)


@register('softmin', 'sort', 'argsort', 'topk', default_axis=-1)
@register('_np_cumsum', 'reverse')
class WholeAlong(Aligned):
    """An operator that sorts, accumulates, reverses or normalizes elements along some dimensions, which stay whole."""

    #: The axis where none is given; None for all dimensions.
    default_axis: Optional[int] = None

    def whole(self, graph: Graph, operator: Operator) -> Sequence[int]:
        """Return the dimensions that stay whole: the axis, or all of them where there is none."""
        count = len(graph.inputs(operator)[0])
        axis = operator.get('axis', self.default_axis)
        if axis is None or operator.attrs.get('axis') == 'None':
            return range(count)
        return [int(at) % count for at in (axis if isinstance(axis, (tuple, list)) else (axis,))]

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        whole = self.whole(graph, operator)
        return [[None if at in whole else at for at in range(len(graph.inputs(operator)[0]))]]


@register('_contrib_div_sqrt_dim')
class WholeLast(WholeAlong):
    """An operator whose last dimension stays whole."""

    def whole(self, graph: Graph, operator: Operator) -> Sequence[int]:
        return [len(graph.inputs(operator)[0]) - 1]


@register('L2Normalization', 'SoftmaxActivation')
class AxisNormalization(WholeAlong):
    """L2Normalization and SoftmaxActivation: their mode says which dimensions stay whole."""

    def whole(self, graph: Graph, operator: Operator) -> Sequence[int]:
        count = len(graph.inputs(operator)[0])
        return {'channel': [1], 'spatial': range(2, count)}.get(operator.get('mode', 'instance'), range(1, count))


@register('BilinearSampler')
class BilinearSampler(Aligned):
    """BilinearSampler: every dimension can be split; a shard reads whole images, and the part of the grid that says
    where its elements are.
    """

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        return [[0, 1, None, None], [0, None, 2, 3]]


@register('SpatialTransformer', 'Correlation')
@register('GridGenerator', inputs_with_samples=1)
class BatchOnly(Rule):
    """An operator that can be split over dimension 0, the samples; inputs without samples, such as weights, are
    read whole.
    """

    #: The first inputs, this many, have samples; None: all inputs.
    inputs_with_samples: Optional[int] = None

    def _with_samples(self, operator: Operator) -> int:
        """Return the number of inputs that have samples."""
        return len(operator.inputs) if self.inputs_with_samples is None else self.inputs_with_samples

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [dimension == 0 for dimension in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        count = self._with_samples(operator)
        samples = output_shard.box[0]
        return OperatorShard([(samples,) + full(shape[1:]) if at < count else full(shape)
                              for at, shape in enumerate(graph.inputs(operator))],
                             [(samples,) + full(graph.shape(operator, output)[1:])
                              for output in range(operator.outputs)])
