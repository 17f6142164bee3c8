"""The rule of BatchNorm, and BatchNorm with the statistics of all ranks."""
import copy
import math
from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from ...kernels.library import compiled
from ...kernels.operators import JointNorm, Statistics
from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import Collective, OperatorShard, Rule, axis_of
from ..sharding.box import Box, groups_of, shape_of, size_of
from ..sharding.layout import Layout, Movement, exchange_of_parts
from ..sharding.split import OutputShard, Split

#: Attribute of a BatchNorm whose statistics each rank computes of its own samples, however it is split.
_OWN_STATISTICS = '__own_statistics__'


class JointBatchNorm(Collective):
    """BatchNorm over the shards of several ranks: each rank sends its mean and variance, all compute the joint ones
    (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
    """

    @staticmethod
    def applies(graph: Graph, operator: Operator, split: Split) -> bool:
        """Return whether the statistics are those of several shards."""
        _, others = _axes(operator, len(split.degrees))
        return math.prod(split.degrees[at] for at in others) > 1 and not operator.get('use_global_stats', False) and \
            _OWN_STATISTICS not in operator.attrs

    @staticmethod
    def layouts(graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], str]:
        shape = graph.shape(operator)
        axis, others = _axes(operator, len(shape))
        layout, needed = exchange_of_parts(boxes, others, lambda count: (count, 2, shape[axis]),
                                           lambda rank, parts: (parts, (0, 2), boxes[rank][axis]))
        return layout, needed, 'float64' if graph.dtypes[operator.inputs[0]] == 'float64' else 'float32'

    @classmethod
    def build(cls, program: Any, operator: Operator, inputs: List[Any]) -> Any:
        graph: Graph = program.graph
        axis, others = _axes(operator, len(graph.shape(operator)))
        boxes = {rank: output_shard.box for rank, output_shard in program.shards.output_shards[operator.number].items()}
        layout, needed, dtype = cls.layouts(graph, operator, boxes)
        source = operator.inputs[0]
        if dtype == graph.dtypes[source] == 'float32' and program.is_plain(source) and compiled() is not None and (
                program.rank in boxes):
            normalized = cls._in_one_operator(program, operator, inputs, boxes, layout, needed)
            if normalized is not None:
                return normalized
        shard = None
        if program.rank in boxes:
            shard = _NormShard(program, operator, inputs[0], shape_of(boxes[program.rank]), axis, dtype)
        moments = program.redistribute(None if shard is None else shard.moments, Movement(layout, needed, dtype),
                                       operator, program.learns(graph.operators[source[0]]))
        if shard is None:
            return None
        group = groups_of(boxes, others)[program.rank]
        normalized, mean, variance = shard.normalized(moments, inputs[1], inputs[2], _shares(group, dtype)[None])
        cls._average(program, operator, mean, variance)
        return normalized

    @classmethod
    def _in_one_operator(cls, program: Any, operator: Operator, inputs: List[Any], boxes: Dict[int, Box],
                         layout: Layout, needed: Dict[int, Box]) -> Any:
        """Return the symbol of this rank's shard by an operator that also makes the redistribution; None if there is
        no such operator.
        """
        box = boxes[program.rank]
        axis, others = _axes(operator, len(box))
        group = groups_of(boxes, others)[program.rank]
        rectifier = program.rectifier_of(operator)
        pooling = program.pooling_of(rectifier or operator)
        norm = JointNorm(shape_of(box), axis, tuple(_shares(group, 'float64').tolist()), group.index(box),
                         _epsilon_of(operator), operator.get('fix_gamma', True) is True, rectifier is not None,
                         pooling is not None)
        parameters = mx.sym.identity(inputs[2]) if norm.fixes_gamma else mx.sym.concat(*inputs[1:3], dim=0)
        symbols = program.joint_norm(inputs[0], parameters, layout, needed, operator, norm)
        if symbols is None:
            return None
        normalized, statistics = symbols
        both = mx.sym.BlockGrad(statistics)
        cls._average(program, operator, *[Statistics(both, norm.statistics_size, offset)
                                          for offset in (0, norm.channels)])
        # The operator may not write an output of the graph.
        last = pooling or rectifier or operator
        output = mx.sym.identity(normalized) if (last.number, 0) in program.graph.heads else normalized
        for reader in (rectifier, pooling):
            if reader is not None:
                program.skip(reader, output)
        return output

    @classmethod
    def build_alone(cls, program: Any, operator: Operator, inputs: List[Any]) -> Any:
        """Return the symbol of a shard that has all samples of its statistics: the program updates its running averages
        as it updates those of joint statistics.  None for a BatchNorm that has no statistics or no backward pass.
        """
        if operator.get('use_global_stats', False) or operator.outputs > 1 or not program.updates_averages(
                operator):
            return None
        attrs = operator.settings
        channels = shape_of(program.shards.shard(operator, program.rank).inputs[3])
        unused = [program.constant(operator, what, np.zeros(channels, program.graph.dtypes[operator.inputs[3]]))
                  for what in ('mean', 'variance')]
        outputs = mx.sym.BatchNorm(*inputs[:3], *unused, name=operator.name, **{**attrs, 'output_mean_var': True})
        # The third output is the reciprocal of the standard deviation (batch_norm.cc).
        cls._average(program, operator, outputs[1], 1 / mx.sym.square(outputs[2]) - _epsilon_of(operator))
        return outputs[0]

    @classmethod
    def complete(cls, program: Any, operator: Operator) -> None:
        """Give the statistics to the ranks that hold the running averages, but compute no part of this call."""
        if operator.get('use_global_stats', False) or operator.outputs > 1 or not program.updates_averages(operator):
            return
        graph, ranks = program.graph, program.shards.output_shards[operator.number]
        averages = [graph.operators[operator.inputs[at][0]] for at in (3, 4)]
        boxes = {rank: ((0, 2),) + box for rank, box in program.shards.weights.boxes(averages[0].name).items()}
        lacking = {rank: box for rank, box in boxes.items() if rank not in ranks}
        if not lacking:
            return
        dtype, local = graph.dtypes[averages[0].number, 0], None
        if program.rank in ranks:
            channels = shape_of(boxes[program.rank])[1]
            local = mx.sym.stack(*[mx.sym.cast(program.last_statistic(average, channels), dtype)
                                   for average in averages], axis=0)
        layout = Layout((2,) + graph.shape(averages[0]), {rank: boxes[rank] for rank in ranks})
        received = program.redistribute(local, Movement(layout, lacking, dtype, differentiable=False), operator)
        if program.rank in lacking:
            cls._average(program, operator, *mx.sym.SliceChannel(received, num_outputs=2, axis=0, squeeze_axis=True))

    @staticmethod
    def _average(program: Any, operator: Operator, mean: Any, variance: Any) -> None:
        """Update the running averages, if the backward pass comes to the operator, as MXNet does (batch_norm.cc)."""
        for at, value in ((3, mean), (4, variance)) if program.updates_averages(operator) else ():
            program.average(program.graph.operators[operator.inputs[at][0]], value,
                            float(operator.get('momentum', 0.9)))


def _axes(operator: Operator, dimensions: int) -> Tuple[int, Tuple[int, ...]]:
    """Return the dimension of the channels, and all others, over which statistics are computed."""
    axis = axis_of(operator, dimensions, 1)
    return axis, tuple(at for at in range(dimensions) if at != axis)


def _shares(group: List[Box], dtype: str) -> np.ndarray:
    """Return the share of each shard in the elements of all."""
    sizes = np.array([size_of(box) for box in group], dtype)
    return sizes / sizes.sum()


def with_own_statistics(graph: Graph) -> Graph:
    """Return the same graph, where each rank has BatchNorm statistics of its own, as without a plan."""
    changed_graph = copy.copy(graph)
    changed_graph.operators = list(graph.operators)
    for operator in graph.operators:
        if operator.op == 'BatchNorm':
            changed = Operator(operator.number, operator.op, operator.name,
                               {**operator.attrs, _OWN_STATISTICS: 'True'}, operator.inputs)
            changed.outputs, changed_graph.operators[operator.number] = operator.outputs, changed
    return changed_graph


def _epsilon_of(operator: Operator) -> float:
    """Return the epsilon that is added to a variance; the default is a number of float32 (batch_norm-inl.h)."""
    return float(operator.get('eps', np.float32(1e-3)))


class _NormShard:
    """A shard of a BatchNorm with operators of MXNet alone, for any type, and without the lane.

    MXNet's BatchNorm with constant statistics scales and shifts: no other operator of MXNet that does so is fast in
    both passes and knows the layouts of oneDNN.
    """

    def __init__(self, program: Any, operator: Operator, data: Any, shape: Tuple[int, ...], axis: int, dtype: str):
        self._program, self._operator, self._axis = program, operator, axis
        self._constants = [program.constant(operator, what, np.full(shape[axis], value, dtype))
                           for what, value in (('zeros', 0), ('ones', 1))]
        self._type = program.graph.dtypes[operator.inputs[0]]
        data = data if self._type != 'float16' else mx.sym.cast(data, dtype)
        mean = _mean(data, shape, axis, dtype)
        self._mean = mx.sym.BlockGrad(mean)
        self._apart = self._scaled(data, mx.sym.ones_like(self._mean), -self._mean)
        variance = _mean(mx.sym.square(self._apart), shape, axis, dtype)
        #: Mean and variance of each channel, of shape (1, 2, channels).
        self.moments = mx.sym.expand_dims(mx.sym.stack(mean, variance, axis=0), axis=0)

    def normalized(self, moments: Any, gamma: Any, beta: Any, shares: np.ndarray) -> Tuple[Any, Any, Any]:
        """Return the output, the joint mean and the joint variance, of the moments of all shards; `shares` are the
        shards' shares of the elements.
        """
        weights = self._program.constant(self._operator, 'shares', shares)
        both = mx.sym.SliceChannel(moments, num_outputs=2, axis=1, squeeze_axis=True)
        mean = mx.sym.dot(weights, both[0])
        variance = mx.sym.dot(weights, both[1] + mx.sym.square(mx.sym.broadcast_sub(both[0], mean)))
        mean, variance = (mx.sym.reshape(moment, shape=(-1,)) for moment in (mean, variance))
        scale = mx.sym.rsqrt(variance + _epsilon_of(self._operator))
        if self._operator.get('fix_gamma', True) is not True:
            scale = scale * gamma
        output = self._scaled(self._apart, scale, beta - (mean - self._mean) * scale, self._operator.name)
        return output if self._type != 'float16' else mx.sym.cast(output, 'float16'), mean, variance

    def _scaled(self, values: Any, scale: Any, shift: Any, name: Any = None) -> Any:
        return mx.sym.BatchNorm(values, scale, shift, *self._constants, eps=0.0, fix_gamma=False, use_global_stats=True,
                                axis=self._axis, name=name)


def _mean(data: Any, shape: Tuple[int, ...], axis: int, dtype: str) -> Any:
    """Return the mean of each channel, by products with vectors of ones: MXNet's reductions take ten times as long."""
    before, count, behind = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1:])
    sums = mx.sym.reshape(data, shape=(before * count, behind))
    if behind > 1:
        sums = mx.sym.dot(sums, mx.sym.ones((behind, 1), dtype=dtype))
    if before > 1 or behind == 1:
        sums = mx.sym.dot(mx.sym.ones((1, before), dtype=dtype), mx.sym.reshape(sums, shape=(before, count)))
    return mx.sym.reshape(sums, shape=(-1,)) / (before * behind)


@register('BatchNorm')
class BatchNorm(Rule):
    """BatchNorm: every dimension can be split; ranks compute joint statistics together (:class:`JointBatchNorm`).
    After ``autograd.record(train_mode=False)`` MXNet 1.9.1 computes a right gradient of the data only in
    ``backward(train_mode=False)``.
    """

    splits_every_dimension = True
    not_replicable = True
    adds_weight_gradients = keeps_blocked = has_statistics = True
    collective = JointBatchNorm

    def averages(self, operator: Operator) -> Sequence[int]:
        """Return the inputs of mean and variance, unless the operator normalises by these."""
        return () if operator.get('use_global_stats', False) else (3, 4)

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        channels = output_shard.box[axis_of(operator, len(output_shard.box), 1)]
        return OperatorShard([output_shard.box] + [(channels,)] * 4, [output_shard.box])
