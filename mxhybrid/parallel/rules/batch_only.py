"""The rules of operators that are split over samples alone."""
from typing import List, Optional

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule
from ..sharding.box import full
from ..sharding.split import OutputShard


@register('SpatialTransformer', 'Correlation')
@register('GridGenerator', inputs_with_samples=1)
class BatchOnly(Rule):
    """An operator that can be split over dimension 0, the samples; inputs without samples, such as weights, are
    read whole.
    """

    #: The number of inputs that have samples, the first ones; all have them if it is None.
    inputs_with_samples: Optional[int] = None

    def _with_samples(self, operator: Operator) -> int:
        """Return the number of inputs that have samples."""
        return len(operator.inputs) if self.inputs_with_samples is None else self.inputs_with_samples

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the first dimension alone."""
        return [dimension == 0 for dimension in range(len(graph.shape(operator)))]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        count = self._with_samples(operator)
        samples = output_shard.box[0]
        return OperatorShard([(samples,) + full(shape[1:]) if at < count else full(shape)
                              for at, shape in enumerate(graph.inputs(operator))],
                             [(samples,) + full(graph.shape(operator, output)[1:])
                              for output in range(operator.outputs)])
