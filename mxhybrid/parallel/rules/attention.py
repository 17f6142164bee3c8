"""The rules of the products of self-attention and of attention between encoder and decoder.

Queries, keys and values are of shape (times, samples, heads x features), keys and values side by side in one array;
scores are of shape (samples x heads, times of queries, times of keys).  See src/operator/contrib/transformer.cc of
MXNet.
"""
from typing import List, Optional, Sequence

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, elements_of
from ..sharding.box import Box, Range, shape_of
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard


class _Attention(Rule):
    """A product of attention, of which samples can be split."""

    #: Whether attention is between two sequences: then times of queries can be split, too.
    between = False

    def _heads(self, operator: Operator) -> int:
        return int(operator.get('heads'))

    def _of_sequence(self, graph: Graph, operator: Operator, at: int, samples: Range,
                     times: Optional[Range] = None) -> Box:
        """Return the box of queries, keys or values that a shard reads."""
        shape = graph.inputs(operator)[at]
        return (times or (0, shape[0]), samples, (0, shape[2]))


@register('_contrib_interleaved_matmul_selfatt_qk')
@register('_contrib_interleaved_matmul_encdec_qk', between=True)
class Scores(_Attention):
    """The product of queries and keys."""

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each score and each feature of a head."""
        first = shard.inputs[0]
        assert first is not None
        rows = shape_of(first)[0] * shape_of(shard.outputs[0])[0]
        features = elements_of([first]) / (rows if self.between else 3 * rows)
        return 2.0 * elements_of(shard.outputs[:1]) * features

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the elements of queries, keys and scores; values lie beside the keys and are not read."""
        inputs = shard.inputs
        read = elements_of(inputs[:1]) + elements_of(inputs[1:]) // 2 if self.between else 2 * elements_of(inputs) // 3
        return elements_of(shard.outputs[:1]) + read

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the number of heads for the first dimension: the heads of a sample stay together."""
        return [self._heads(operator), 1, 1]

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the samples, and for the times of queries where these are a sequence of their own."""
        return [True, self.between, False]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`."""
        heads, (low, high) = self._heads(operator), output_shard.box[0]
        samples = low // heads, high // heads
        first = self._of_sequence(graph, operator, 0, samples, output_shard.box[1] if self.between else None)
        return OperatorShard([first] + [self._of_sequence(graph, operator, at, samples)
                                        for at in range(1, len(operator.inputs))],
                             [output_shard.box])

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis, the first dimension, where the heads of a sample are neighbours."""
        if any(axis is not None and axis.axis != 1 for axis in known) or len({axis for axis in known if axis}) != 1:
            return [None]
        sample_axis = next(axis for axis in known if axis is not None)
        return [SampleAxis(0, sample_axis.each * self._heads(operator), sample_axis.rounds)]


@register('_contrib_interleaved_matmul_selfatt_valatt')
@register('_contrib_interleaved_matmul_encdec_valatt', between=True)
class Weighted(_Attention):
    """The product of attention and values."""

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each output and each time of the keys."""
        attention = shard.inputs[1]
        assert attention is not None
        return 2.0 * elements_of(shard.outputs[:1]) * shape_of(attention)[-1]

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the elements of values, attention and outputs; keys and queries lie beside the values and are not
        read.
        """
        values, attention = shard.inputs
        return elements_of(shard.outputs[:1] + [attention]) + elements_of([values]) // (2 if self.between else 3)

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for the samples, and for the times of queries where these are a sequence of their own."""
        return [self.between, True, False]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """Return the shard, see :meth:`Rule.shard`."""
        heads, attention = self._heads(operator), graph.inputs(operator)[1]
        times, samples = output_shard.box[0], output_shard.box[1]
        return OperatorShard([self._of_sequence(graph, operator, 0, samples),
                              ((samples[0] * heads, samples[1] * heads), times, (0, attention[2]))], [output_shard.box])

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis: that of the values, or that of attention, whose heads become features."""
        heads, (values, attention) = self._heads(operator), known
        candidates = set()
        if values is not None:
            candidates.add(values if values.axis == 1 else None)
        if attention is not None:
            whole = attention.axis == 0 and attention.each % heads == 0
            candidates.add(SampleAxis(1, attention.each // heads, attention.rounds) if whole else None)
        return [candidates.pop() if len(candidates) == 1 else None]
