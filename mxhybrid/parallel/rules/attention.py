"""The rules of the products of self-attention and of attention between encoder and decoder.

Queries, keys and values are of shape (times, samples, heads x features), keys and values side by side in one array,
head after head; scores are of shape (samples x heads, times of queries, times of keys).  See
src/operator/contrib/transformer.cc of MXNet.
"""
import math
from typing import Any, List, Optional, Sequence, Tuple

import mxnet as mx

from ...native.symbols import symbol_function
from ..ops.graph import Entry, Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, elements_of
from ..sharding.box import Box, Range, shape_of
from ..sharding.sample_axis import SampleAxis
from ..sharding.split import OutputShard


class _Attention(Rule):
    """A product of attention: samples, heads and times of queries can be split; times of keys stay whole.

    Heads are a dimension of scores if the graph has their factors, else all heads of a sample stay together.
    """

    takes_factors = True
    #: Whether attention is between two sequences: queries are an array of their own.
    between = False

    def _heads(self, operator: Operator) -> int:
        return int(operator.get('heads'))

    def _features(self, graph: Graph, operator: Operator, position: int) -> int:
        """Return the number of channels of a head in queries, keys and values."""
        return graph.inputs(operator)[position][2] // self._heads(operator)

    def whole_axes(self, graph: Graph, operator: Operator) -> List[Tuple[Entry, int]]:
        scores = {entry for entry, axis, _, _ in self.heads(graph, operator) if axis == 0}
        return [(entry, axis) for entry in operator.inputs for axis in range(entry in scores, 3)]

    def _of_sequence(self, graph: Graph, operator: Operator, position: int, samples: Range, heads: Range,
                     times: Optional[Range] = None) -> Box:
        """Return the box of queries, keys or values that a shard reads."""
        features = self._features(graph, operator, position)
        return (times or (0, graph.inputs(operator)[position][0]), samples, (heads[0] * features, heads[1] * features))

    def _shard_of_scores(self, operator: Operator, box: Box) -> Tuple[Range, Range, Range]:
        """Return samples, heads and times of queries of a box of scores."""
        if len(box) == 4:
            return box[0], box[1], box[2]
        heads = self._heads(operator)
        return (box[0][0] // heads, box[0][1] // heads), (0, heads), box[1]

    def _each(self, symbol: Any, shape: Sequence[int], heads: int, number: int) -> Any:
        """Return queries, keys or values, the `number`-th of three of self-attention, as (samples x heads, times,
        features); `shape` is that of all three together.
        """
        times, samples, channels = shape
        apart = mx.sym.reshape(symbol, shape=(times, samples * heads, 3, channels // heads // 3))
        return mx.sym.transpose(mx.sym.SliceChannel(apart, num_outputs=3, axis=2, squeeze_axis=True)[number],
                                axes=(1, 0, 2))


@register('_contrib_interleaved_matmul_selfatt_qk')
@register('_contrib_interleaved_matmul_encdec_qk', between=True)
class Scores(_Attention):
    """The product of queries and keys: samples, heads and times of queries can be split."""

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each score and each feature of a head."""
        first = shard.inputs[0]
        assert first is not None
        rows = shape_of(first)[0] * math.prod(shape_of(shard.outputs[0])[:-2])
        features = elements_of([first]) / (rows if self.between else 3 * rows)
        return 2.0 * elements_of(shard.outputs[:1]) * features

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the elements of queries, keys and scores; values are in the same array as the keys and are not read.
        """
        inputs = shard.inputs
        read = elements_of(inputs[:1]) + elements_of(inputs[1:]) // 2 if self.between else 2 * elements_of(inputs) // 3
        return elements_of(shard.outputs[:1]) + read

    def heads(self, graph: Graph, operator: Operator) -> List[Tuple[Entry, int, int, int]]:
        heads = self._heads(operator)
        return [((operator.number, 0), 0, 1, heads)] + [
            (entry, 2, self._features(graph, operator, position), heads)
            for position, entry in enumerate(operator.inputs)]

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the number of heads for the first dimension if the heads of a sample stay together."""
        is_apart = len(graph.shape(operator)) == 4
        return [1, 1, 1, 1] if is_apart else [self._heads(operator), 1, 1]

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        return [True] * (len(graph.shape(operator)) - 1) + [False]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        samples, heads, times = self._shard_of_scores(operator, output_shard.box)
        boxes = [self._of_sequence(graph, operator, position, samples, heads,
                                   times if self.between and position == 0 else None)
                 for position in range(len(operator.inputs))]
        shape, count = shape_of(output_shard.box), heads[1] - heads[0]
        whole_times = self.between or shape_of((times,))[0] == graph.inputs(operator)[0][0]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            if whole_times:
                scores = symbol_function(operator.op)(*inputs, name=name, **attributes)
            else:
                queries, keys = (self._each(inputs[0], shape_of(boxes[0]), count, number) for number in (0, 1))
                queries = mx.sym.slice_axis(queries, axis=1, begin=times[0], end=times[1])
                features = self._features(graph, operator, 0) // 3
                scores = mx.sym.batch_dot(queries / features ** 0.5, keys, transpose_b=True, name=name)
            return mx.sym.reshape(scores, shape=shape)
        attrs = {'heads': count}
        return OperatorShard(boxes, [output_shard.box], attrs,
                             build=None if len(shape) == 3 and whole_times else build)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis, the first dimension, where the heads of a sample are neighbours."""
        if any(axis is not None and axis.axis != 1 for axis in known) or len({axis for axis in known if axis}) != 1:
            return [None]
        sample_axis = next(axis for axis in known if axis is not None)
        together = 1 if len(graph.shape(operator)) == 4 else self._heads(operator)
        return [SampleAxis(0, sample_axis.each * together, sample_axis.rounds)]


@register('_contrib_interleaved_matmul_selfatt_valatt')
@register('_contrib_interleaved_matmul_encdec_valatt', between=True)
class Weighted(_Attention):
    """The product of attention and values: times of queries, samples and heads can be split."""

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each output and each time of the keys."""
        attention = shard.inputs[1]
        assert attention is not None
        return 2.0 * elements_of(shard.outputs[:1]) * shape_of(attention)[-1]

    def elements_moved(self, operator: Operator, shard: OperatorShard) -> int:
        """Return the elements of values, attention and outputs; keys and queries are in the same array as the values
        and are not read.
        """
        values, attention = shard.inputs
        return elements_of(shard.outputs[:1] + [attention]) + elements_of([values]) // (2 if self.between else 3)

    def heads(self, graph: Graph, operator: Operator) -> List[Tuple[Entry, int, int, int]]:
        heads = self._heads(operator)
        return [((operator.number, 0), 2, graph.shape(operator)[2] // heads, heads),
                (operator.inputs[0], 2, self._features(graph, operator, 0), heads), (operator.inputs[1], 0, 1, heads)]

    def grains(self, graph: Graph, operator: Operator) -> List[int]:
        """Return the number of features of a head for the channels."""
        return [1, 1, graph.shape(operator)[2] // self._heads(operator)]

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """Return True for times and samples, and for heads if they are a dimension of attention."""
        return [True, True, len(graph.inputs(operator)[1]) == 4]

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        values, attention = graph.inputs(operator)
        times, samples, channels = output_shard.box
        features = graph.shape(operator)[2] // self._heads(operator)
        heads = channels[0] // features, channels[1] // features
        weights: Box = (samples, heads) if len(attention) == 4 else (
            (samples[0] * self._heads(operator), samples[1] * self._heads(operator)),)
        boxes = [self._of_sequence(graph, operator, 0, samples, heads), weights + (times, (0, attention[-1]))]
        count, number = heads[1] - heads[0], samples[1] - samples[0]
        whole_times = self.between or times == (0, values[0])

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            merged = mx.sym.reshape(inputs[1], shape=(number * count,) + shape_of(boxes[1])[-2:])
            if whole_times:
                return symbol_function(operator.op)(inputs[0], merged, name=name, **attributes)
            product = mx.sym.batch_dot(merged, self._each(inputs[0], shape_of(boxes[0]), count, 2))
            return mx.sym.reshape(mx.sym.transpose(product, axes=(1, 0, 2)), shape=shape_of(output_shard.box),
                                  name=name)
        return OperatorShard(boxes, [output_shard.box], {'heads': count},
                             build=None if len(attention) == 3 and whole_times else build)

    def samples(self, graph: Graph, operator: Operator, known: Sequence[Optional[SampleAxis]]
                ) -> List[Optional[SampleAxis]]:
        """Return the sample axis: that of the values, or that of attention, whose heads become features."""
        values, attention = known
        together = 1 if len(graph.inputs(operator)[1]) == 4 else self._heads(operator)
        candidates = set()
        if values is not None:
            candidates.add(values if values.axis == 1 else None)
        if attention is not None:
            whole = attention.axis == 0 and attention.each % together == 0
            candidates.add(SampleAxis(1, attention.each // together, attention.rounds) if whole else None)
        return [candidates.pop() if len(candidates) == 1 else None]
