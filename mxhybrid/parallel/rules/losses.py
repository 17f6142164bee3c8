"""Rules of outputs that make a loss of their own, whatever gradient comes back to them: each copy would give all of it.
"""
from typing import List, Optional, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OnOneRank
from ..sharding.sample_axis import SampleAxis
from .batch_only import BatchOnly
from .elementwise import Pointwise

#: Operators without a rule whose gradient does not depend on that of their output alone: they make a loss of their own,
#: or add one.  Each copy would give all of it.  A custom operator may be one.
register('Softmax', 'IdentityAttachKLSparseReg', 'Custom', is_loss=True)(OnOneRank)


@register('SoftmaxOutput', 'SVMOutput', labels_are_classes=True)
@register('LinearRegressionOutput', 'LogisticRegressionOutput', 'MAERegressionOutput')
class Loss(BatchOnly):
    """Losses of samples, which one rank computes if they are divided by the size of the batch."""

    not_replicable = is_loss = True
    index_input = 1
    labels_are_classes = False

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return the number of classes."""
        shape = graph.inputs(operator)[0]
        last = len(shape) == 1 or operator.get('preserve_shape', False)
        return shape[-1 if last else 1] if self.labels_are_classes else None

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """The first, if at all."""
        whole = operator.get('normalization', 'null') != 'null'
        return [dimension == 0 and not whole for dimension in range(len(graph.shape(operator)))]

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Samples are where the inputs have them, in the first dimension, also of what one rank computes for all."""
        found = {axis for axis in known if axis is not None}
        return [found.pop() if len(found) == 1 and all(axis.axis == 0 for axis in found) else None]


@register('MakeLoss', 'make_loss')
class LossOfElements(Pointwise):
    """MakeLoss and make_loss: each element is a loss; one rank computes all if they are divided by the size of the
    batch.
    """

    not_replicable = is_loss = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """All, or none."""
        return [operator.get('normalization', 'null') == 'null'] * len(graph.shape(operator))

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Samples are where the input has them, also of what one rank computes for all."""
        return [known[0]]
