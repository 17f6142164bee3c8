"""BatchNorm over what several ranks have: each tells its mean and variance, all compute the joint ones of them."""
import copy
from typing import Any, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np

from ...lane.norm_operators import is_compiled, joint_of, moments_of
from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, axis_of
from ..sharding.box import Box, shape_of, size_of
from ..sharding.layout import Layout
from ..sharding.split import OutputShard, Split
from .collective_groups import groups_of

#: Attribute of a BatchNorm of which each rank has its own statistics, however it is split.
_OWN_STATISTICS = '__own_statistics__'


class JointBatchNorm:
    """BatchNorm over what several ranks have: each tells its mean and variance, all compute the joint ones of them
    (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
    """

    @staticmethod
    def applies(graph: Graph, operator: Operator, split: Split) -> bool:
        """Whether statistics are computed over more than one part."""
        axis = axis_of(operator, len(split.degrees), 1)
        shards = 1
        for at, degree in enumerate(split.degrees):
            shards *= degree if at != axis else 1
        return shards > 1 and not operator.get('use_global_stats', False) and _OWN_STATISTICS not in operator.attrs

    @staticmethod
    def layouts(graph: Graph, operator: Operator, boxes: Dict[int, Box]) -> Tuple[Layout, Dict[int, Box], str]:
        """What each rank tells, what it is told, and the type of that."""
        shape = graph.shape(operator)
        axis = axis_of(operator, len(shape), 1)
        groups = groups_of(boxes, tuple(at for at in range(len(shape)) if at != axis))
        count = max(map(len, groups.values()))
        places = {rank: group.index(boxes[rank]) for rank, group in groups.items()}
        have = Layout((count, 2, shape[axis]), {rank: ((at, at + 1), (0, 2), boxes[rank][axis])
                                                for rank, at in places.items()})
        wanted: Dict[int, Box] = {rank: ((0, len(group)), (0, 2), boxes[rank][axis]) for rank, group in groups.items()}
        return have, wanted, 'float64' if graph.dtypes[operator.inputs[0]] == 'float64' else 'float32'

    @classmethod
    def build(cls, program: Any, operator: Operator, given: List[Any]) -> Any:
        """The symbol of this rank's part; None if it has none."""
        graph: Graph = program.graph
        shape = graph.shape(operator)
        axis = axis_of(operator, len(shape), 1)
        others = tuple(at for at in range(len(shape)) if at != axis)
        boxes = {rank: output_shard.box for rank, output_shard in program.shards.output_shards[operator.number].items()}
        have, wanted, dtype = cls.layouts(graph, operator, boxes)
        groups = groups_of(boxes, others)
        source = operator.inputs[0]
        compiled = dtype == graph.dtypes[source] == 'float32' and program.is_plain(source) and is_compiled()
        part_of = _CompiledNorm if compiled else _ComposedNorm
        shard = None
        if program.rank in boxes:
            shard = part_of(program, operator, given[0], shape_of(boxes[program.rank]), axis, dtype)
        everyone = program.redistribute(None if shard is None else shard.moments, have, wanted, dtype, operator,
                                    plain=program.learns(graph.operators[source[0]]))
        if shard is None:
            return None
        sizes = np.array([[size_of(one_box) for one_box in groups[program.rank]]], dtype)
        made, mean, variance = shard.normalised(everyone, given[1], given[2], sizes / sizes.sum())
        cls._average(program, operator, mean, variance)
        return made

    @classmethod
    def build_alone(cls, program: Any, operator: Operator, given: List[Any]) -> Any:
        """The symbol of a part with all that its statistics are of, whose averages the program updates as it does those
        of joint statistics; None where it has none, or does not learn.
        """
        if operator.get('use_global_stats', False) or operator.outputs > 1 or not program.learns(operator):
            return None
        attrs = {key: value for key, value in operator.attrs.items() if not key.startswith('__')}
        channels = shape_of(program.shards.shard(operator, program.rank).inputs[3])
        unused = [program.constant(operator, what, np.zeros(channels, program.graph.dtypes[operator.inputs[3]]))
                  for what in ('mean', 'variance')]
        made = mx.sym.BatchNorm(*given[:3], *unused, name=operator.name, **{**attrs, 'output_mean_var': True})
        # It gives the reciprocal of the standard deviation (batch_norm.cc).
        cls._average(program, operator, made[1], 1 / mx.sym.square(made[2]) - float(operator.get('eps', 1e-3)))
        return made[0]

    @staticmethod
    def _average(program: Any, operator: Operator, mean: Any, variance: Any) -> None:
        """Have running averages updated, which MXNet's own does in backward (batch_norm.cc), if that comes to it."""
        for at, value in ((3, mean), (4, variance)) if program.learns(operator) else ():
            program.average(program.graph.operators[operator.inputs[at][0]], value,
                            float(operator.get('momentum', 0.9)))


def with_own_statistics(graph: Graph) -> Graph:
    """Return the same graph, with BatchNorms of which each rank has its own statistics, as it has without a plan."""
    found = copy.copy(graph)
    found.operators = list(graph.operators)
    for operator in graph.operators:
        if operator.op == 'BatchNorm':
            made = Operator(operator.number, operator.op, operator.name, {**operator.attrs, _OWN_STATISTICS: 'True'},
                            operator.inputs)
            made.outputs, found.operators[operator.number] = operator.outputs, made
    return found


def _inner(symbol: Any) -> Any:
    """What compiled operators may read: gradients of a graph's inputs may have to be added."""
    return mx.sym.identity(symbol) if symbol.list_outputs() == symbol.list_inputs() else symbol


class _NormPart:
    """The part of a BatchNorm that a rank has.

    MXNet's BatchNorm with constants as its statistics scales and shifts: it is the one such operator that is fast
    forwards and backwards, and knows oneDNN's layouts.
    """

    def __init__(self, program: Any, operator: Operator, shape: Tuple[int, ...], axis: int, dtype: str):
        self._program, self._one, self._shape, self._axis, self._dtype = program, operator, shape, axis, dtype
        self._epsilon, self._fixes_gamma = float(operator.get('eps', 1e-3)), operator.get('fix_gamma', True) is True
        self._constants = [program.constant(operator, what, np.full(shape[axis], value, dtype))
                           for what, value in (('zeros', 0), ('ones', 1))]

    def _scaled(self, values: Any, scale: Any, shift: Any, name: Any = None) -> Any:
        return mx.sym.BatchNorm(values, scale, shift, *self._constants, eps=0.0, fix_gamma=False, use_global_stats=True,
                                axis=self._axis, name=name)


class _CompiledNorm(_NormPart):
    """With compiled operators for what is neither scaling nor shifting."""

    def __init__(self, program: Any, operator: Operator, data: Any, shape: Tuple[int, ...], axis: int, dtype: str):
        super().__init__(program, operator, shape, axis, dtype)
        self._data = _inner(data)
        #: Mean and variance of each channel, of shape (1, 2, channels).
        self.moments = moments_of(self._data, shape, axis, '%s_moments' % operator.name)

    def normalised(self, everyone: Any, gamma: Any, beta: Any, shares: np.ndarray) -> Tuple[Any, Any, Any]:
        """What it makes, of the moments of all parts, of which each has a share of the elements; and the joint mean and
        variance.
        """
        gamma = mx.sym.ones_like(beta) if self._fixes_gamma else gamma
        scale, shift, mean, variance = joint_of(_inner(everyone), _inner(gamma), _inner(beta), shares[0],
                                                self._shape[self._axis], self._epsilon, '%s_joint' % self._one.name)
        return self._scaled(self._data, scale, shift, self._one.name), mean, variance


class _ComposedNorm(_NormPart):
    """By operators of MXNet's alone, for any type."""

    def __init__(self, program: Any, operator: Operator, data: Any, shape: Tuple[int, ...], axis: int, dtype: str):
        super().__init__(program, operator, shape, axis, dtype)
        self._type = program.graph.dtypes[operator.inputs[0]]
        data = data if self._type != 'float16' else mx.sym.cast(data, dtype)
        mean = _mean(data, shape, axis, dtype)
        self._mean = mx.sym.BlockGrad(mean)
        self._apart = self._scaled(data, mx.sym.ones_like(self._mean), -self._mean)
        variance = _mean(mx.sym.square(self._apart), shape, axis, dtype)
        self.moments = mx.sym.expand_dims(mx.sym.stack(mean, variance, axis=0), axis=0)

    def normalised(self, everyone: Any, gamma: Any, beta: Any, shares: np.ndarray) -> Tuple[Any, Any, Any]:
        """As :meth:`_CompiledNorm.normalised`."""
        weights = self._program.constant(self._one, 'shares', shares)
        both = mx.sym.SliceChannel(everyone, num_outputs=2, axis=1, squeeze_axis=True)
        mean = mx.sym.dot(weights, both[0])
        variance = mx.sym.dot(weights, both[1] + mx.sym.square(mx.sym.broadcast_sub(both[0], mean)))
        mean, variance = (mx.sym.reshape(found, shape=(-1,)) for found in (mean, variance))
        scale = mx.sym.rsqrt(variance + self._epsilon)
        scale = scale if self._fixes_gamma else scale * gamma
        made = self._scaled(self._apart, scale, beta - (mean - self._mean) * scale, self._one.name)
        return made if self._type != 'float16' else mx.sym.cast(made, 'float16'), mean, variance


def _mean(data: Any, shape: Tuple[int, ...], axis: int, dtype: str) -> Any:
    """Of each channel, by products with vectors of ones: MXNet's reductions take ten times as long."""
    before, count, behind = (int(np.prod(some, dtype=np.int64))
                             for some in (shape[:axis], shape[axis], shape[axis + 1:]))
    found = mx.sym.reshape(data, shape=(before * count, behind))
    if behind > 1:
        found = mx.sym.dot(found, mx.sym.ones((behind, 1), dtype=dtype))
    if before > 1 or behind == 1:
        found = mx.sym.dot(mx.sym.ones((1, before), dtype=dtype), mx.sym.reshape(found, shape=(before, count)))
    return mx.sym.reshape(found, shape=(-1,)) / (before * behind)


@register('BatchNorm')
class BatchNorm(Rule):
    """Channels; everything else, too, where statistics are summed (:class:`JointBatchNorm`)."""

    not_replicable = True
    adds_weight_gradients = keeps_blocked = has_statistics = True
    collective = JointBatchNorm

    def averages(self, operator: Operator) -> Sequence[int]:
        """Return the inputs of mean and variance, unless the operator normalises by these."""
        return () if operator.get('use_global_stats', False) else (3, 4)

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(operator))

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        """As :meth:`Rule.shard`."""
        channels = output_shard.box[axis_of(operator, len(output_shard.box), 1)]
        return OperatorShard([output_shard.box] + [(channels,)] * 4, [output_shard.box])
