"""Operators that are split over samples alone."""
from typing import List, Optional

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule
from ..sharding.box import full
from ..sharding.split import OutputShard


@register('BilinearSampler', 'SpatialTransformer', 'Correlation')
@register('LRN', 'InstanceNorm', 'GroupNorm', 'Pad', 'Crop', 'im2col', 'col2im', 'depth_to_space', 'space_to_depth',
          'GridGenerator', '_contrib_AdaptiveAvgPooling2D', '_contrib_BilinearResize2D', inputs_with_samples=1)
class BatchOnly(Rule):
    """Dimension 0 of all outputs and of the inputs that have samples: of all, or of as many as are given; others, as
    weights, are whole.
    """

    inputs_with_samples: Optional[int] = None

    def _with_samples(self, one: Operator) -> int:
        """How many inputs have samples."""
        return len(one.inputs) if self.inputs_with_samples is None else self.inputs_with_samples

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """The first."""
        return [dimension == 0 for dimension in range(len(graph.shape(one)))]

    def shard(self, graph: Graph, one: Operator, output_shard: OutputShard) -> OperatorShard:
        """As :meth:`Rule.shard`."""
        count = self._with_samples(one)
        return OperatorShard([(output_shard.box[0],) + full(shape[1:]) if at < count else full(shape)
                             for at, shape in enumerate(graph.inputs(one))],
                    [(output_shard.box[0],) + full(graph.shape(one, output)[1:]) for output in range(one.outputs)])


@register('UpSampling')
class UpSampling(BatchOnly):
    """Images that are made larger, several of them side by side; one of them where a weight does it."""

    def _with_samples(self, one: Operator) -> int:
        return 1 if one.get('sample_type') == 'bilinear' else len(one.inputs)
