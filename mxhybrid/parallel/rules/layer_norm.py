"""LayerNorm."""
from typing import List

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorPart, Rule, axis_of, with_range
from ..sharding.box import full
from ..sharding.split import PartPlace


@register('LayerNorm')
class LayerNorm(Rule):
    """Whatever is not normalised."""

    adds_weight_gradients = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All but the axis."""
        shape = graph.shape(one)
        return [place != axis_of(one, len(shape), -1) for place in range(len(shape))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        statistics = with_range(place.box, axis_of(one, len(place.box), -1), (0, 1))
        return OperatorPart([place.box] + [full(shape) for shape in graph.inputs(one)[1:]],
                            [place.box] + [statistics] * (one.outputs - 1))
