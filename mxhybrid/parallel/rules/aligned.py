"""The rules of operators of which each input dimension is one of the output or is read whole, and of those that are
split over samples alone.
"""
from typing import List, Optional, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule
from ..sharding.box import Box
from ..sharding.split import OutputShard

#: For each input dimension, the dimension of the first output whose range a shard reads; None where it reads all.
Alignment = List[Optional[int]]


class Aligned(Rule):
    """An operator of which every dimension can be split that is aligned with one of an input."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return how each input is aligned with the first output."""
        raise NotImplementedError

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        aligned = {at for alignment in self.aligned(graph, operator) for at in alignment}
        return [at in aligned for at in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard; other outputs have the aligned dimensions of the first one, and are whole in others."""
        alignments, box = self.aligned(graph, operator), output_shard.box
        aligned = {at for alignment in alignments for at in alignment}
        inputs: List[Box] = [tuple((0, count) if at is None else box[at] for at, count in zip(alignment, shape))
                             for alignment, shape in zip(alignments, graph.inputs(operator))]
        outputs: List[Box] = [tuple(box[at] if at in aligned else (0, count)
                                    for at, count in enumerate(graph.shape(operator, output)))
                              for output in range(operator.outputs)]
        return OperatorShard(inputs, outputs)


@register('softmin', 'sort', 'argsort', 'topk', '_contrib_div_sqrt_dim', default_axis=-1)
@register('_np_cumsum', 'reverse')
class WholeAlong(Aligned):
    """An operator that sorts, accumulates, reverses, scales or normalizes elements along some dimensions, which stay
    whole.
    """

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


@register('SpatialTransformer', 'Correlation', 'GridGenerator')
class BatchOnly(Aligned):
    """An operator that can be split over dimension 0, the samples."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        return [[0] + [None] * (len(shape) - 1) for shape in graph.inputs(operator)]
