"""The rule of reductions."""
import math
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Substituted, summed, with_range
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment


@register('sum', 'mean', adds_up=True)
@register('max', 'min', 'prod', 'nansum', 'nanprod', 'norm', 'argmax', 'argmin')
class Reduction(Aligned):
    """A reduction: every dimension that is not reduced can be split; partial sums and means cover ranges of the first
    one that is.
    """

    reduces = True
    #: Whether it adds up the results of ranges.
    adds_up = False

    def _reduced(self, graph: Graph, operator: Operator) -> List[bool]:
        count = len(graph.inputs(operator)[0])
        axes = operator.get('axes' if operator.op == 'moments' else 'axis', ())
        axes = [axes] if isinstance(axes, int) else list(axes)
        chosen = {int(axis) % count for axis in axes} or set(range(count))
        if operator.get('exclude', False) and axes:
            chosen = set(range(count)) - chosen
        return [at in chosen for at in range(count)]

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        reduced, keeps = self._reduced(graph, operator), operator.get('keepdims', False)
        return [[None if gone else at if keeps else at - sum(reduced[:at]) for at, gone in enumerate(reduced)]]

    def summed_axes(self, graph: Graph, operator: Operator) -> List[Tuple[int, int]]:
        shape, reduced = graph.inputs(operator)[0], self._reduced(graph, operator)
        return [(0, at) for at, count in enumerate(shape) if self.adds_up and reduced[at] and count > 1][:1]

    def partials(self, graph: Graph, operator: Operator) -> int:
        """Return the length of the dimension that partial sums divide."""
        return math.prod(graph.inputs(operator)[0][axis] for _, axis in self.summed_axes(graph, operator))

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        shard = super().shard(graph, operator, output_shard)
        if output_shard.partials > 1:
            (_, axis), = self.summed_axes(graph, operator)
            length, box = graph.inputs(operator)[0][axis], shard.inputs[0]
            assert box is not None
            low, high = summed(length, output_shard)
            shard.inputs = [with_range(box, axis, (low, high))]
            if operator.op == 'mean':
                shard.build = lambda inputs, name, attributes: (
                    mx.sym.mean(*inputs, **attributes) * ((high - low) / length))
        return shard


@register('moments')
class Moments(Substituted, Reduction):
    """moments: every dimension that is not reduced can be split."""

    def substitute(self, graph: Graph, operator: Operator) -> Optional[Callable[..., Any]]:
        """Return mean and variance by other operators if nothing reads the mean: the variance of MXNet 1.9.1 is wrong
        then, since it is computed from memory that holds no mean.
        """
        mean = operator.number, 0
        if mean in graph.heads or any(mean in reader.inputs for reader in graph.operators):
            return None
        axes = tuple(at for at, gone in enumerate(self._reduced(graph, operator)) if gone)
        keepdims = bool(operator.get('keepdims', False))

        def build(inputs: List[Any], name: str, attributes: Dict[str, Any]) -> Any:
            means = mx.sym.mean(inputs[0], axis=axes, keepdims=True)
            squares = mx.sym.square(mx.sym.broadcast_sub(inputs[0], means))
            return mx.sym.Group([means, mx.sym.mean(squares, axis=axes, keepdims=keepdims, name=name)])
        return build
