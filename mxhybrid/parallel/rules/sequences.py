"""The rules of operators on sequences: recurrent layers, masks, losses of whole sequences."""
import math
from typing import Any, Callable, Dict, List, Optional

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Substituted, axis_length, axis_of, elements_of
from ..sharding.box import shape_of
from .aligned import Aligned, Alignment


@register('RNN')
class Recurrent(Aligned):
    """The fused recurrent layer: samples can be split."""

    is_searched = adds_weight_gradients = True

    def flop(self, operator: Operator, shard: OperatorShard) -> float:
        """Return a multiplication and an addition for each weight, time and sample."""
        data, weights = shard.inputs[:2]
        assert data is not None and weights is not None
        return 2.0 * math.prod(shape_of(data)[:2]) * elements_of([weights])

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        """Return the alignment: data and states have the samples in dimension 1, lengths have nothing else."""
        _, weights, *states = graph.inputs(operator)
        return [[None, 1, None], [None] * len(weights), *([None, 1, None] if len(state) == 3 else [1]
                                                          for state in states)]


@register('SequenceMask', 'SequenceReverse', 'SequenceLast')
class Sequences(Substituted, Aligned):
    """SequenceMask, SequenceReverse and SequenceLast: every dimension but that of the times can be split; there is a
    length for each sample.
    """

    index_input = 1

    def index_limit(self, graph: Graph, operator: Operator) -> Optional[int]:
        """Return one more than the greatest length."""
        return axis_length(graph, operator, 0) + 1

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        count = len(graph.inputs(operator)[0])
        times = axis_of(operator, count, 0)
        drops_times = operator.op == 'SequenceLast'
        data: Alignment = [None if at == times else at - (drops_times and at > times) for at in range(count)]
        return [data] + [[data[1 - times]]] * (len(operator.inputs) - 1)

    def substitute(self, graph: Graph, operator: Operator) -> Optional[Callable[..., Any]]:
        """Return a slice of the last time for SequenceLast without lengths: its backward pass in MXNet 1.9.1 writes
        outside of its memory.
        """
        if operator.op != 'SequenceLast' or len(operator.inputs) > 1:
            return None
        times, count = axis_of(operator, len(graph.inputs(operator)[0]), 0), axis_length(graph, operator, 0)

        def build(inputs: List[Any], name: str, attributes: Dict[str, Any]) -> Any:
            last = mx.sym.slice_axis(inputs[0], axis=times, begin=count - 1, end=count)
            return mx.sym.squeeze(last, axis=times, name=name)
        return build


@register('CTCLoss')
class CTCLoss(Substituted, Aligned):
    """CTCLoss: data of shape (times, samples, letters), of which the samples can be split, labels and lengths."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        return [[None, 0, None], [0, None]] + [[0]] * (len(operator.inputs) - 2)

    def substitute(self, graph: Graph, operator: Operator) -> Optional[Callable[..., Any]]:
        """Return the loss with gradients of zeros for samples with more labels than times, if there may be some.

        Equal neighbours among the labels need a time between them.  MXNet gives such samples a loss of 0, and leaves
        their gradients as the memory was (compute_ctc_loss of cpu_ctc.h).
        """
        times, labels = graph.inputs(operator)[0][0], graph.inputs(operator)[1][1]

        def build(inputs: List[Any], name: str, attributes: Dict[str, Any]) -> Any:
            data = inputs[0]
            if 2 * labels - 1 > times or operator.get('use_data_lengths', False):
                data = _with_fitting_labels(operator, times, labels, inputs)
            # MXNet takes the first lengths for those of data, whatever they are.
            names = [kind for kind in ('data_lengths', 'label_lengths') if operator.get('use_' + kind, False)]
            return mx.sym.CTCLoss(data, inputs[1], **dict(zip(names, inputs[2:])), name=name, **attributes)
        return build


def _with_fitting_labels(operator: Operator, times: int, label_count: int, inputs: List[Any]) -> Any:
    """Return the symbol of the data of a CTCLoss, with constants for samples with more labels than times."""
    data, labels, *lengths = inputs
    labels, *lengths = [mx.sym.cast(mx.sym.BlockGrad(symbol), 'float32') for symbol in (labels, *lengths)]
    most: Any = lengths.pop(0) if operator.get('use_data_lengths', False) else float(times)
    if lengths:
        is_label = mx.sym.broadcast_lesser(mx.sym.reshape(mx.sym.arange(label_count), shape=(1, -1)),
                                           mx.sym.reshape(lengths[0], shape=(-1, 1)))
    else:
        padding = 0 if operator.get('blank_label', 'first') == 'first' else -1
        is_label = mx.sym.cumsum(labels == padding, axis=1) == 0
    needed = mx.sym.sum(is_label, axis=1)
    if label_count > 1:
        first, second, counts = (mx.sym.slice_axis(symbol, axis=1, begin=begin, end=label_count - 1 + begin)
                                 for symbol, begin in ((labels, 0), (labels, 1), (is_label, 1)))
        needed = needed + mx.sym.sum((first == second) * counts, axis=1)
    fits = mx.sym.broadcast_like(mx.sym.reshape(needed <= most, shape=(1, -1, 1)), data)
    return mx.sym.where(fits, data, mx.sym.zeros_like(data))
