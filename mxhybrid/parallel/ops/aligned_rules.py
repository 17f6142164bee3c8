"""Rules of operators of which each dimension of an input is one of the output's, or is read whole."""
from typing import Any, List, Optional, Sequence

import mxnet as mx

from ..sharding.box import Box, full
from ..sharding.split import PartPlace
from .graph import Graph, Operator
from .registry import register
from .rule import OperatorPart, Rule, axis_length, axis_of, summed, with_range

#: For each dimension of an input, the dimension of the first output whose range a part reads; None where it reads all.
Alignment = List[Optional[int]]


class Aligned(Rule):
    """An operator that can be cut wherever an input is aligned with its first output."""

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return how each input is aligned with the first output."""
        raise NotImplementedError

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """Return the dimensions that an input is aligned with."""
        cut = {at for alignment in self.aligned(graph, one) for at in alignment}
        return [at in cut for at in range(len(graph.shape(one)))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """Return the part, see :meth:`Rule.part`; other outputs have the first one's dimensions."""
        boxes: List[Box] = [tuple((0, count) if at is None else place.box[at] for at, count in zip(alignment, shape))
                            for alignment, shape in zip(self.aligned(graph, one), graph.inputs(one))]
        return OperatorPart(boxes, [place.box] * one.outputs)


@register('softmin', 'sort', 'argsort', 'topk', default_axis=-1)
@register('_np_cumsum', 'reverse')
class WholeAlong(Aligned):
    """Output and input have the same dimensions, of which some are whole: those along which elements are sorted,
    accumulated, reversed or normalised.
    """

    default_axis: Optional[int] = None

    def whole(self, graph: Graph, one: Operator) -> Sequence[int]:
        """Return the dimensions that stay whole: the axis, all where there is none."""
        count = len(graph.inputs(one)[0])
        axis = one.get('axis', self.default_axis)
        if axis is None or one.attrs.get('axis') == 'None':
            return range(count)
        return [int(at) % count for at in (axis if isinstance(axis, (tuple, list)) else (axis,))]

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        whole = self.whole(graph, one)
        return [[None if at in whole else at for at in range(len(graph.inputs(one)[0]))]]


@register('_contrib_div_sqrt_dim')
class WholeLast(WholeAlong):
    """The last dimension is whole."""

    def whole(self, graph: Graph, one: Operator) -> Sequence[int]:
        """Return them, see :meth:`WholeAlong.whole`."""
        return [len(graph.inputs(one)[0]) - 1]


@register('L2Normalization', 'SoftmaxActivation')
class Normalised(WholeAlong):
    """L2Normalization and SoftmaxActivation, by their mode."""

    def whole(self, graph: Graph, one: Operator) -> Sequence[int]:
        """Return them, see :meth:`WholeAlong.whole`."""
        count = len(graph.inputs(one)[0])
        return {'channel': [1], 'spatial': range(2, count)}.get(one.get('mode', 'instance'), range(1, count))


class Contraction(Aligned):
    """Products that sum over one dimension of their first two inputs; addends are ranges of that."""

    @staticmethod
    def _sums(alignments: Sequence[Alignment]) -> List[int]:
        """The dimension of each of two inputs over which is summed; none where that is not one of each."""
        found = [[at for at, aligned in enumerate(alignment) if aligned is None] for alignment in alignments]
        return [places[0] for places in found] if [len(places) for places in found] == [1, 1] else []

    def addends(self, graph: Graph, one: Operator) -> int:
        """Return the length of what is summed."""
        places = self._sums(self.aligned(graph, one))
        return graph.inputs(one)[0][places[0]] if places else 1

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """Return the part, see :meth:`Rule.part`."""
        found, places = super().part(graph, one, place), self._sums(self.aligned(graph, one))
        if place.addends > 1:
            own = summed(self.addends(graph, one), place)
            found.inputs = [box if box is None else with_range(box, at, own) for box, at in zip(found.inputs, places)]
        return found


@register('batch_dot', '_linalg_gemm2', '_linalg_gemm')
class Product(Contraction):
    """Products of matrices, many at once: batch_dot, gemm2 and gemm; addends are ranges of what they sum over."""

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        count = len(graph.shape(one))
        if int(one.get('axis', -2)) not in (-2, count - 2):
            return [[None] * count for _ in one.inputs]
        others: Alignment = list(range(count - 2))
        left: Alignment = [count - 2, None]
        right: Alignment = [None, count - 1]
        found = [others + (left[::-1] if one.get('transpose_a', False) else left),
                 others + (right[::-1] if one.get('transpose_b', False) else right)]
        return found + [list(range(count))] * (len(one.inputs) - 2)


@register('dot')
class Dot(Contraction):
    """dot: the last dimension of the first input is summed with the first one of the other."""

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment: nothing is cut where an input is a vector."""
        left, right = (len(shape) for shape in graph.inputs(one))
        if min(left, right) < 2:
            return [[None] * left, [None] * right]
        none: Alignment = [None]
        first: Alignment = list(range(left - 1))
        second: Alignment = list(range(left - 1, left + right - 2))
        return [none + first if one.get('transpose_a', False) else first + none,
                second + none if one.get('transpose_b', False) else none + second]


@register('SequenceMask', 'SequenceReverse', 'SequenceLast')
class Sequences(Aligned):
    """SequenceMask, SequenceReverse and SequenceLast: the dimension of times is whole, lengths are one a sample."""

    index_input = 1

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return one more than the longest length."""
        return axis_length(graph, one, 0) + 1

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        count = len(graph.inputs(one)[0])
        times = axis_of(one, count, 0)
        dropped = one.op == 'SequenceLast'  # the times
        data: Alignment = [None if at == times else at - (dropped and at > times) for at in range(count)]
        return [data] + [[data[1 - times]]] * (len(one.inputs) - 1)


@register('CTCLoss')
class TemporalLoss(Aligned):
    """CTCLoss: data of (times, samples, letters), and labels and lengths of samples."""

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        return [[None, 0, None], [0, None]] + [[0]] * (len(one.inputs) - 2)


@register('take')
class Take(Aligned):
    """take: slices of the first input by indices, whose dimensions stand in the place of the axis."""

    index_input = 1

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return the number of slices."""
        return axis_length(graph, one, 0)

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        data, indices = (len(shape) for shape in graph.inputs(one))
        axis = axis_of(one, data, 0)
        return [[None if at == axis else at + (indices - 1) * (at > axis) for at in range(data)],
                [axis + at for at in range(indices)]]


@register('batch_take')
class BatchTake(Aligned):
    """batch_take: an element of each row.  MXNet has no gradient of it, and fails where one is asked for."""

    index_input = 1

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return the length of a row."""
        return axis_length(graph, one, 1)

    def aligned(self, graph: Graph, one: Operator) -> List[Alignment]:
        """Return the alignment, see :meth:`Aligned.aligned`."""
        data, indices = (len(shape) for shape in graph.inputs(one))
        return [[0, None], [0]] if indices == 1 else [[None] * data, [None] * indices]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """Return the part; an exchange behind it would ask for a gradient."""
        found = super().part(graph, one, place)
        found.build = lambda inputs, name, attributes: mx.sym.BlockGrad(mx.sym.batch_take(*inputs), name=name)
        return found


@register('_contrib_arange_like')
class Nothing(Rule):
    """arange_like: what is made depends on the shape of the input, so that nothing of that is read."""

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """Return the part, see :meth:`Rule.part`."""
        shape, dtype = graph.inputs(one)[0], graph.dtypes[one.number, 0]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            given = mx.sym.zeros(shape=shape, dtype=dtype)
            attrs = {key: value for key, value in one.attrs.items() if not key.startswith('__')}
            return mx.sym.contrib.arange_like(given, name=name, **attrs)
        return OperatorPart([None], [full(graph.shape(one))], build=build)
