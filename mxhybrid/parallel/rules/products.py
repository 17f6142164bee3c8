"""The rules of products of matrices."""
from typing import List, Sequence, Tuple

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, elements_of, summed, with_range
from ..sharding.box import shape_of
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


class Contraction(Aligned):
    """A product that sums over one dimension of its first two inputs; partial sums cover ranges of that dimension."""

    @staticmethod
    def _sums(alignments: Sequence[Alignment]) -> List[int]:
        """Return the dimension of each of two inputs over which the product sums; none if that is not one of each."""
        summed_over = [[at for at, aligned in enumerate(alignment) if aligned is None] for alignment in alignments]
        return [axes[0] for axes in summed_over] if [len(axes) for axes in summed_over] == [1, 1] else []

    @staticmethod
    def _summed_axis(operator: Operator) -> int:
        """Return the dimension of the first input over which the product sums."""
        raise NotImplementedError

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each output and each element that is summed over."""
        left = shard.inputs[0]
        assert left is not None
        return 2.0 * elements_of(shard.outputs[:1]) * shape_of(left)[self._summed_axis(operator)]

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the length of the dimension that is summed over."""
        axes = self._sums(self.aligned(graph, operator))
        return graph.inputs(operator)[0][axes[0]] if axes else 1

    def summed_axes(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        return list(enumerate(self._sums(self.aligned(graph, operator))))

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shard, axes = super().shard(graph, operator, output_shard), self._sums(self.aligned(graph, operator))
        if output_shard.partials > 1:
            own = summed(self.partials(graph, operator), output_shard)
            shard.inputs = [box if box is None else with_range(box, axis, own) for box, axis in zip(shard.inputs, axes)]
        return shard


@register('batch_dot', '_linalg_gemm2', '_linalg_gemm')
class Product(Contraction):
    """batch_dot, gemm2 and gemm: products of many matrices."""

    @staticmethod
    def _summed_axis(operator: Operator) -> int:
        return int(operator.get('axis', -2)) if operator.get('transpose_a', False) else -1

    def batch_axes(self, graph: Graph, operator: Operator) -> Sequence[int]:
        """Return all dimensions but the last two."""
        return range(len(graph.shape(operator)) - 2)

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        count = len(graph.shape(operator))
        if int(operator.get('axis', -2)) not in (-2, count - 2):
            return [[None] * count for _ in operator.inputs]
        others, row, column = range(count - 2), count - 2, count - 1
        left = [*others, None, row] if operator.get('transpose_a', False) else [*others, row, None]
        right = [*others, column, None] if operator.get('transpose_b', False) else [*others, None, column]
        summand: Alignment = [*others, row, column]
        return [left, right] + [summand] * (len(operator.inputs) - 2)


@register('dot')
class Dot(Contraction):
    """dot: a product that sums over the last dimension of the first input and the first dimension of the second."""

    @staticmethod
    def _summed_axis(operator: Operator) -> int:
        return 0 if operator.get('transpose_a', False) else -1

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment: nothing can be split where an input is a vector."""
        left, right = (len(shape) for shape in graph.inputs(operator))
        if min(left, right) < 2:
            return [[None] * left, [None] * right]
        first, second = range(left - 1), range(left - 1, left + right - 2)
        return [[None, *first] if operator.get('transpose_a', False) else [*first, None],
                [*second, None] if operator.get('transpose_b', False) else [None, *second]]
