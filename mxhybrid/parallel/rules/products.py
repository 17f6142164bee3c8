"""Products of matrices."""
from typing import List, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, summed, with_range
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


class Contraction(Aligned):
    """Products that sum over one dimension of their first two inputs; addends are ranges of that."""

    @staticmethod
    def _sums(alignments: Sequence[Alignment]) -> List[int]:
        """The dimension of each of two inputs over which is summed; none where that is not one of each."""
        found = [[at for at, aligned in enumerate(alignment) if aligned is None] for alignment in alignments]
        return [places[0] for places in found] if [len(places) for places in found] == [1, 1] else []

    def addends(self, graph: Graph, operator: Operator) -> int:
        """Return the length of what is summed."""
        places = self._sums(self.aligned(graph, operator))
        return graph.inputs(operator)[0][places[0]] if places else 1

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the part, see :meth:`Rule.shard`."""
        found, places = super().shard(graph, operator, output_shard), self._sums(self.aligned(graph, operator))
        if output_shard.addends > 1:
            own = summed(self.addends(graph, operator), output_shard)
            found.inputs = [box if box is None else with_range(box, at, own) for box, at in zip(found.inputs, places)]
        return found


@register('batch_dot', '_linalg_gemm2', '_linalg_gemm')
class Product(Contraction):
    """Products of matrices, many at once: batch_dot, gemm2 and gemm; addends are ranges of what they sum over."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        count = len(graph.shape(operator))
        if int(operator.get('axis', -2)) not in (-2, count - 2):
            return [[None] * count for _ in operator.inputs]
        others: Alignment = list(range(count - 2))
        left: Alignment = [count - 2, None]
        right: Alignment = [None, count - 1]
        found = [others + (left[::-1] if operator.get('transpose_a', False) else left),
                 others + (right[::-1] if operator.get('transpose_b', False) else right)]
        return found + [list(range(count))] * (len(operator.inputs) - 2)


@register('dot')
class Dot(Contraction):
    """dot: the last dimension of the first input is summed with the first one of the other."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment: nothing is cut where an input is a vector."""
        left, right = (len(shape) for shape in graph.inputs(operator))
        if min(left, right) < 2:
            return [[None] * left, [None] * right]
        none: Alignment = [None]
        first: Alignment = list(range(left - 1))
        second: Alignment = list(range(left - 1, left + right - 2))
        return [none + first if operator.get('transpose_a', False) else first + none,
                second + none if operator.get('transpose_b', False) else none + second]
