"""The rule of reductions."""
from typing import List, Optional

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule
from ..sharding.box import full
from ..sharding.split import OutputShard


@register('sum', 'mean', 'max', 'min', 'prod', 'nansum', 'nanprod', 'norm', 'argmax', 'argmin', 'moments')
class Reduction(Rule):
    """A reduction: every dimension that is not reduced can be split."""

    def _reduced(self, graph: Graph, operator: Operator) -> List[bool]:
        count = len(graph.inputs(operator)[0])
        axes = operator.get('axes' if operator.op == 'moments' else 'axis', ())
        axes = [axes] if isinstance(axes, int) else list(axes)
        chosen = {int(axis) % count for axis in axes} or set(range(count))
        if operator.get('exclude', False) and axes:
            chosen = set(range(count)) - chosen
        return [at in chosen for at in range(count)]

    def _sources(self, graph: Graph, operator: Operator) -> List[Optional[int]]:
        """Return the input dimension of each output dimension; None for one that is reduced to length 1."""
        reduced = self._reduced(graph, operator)
        if operator.get('keepdims', False):
            return [None if gone else at for at, gone in enumerate(reduced)]
        remaining: List[Optional[int]] = [at for at, gone in enumerate(reduced) if not gone]
        return remaining or [None]

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the dimensions that remain."""
        return [source is not None for source in self._sources(graph, operator)]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`."""
        box = list(full(graph.inputs(operator)[0]))
        for to, source in enumerate(self._sources(graph, operator)):
            if source is not None:
                box[source] = output_shard.box[to]
        return OperatorShard([tuple(box)], [output_shard.box] * operator.outputs)
