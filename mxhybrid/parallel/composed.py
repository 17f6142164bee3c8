"""Operators that are several where they are split: what they compute over what is split, ranks tell each other."""
from typing import Any, Dict, List, Tuple

import mxnet as mx
import numpy as np

from .boxes import Box, size_of
from .graph import Graph, Operator
from .layout import Layout
from .rule import axis_of
from .split import Split


def _groups(boxes: Dict[int, Box], axes: Tuple[int, ...]) -> Dict[int, List[Box]]:
    """For each rank the boxes, in order, that differ from its own in `axes` only; copies count once."""
    def key(box: Box) -> Box:
        return tuple(one for at, one in enumerate(box) if at not in axes)
    groups: Dict[Box, List[Box]] = {}
    for box in sorted(set(boxes.values())):
        groups.setdefault(key(box), []).append(box)
    return {rank: groups[key(box)] for rank, box in boxes.items()}


class JointBatchNorm:
    """BatchNorm over what several ranks have: each tells its mean and variance, all compute the joint ones of them
    (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
    """

    @staticmethod
    def applies(graph: Graph, one: Operator, split: Split) -> bool:
        """Whether statistics are computed over more than one part."""
        axis = axis_of(one, len(split.degrees), 1)
        parts = 1
        for at, degree in enumerate(split.degrees):
            parts *= degree if at != axis else 1
        return parts > 1 and not one.get('use_global_stats', False)

    @staticmethod
    def build(program: Any, one: Operator, given: List[Any]) -> Any:
        """The symbol of this rank's part; None if it has none."""
        graph: Graph = program.graph
        shape = graph.shape(one)
        axis = axis_of(one, len(shape), 1)
        others = tuple(at for at in range(len(shape)) if at != axis)
        boxes = {rank: place.box for rank, place in program.parts.places[one.number].items()}
        groups = _groups(boxes, others)
        count = max(map(len, groups.values()))
        places = {rank: group.index(boxes[rank]) for rank, group in groups.items()}
        have = Layout((count, 3, shape[axis]), {rank: ((at, at + 1), (0, 3), boxes[rank][axis])
                                                for rank, at in places.items()})
        wanted = {rank: ((0, len(group)), (0, 3), boxes[rank][axis]) for rank, group in groups.items()}
        mine = one_each = None
        dtype = 'float64' if graph.dtypes[one.inputs[0]] == 'float64' else 'float32'
        if program.rank in boxes:
            box = boxes[program.rank]
            one_each = tuple(-1 if at == axis else 1 for at in range(len(shape)))
            joint = sum(map(size_of, groups[program.rank]))
            data = given[0] if graph.dtypes[one.inputs[0]] != 'float16' else mx.sym.cast(given[0], dtype)
            mean = mx.sym.mean(data, axis=others)
            apart = mx.sym.broadcast_sub(data, mx.sym.reshape(mean, shape=one_each))
            variance = mx.sym.mean(mx.sym.square(apart), axis=others)
            weight = mx.sym.ones_like(mean) * (size_of(box) / joint)
            mine = mx.sym.expand_dims(mx.sym.stack(mean, variance, weight, axis=0), axis=0)
        everyone = program.exchange(mine, have, wanted, dtype, one.name)
        if everyone is None:
            return None
        _, gamma, beta, _, _ = given
        mean, variance, weight = (mx.sym.slice_axis(everyone, axis=1, begin=at, end=at + 1) for at in range(3))
        joint_mean = mx.sym.sum(mean * weight, axis=0)
        difference = mx.sym.broadcast_sub(mean, mx.sym.expand_dims(joint_mean, axis=0))
        joint_mean = mx.sym.reshape(joint_mean, shape=(-1,))
        joint_variance = mx.sym.reshape(mx.sym.sum((variance + mx.sym.square(difference)) * weight, axis=0),
                                        shape=(-1,))
        momentum = np.float32(one.get('momentum', 0.9))  # as MXNet has it
        # MXNet's own updates its averages in backward (batch_norm.cc), if that comes to it.
        for at, value in ((3, joint_mean), (4, joint_variance)) if program.learns(one) else ():
            program.keep_statistics(graph.operators[one.inputs[at][0]].name, value, momentum)
        scale = mx.sym.rsqrt(joint_variance + float(one.get('eps', 1e-3)))
        if one.get('fix_gamma', True) is not True:
            scale = scale * gamma
        centred = mx.sym.broadcast_sub(data, mx.sym.reshape(joint_mean, shape=one_each))
        made = mx.sym.broadcast_add(mx.sym.broadcast_mul(centred, mx.sym.reshape(scale, shape=one_each)),
                                    mx.sym.reshape(beta, shape=one_each), name=one.name)
        return made if graph.dtypes[one.inputs[0]] != 'float16' else mx.sym.cast(made, 'float16')


class SplitSoftmax:
    """softmax and log_softmax along an axis that is split: parts tell each other their maxima and sums, in one
    exchange, so that nobody has all of it.
    """

    @staticmethod
    def _axis(one: Operator, dimensions: int) -> int:
        return axis_of(one, dimensions, -1)

    @classmethod
    def applies(cls, graph: Graph, one: Operator, split: Split) -> bool:
        """Whether the axis is split."""
        return split.degrees[cls._axis(one, len(split.degrees))] > 1

    @classmethod
    def build(cls, program: Any, one: Operator, given: List[Any]) -> Any:
        """The symbol of this rank's part; None if it has none."""
        graph: Graph = program.graph
        shape = graph.shape(one)
        axis = cls._axis(one, len(shape))
        boxes = {rank: place.box for rank, place in program.parts.places[one.number].items()}
        groups = _groups(boxes, (axis,))
        count = max(map(len, groups.values()))
        places = {rank: group.index(boxes[rank]) for rank, group in groups.items()}

        def told(rank: int, of: Tuple[int, int]) -> Box:
            return ((0, 2),) + boxes[rank][:axis] + (of,) + boxes[rank][axis + 1:]
        have = Layout((2,) + shape[:axis] + (count,) + shape[axis + 1:],
                      {rank: told(rank, (at, at + 1)) for rank, at in places.items()})
        wanted = {rank: told(rank, (0, len(group))) for rank, group in groups.items()}
        mine = data = None
        if program.rank in boxes:
            data = given[0] / float(one.get('temperature', 1.0)) if one.get('temperature') else given[0]
            largest = mx.sym.BlockGrad(mx.sym.max(data, axis=axis, keepdims=True))
            total = mx.sym.sum(mx.sym.exp(mx.sym.broadcast_sub(data, largest)), axis=axis, keepdims=True)
            mine = mx.sym.stack(largest, total, axis=0)
        everyone = program.exchange(mine, have, wanted, graph.dtypes[one.number, 0], one.name)
        if everyone is None:
            return None
        both = mx.sym.SliceChannel(everyone, num_outputs=2, axis=0, squeeze_axis=True)
        largest = mx.sym.BlockGrad(mx.sym.max(both[0], axis=axis, keepdims=True))
        total = mx.sym.sum(both[1] * mx.sym.exp(mx.sym.broadcast_sub(mx.sym.BlockGrad(both[0]), largest)), axis=axis,
                           keepdims=True)
        lower = mx.sym.broadcast_sub(data, largest)
        if one.op == 'log_softmax':
            return mx.sym.broadcast_sub(lower, mx.sym.log(total), name=one.name)
        return mx.sym.broadcast_div(mx.sym.exp(lower), total, name=one.name)


#: For training and for inference: then BatchNorm needs nobody else.
COMPOSED: Dict[bool, Dict[str, Any]] = {
    True: {'BatchNorm': JointBatchNorm, 'softmax': SplitSoftmax, 'log_softmax': SplitSoftmax},
    False: {'softmax': SplitSoftmax, 'log_softmax': SplitSoftmax}}
