"""The rules of operators on boxes and regions of images."""
from typing import List, Optional, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment, BatchOnly


@register('ROIPooling', '_contrib_ROIAlign')
class Regions(Aligned):
    """ROIPooling and ROIAlign: regions, and channels unless they are sensitive to positions, can be split.  A region
    names its image by a number, so that a shard reads the images of all samples.
    """

    index_input = 1
    makes_images = True

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number of images."""
        return graph.inputs(operator)[0][0]

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        return [[None, None if operator.get('position_sensitive', False) else 1, None, None], [0, None]]

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis of the regions."""
        regions = known[1]
        return [regions if regions is not None and regions.axis == 0 else None] * operator.outputs


@register('_contrib_DeformableConvolution', '_contrib_ModulatedDeformableConvolution')
class DeformableConvolution(Aligned):
    """A convolution whose windows are moved by another input: samples can be split, and output channels of a single
    group.
    """

    splits_weight = makes_images = True

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment: images, moves of windows and, modulated, their weights have samples; filters and bias
        have channels.
        """
        image_count = 2 if operator.op == '_contrib_DeformableConvolution' else 3
        channels = 1 if int(operator.get('num_group', 1)) == 1 else None
        return [[0 if number < image_count else channels, *[None] * (len(shape) - 1)]
                for number, shape in enumerate(graph.inputs(operator))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shard, (low, high) = super().shard(graph, operator, output_shard), output_shard.box[1]
        shard.attrs = {'num_filter': high - low}
        return shard


@register('_contrib_MultiBoxTarget', '_contrib_MultiBoxDetection')
class BoxesOfSamples(BatchOnly):
    """MultiBoxTarget and MultiBoxDetection: samples can be split; all samples have the same anchors."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        alignments = super().aligned(graph, operator)
        alignments[0 if operator.op == '_contrib_MultiBoxTarget' else 2] = [None, None, None]
        return alignments


@register('_linalg_makediag', '_linalg_maketrian', whole_dimensions=1)
@register('_contrib_box_nms', '_contrib_bipartite_matching', '_linalg_det', '_linalg_slogdet', '_linalg_inverse',
          '_linalg_potrf', '_linalg_potri', '_linalg_trmm', '_linalg_trsm', '_linalg_gelqf', '_linalg_syevd',
          '_linalg_sumlogdiag', '_linalg_extractdiag', '_linalg_extracttrian')
class LeadingDimensions(Aligned):
    """An operator on each matrix, or each row, of an array: all other dimensions can be split."""

    #: The number of the last dimensions that stay whole.
    whole_dimensions = 2

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        leading = len(graph.inputs(operator)[0]) - self.whole_dimensions
        return [[at if at < leading else None for at in range(len(shape))] for shape in graph.inputs(operator)]


@register('_contrib_box_iou')
class BoxOverlaps(Aligned):
    """box_iou: the boxes of both inputs can be split."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        left, right = (len(shape) - 1 for shape in graph.inputs(operator))
        return [[*range(left), None], [*range(left, left + right), None]]


@register('_contrib_box_decode')
class BoxDecoding(Aligned):
    """box_decode: samples and boxes can be split."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`: all samples have the same anchors."""
        return [[0, 1, None], [None, 1, None]]


@register('_contrib_box_encode')
class BoxEncoding(Aligned):
    """box_encode: samples and anchors can be split."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        return [[0, 1], [0, 1], [0, 1, None], [0, None, None], [None], [None]]
