"""Rules of outputs that make a loss of their own, whatever gradient comes back to them: each copy would give all of it.
"""
from typing import List, Optional, Sequence

from ..sharding.sample_axis import SampleAxis
from .graph import Graph, Operator
from .layer_rules import SamplesOnly
from .shape_rules import Pointwise


class Loss(SamplesOnly):
    """Losses of samples, which one rank computes if they are divided by the size of the batch."""

    alone = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """The first, if at all."""
        whole = one.get('normalization', 'null') != 'null'
        return [place == 0 and not whole for place in range(len(graph.shape(one)))]

    def samples(self, graph: Graph, one: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Samples are where the inputs have them, in the first dimension, also of what one rank computes for all."""
        found = {axis for axis in known if axis is not None}
        return [found.pop() if len(found) == 1 and all(axis.axis == 0 for axis in found) else None]


class LossOfElements(Pointwise):
    """MakeLoss and make_loss: each element is a loss; one rank computes all if they are divided by the size of the
    batch.
    """

    alone = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All, or none."""
        return [one.get('normalization', 'null') == 'null'] * len(graph.shape(one))

    def samples(self, graph: Graph, one: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Samples are where the input has them, also of what one rank computes for all."""
        return [known[0]]
