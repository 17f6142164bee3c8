"""The rules of operators that are a loss, whatever gradient comes back to them: each copy would return all of it."""
from typing import List, Optional, Sequence, Tuple

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OnOneRank, OperatorShard, Rule, summed
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard
from .aligned import BatchOnly
from .elementwise import Pointwise

# Operators without a rule whose gradient does not depend on that of their output alone: they are a loss, or add one.
# Each copy would return all of it.  A custom operator may be one.
register('Softmax', 'IdentityAttachKLSparseReg', 'Custom', is_loss=True)(OnOneRank)


@register('SoftmaxOutput', 'SVMOutput', labels_are_classes=True)
@register('LinearRegressionOutput', 'LogisticRegressionOutput', 'MAERegressionOutput')
class Loss(BatchOnly):
    """A loss of each sample; one rank computes it for all if it is divided by the size of the batch."""

    not_replicable = is_loss = ignores_gradient = True
    index_input = 1
    labels_are_classes = False

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number of classes."""
        shape = graph.inputs(operator)[0]
        last = len(shape) == 1 or operator.get('preserve_shape', False)
        return shape[-1 if last else 1] if self.labels_are_classes else None

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        is_normalized = operator.get('normalization', 'null') != 'null'
        return [dimension == 0 and not is_normalized for dimension in range(len(graph.shape(operator)))]

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis, the first dimension, also where one rank computes the loss for all."""
        axes = {axis for axis in known if axis is not None}
        return [axes.pop() if len(axes) == 1 and all(axis.axis == 0 for axis in axes) else None]


@register('MakeLoss', 'make_loss')
class LossOfElements(Pointwise):
    """MakeLoss and make_loss: each element is a loss; one rank computes all of them if they are divided by the size of
    the batch.
    """

    not_replicable = is_loss = ignores_gradient = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [operator.get('normalization', 'null') == 'null'] * len(graph.shape(operator))

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis of the input, also where one rank computes the losses for all."""
        return [known[0]]


@register('softmax_cross_entropy')
class SumOfLosses(Rule):
    """softmax_cross_entropy: the sum of the losses of all samples; partial sums cover ranges of samples."""

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number of classes."""
        return graph.inputs(operator)[0][1]

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the number of samples."""
        return graph.inputs(operator)[0][0]

    def propagate(self, graph: Graph, operator: Operator,
                  degrees: Tuple[int, ...]) -> Optional[Tuple[Tuple[int, ...], int]]:
        """Return degrees and partial sums, see :meth:`Rule.propagate`: samples that are split make partial sums."""
        return ((1,), degrees[0]) if all(degree == 1 for degree in degrees[1:]) else None

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        data = graph.inputs(operator)[0]
        rows = summed(data[0], output_shard)
        return OperatorShard([(rows, (0, data[1])), (rows,)], [output_shard.box])
