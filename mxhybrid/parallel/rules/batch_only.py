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

    def _with_samples(self, operator: Operator) -> int:
        """How many inputs have samples."""
        return len(operator.inputs) if self.inputs_with_samples is None else self.inputs_with_samples

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """The first."""
        return [dimension == 0 for dimension in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """As :meth:`Rule.shard`."""
        count = self._with_samples(operator)
        return OperatorShard([(output_shard.box[0],) + full(shape[1:]) if at < count else full(shape)
                             for at, shape in enumerate(graph.inputs(operator))],
                    [(output_shard.box[0],) + full(graph.shape(operator, output)[1:])
                     for output in range(operator.outputs)])


@register('UpSampling')
class UpSampling(BatchOnly):
    """Images that are made larger, several of them side by side; one of them where a weight does it."""

    def _with_samples(self, operator: Operator) -> int:
        return 1 if operator.get('sample_type') == 'bilinear' else len(operator.inputs)
