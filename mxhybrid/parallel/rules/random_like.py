"""Operators that draw a number for each element."""
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from .elementwise import Pointwise

#: Distributions of which as many numbers are drawn as an array has.
_DISTRIBUTIONS = 'exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform'.split()


@register('Dropout', keeps_blocked=True)
@register(*['_random_%s_like' % name for name in _DISTRIBUTIONS])
class RandomLike(Pointwise):
    """The same for what is drawn, but for dimensions along which all elements share a draw, `axes` of Dropout."""

    not_replicable = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """As said."""
        count, axes = len(graph.shape(operator)), operator.get('axes', ())
        shared = {int(axis) % count for axis in ((axes,) if isinstance(axes, int) else axes)}
        return [can and at not in shared for at, can in enumerate(super().splittable(graph, operator))]
