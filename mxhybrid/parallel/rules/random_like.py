"""The rules of operators that draw a number for each element."""
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from .elementwise import Pointwise

#: Distributions from which an operator draws a number for each element of an array.
_DISTRIBUTIONS = 'exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform'.split()


@register('Dropout', keeps_blocked=True)
@register(*['_random_%s_like' % name for name in _DISTRIBUTIONS])
class RandomLike(Pointwise):
    """An operator that draws for each element: every dimension can be split, but for `axes` of Dropout, along which all
    elements share a draw.
    """

    not_replicable = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the dimensions along which each element has a draw of its own."""
        count, axes = len(graph.shape(operator)), operator.get('axes', ())
        shared = {int(axis) % count for axis in ((axes,) if isinstance(axes, int) else axes)}
        return [can and at not in shared for at, can in enumerate(super().splittable(graph, operator))]
