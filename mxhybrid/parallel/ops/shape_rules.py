"""Rules of operators that move values about: concatenation, slices, transposition, other shapes, reductions."""
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx

from ..sharding.box import Box, full, shape_of, size_of
from ..sharding.sample_axis import SampleAxis, after_reshape, after_slice
from ..sharding.split import PartPlace
from .collective_ops import SplitSoftmax
from .graph import Graph, Operator
from .layer_rules import inside, shifted_indices
from .registry import register
from .rule import OperatorPart, Rule, axis_length, axis_of, shape_only, summed, with_range

#: Where each input, or output, has the samples.
SampleAxes = Sequence[Optional[SampleAxis]]


_POINTWISE = '''
    BlockGrad Cast identity cast clip sigmoid hard_sigmoid softsign softrelu tanh exp log log2 log10 log1p expm1
    sqrt rsqrt cbrt square abs sign reciprocal negative sin cos tan sinh cosh arcsin arccos arctan arcsinh
    arccosh arctanh degrees radians rcbrt logical_not erf erfinv floor ceil round rint trunc fix gamma gammaln
    smooth_l1 zeros_like ones_like elemwise_sub elemwise_mul elemwise_div add_n _maximum _minimum _power _hypot
    _mod _equal _not_equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor
    broadcast_add broadcast_plus broadcast_sub broadcast_minus broadcast_mul broadcast_div broadcast_mod
    broadcast_power broadcast_maximum broadcast_minimum broadcast_equal broadcast_not_equal broadcast_greater
    broadcast_greater_equal broadcast_lesser broadcast_lesser_equal broadcast_hypot broadcast_logical_and
    broadcast_logical_or broadcast_logical_xor _hypot_scalar _logical_and_scalar _logical_or_scalar
    _logical_xor_scalar _plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar
    _mod_scalar _rmod_scalar _power_scalar _rpower_scalar _maximum_scalar _minimum_scalar _equal_scalar
    _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar amp_cast'''.split()

#: Distributions of which as many numbers are drawn as an array has.
_DISTRIBUTIONS = 'exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform'.split()


@register('Activation', 'relu', '_copy', keeps_blocked=True)
@register('elemwise_add', keeps_blocked=True, shares_gradient=True)
@register(*_POINTWISE)
class Pointwise(Rule):
    """Each element of the output comes of those at its place; dimensions of 1 are repeated, and shapes with fewer
    dimensions begin with such.
    """

    is_elementwise = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        whole = graph.shape(one)
        boxes = [tuple((0, 1) if count == 1 and others > 1 else chosen for count, others, chosen in
                       zip(shape, whole[len(whole) - len(shape):], place.box[len(whole) - len(shape):]))
                 for shape in graph.inputs(one)]
        return OperatorPart(boxes, [place.box])


@register('where')
class Where(Pointwise):
    """The same, by conditions of each element or of each of the first dimension."""

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        count = len(graph.inputs(one)[0])
        return OperatorPart([place.box[:count], place.box, place.box], [place.box])


@register('Dropout', keeps_blocked=True)
@register(*['_random_%s_like' % name for name in _DISTRIBUTIONS])
class Drawn(Pointwise):
    """The same for what is drawn, but for dimensions along which all elements share a draw, `axes` of Dropout."""

    alone = True

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """As said."""
        count, axes = len(graph.shape(one)), one.get('axes', ())
        shared = {int(axis) % count for axis in ((axes,) if isinstance(axes, int) else axes)}
        return [can and at not in shared for at, can in enumerate(super().splittable(graph, one))]


@register('amp_multicast')
class Multicast(Rule):
    """Several inputs, brought to one type: where they have one shape, too, all dimensions."""

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """As said."""
        return [len(set(graph.inputs(one))) == 1] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        if len(set(graph.inputs(one))) > 1:
            return super().part(graph, one, place)
        return OperatorPart([place.box] * len(one.inputs), [place.box] * one.outputs)


@register('LeakyReLU')
class LeakyReLU(Pointwise):
    """Pointwise, with slopes by channel that may be learned."""

    def covers(self, one: Operator) -> bool:
        """Refuse slopes that are drawn, which the operator gives as an output, too."""
        return not one.draws

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        slopes: List[Box] = [(place.box[1],) if shape[0] > 1 else ((0, 1),) for shape in graph.inputs(one)[1:]]

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            # MXNet's own may write the gradient of the data over that of the output before it has used that for the
            # slopes (leaky_relu-inl.h, backward of prelu).
            slope = mx.sym.reshape(inputs[1], shape=(1, -1) + (1,) * (len(place.box) - 2))
            return learned_slopes(inputs[0], slope, graph.dtypes[one.number, 0] == 'float64', name)
        return OperatorPart([place.box, *slopes], [place.box], build=build if slopes else None)


def learned_slopes(data: Any, slope: Any, is_double: bool, name: str) -> Any:
    """Return PReLU of elementary operators, with the values and gradients of MXNet's (xelu, xelu_grad and prelu_grad of
    mshadow_op.h): of an element that is 0, NaN or negative the gradient is the slope, which gets the element.
    """
    positive = data > 0
    lower = mx.sym.where(positive, mx.sym.zeros_like(data), data)
    product = mx.sym.broadcast_mul(slope, lower)
    if is_double:
        # MXNet multiplies as float32; gradients are not rounded.
        rounded = mx.sym.cast(mx.sym.broadcast_mul(*[mx.sym.cast(factor, 'float32') for factor in (slope, lower)]),
                              'float64')
        exact = mx.sym.BlockGrad(rounded) - (mx.sym.BlockGrad(product) - product)  # also of -0.0
        product = mx.sym.where(product - product == 0, exact, product)  # which infinities are not
    return mx.sym.where(positive, data, product, name=name)


@register('Concat', keeps_blocked=True)
@register('concat')
class Concat(Rule):
    """All dimensions; a part leaves out inputs of which it has nothing."""

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        dimension = axis_of(one, len(place.box), 1, 'dim')
        boxes: List[Optional[Box]] = []
        at, (low, high) = 0, place.box[dimension]
        for shape in graph.inputs(one):
            start, end = max(low - at, 0), min(high - at, shape[dimension])
            boxes.append(with_range(place.box, dimension, (start, end)) if start < end else None)
            at += shape[dimension]
        return OperatorPart(boxes, [place.box], {'num_args': sum(box is not None for box in boxes)})

    def samples(self, graph: Graph, one: Operator, known: SampleAxes) -> List[Optional[SampleAxis]]:
        """Inputs that lie behind each other along their samples are rounds of them."""
        first, dimension = known[0], axis_of(one, len(graph.shape(one)), 1, 'dim')
        if not any(axis is not None and axis.axis == dimension for axis in known):
            return super().samples(graph, one, known)
        if first is None or any(axis is None or axis[:2] != first[:2] for axis in known):
            return [None]
        return [first._replace(rounds=sum(axis.rounds for axis in known if axis is not None))]


@register('stack')
class Stack(Rule):
    """All dimensions but the new one."""

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """As said."""
        shape = graph.shape(one)
        return [place != axis_of(one, len(shape), 0) for place in range(len(shape))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        axis = axis_of(one, len(place.box), 0)
        box = place.box[:axis] + place.box[axis + 1:]
        return OperatorPart([box] * len(one.inputs), [place.box])


@register('SliceChannel', 'split', '_split_v2')
class SliceChannel(Rule):
    """All dimensions but the one that is sliced; slices may have different lengths, as those of ``split_v2``."""

    def _axis(self, graph: Graph, one: Operator) -> int:
        return axis_of(one, len(graph.inputs(one)[0]), 0 if one.op == '_split_v2' else 1)

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """As said."""
        axis, squeezes = self._axis(graph, one), bool(one.get('squeeze_axis', False))
        return [squeezes or place != axis for place in range(len(graph.shape(one)))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        axis, count = self._axis(graph, one), graph.inputs(one)[0]
        if one.get('squeeze_axis', False):
            box = place.box[:axis] + ((0, count[axis]),) + place.box[axis:]
            return OperatorPart([box], [place.box] * one.outputs)
        return OperatorPart([with_range(place.box, axis, (0, count[axis]))],
                            [with_range(place.box, axis, (0, graph.shape(one, output)[axis]))
                             for output in range(one.outputs)])

    def samples(self, graph: Graph, one: Operator, known: SampleAxes) -> List[Optional[SampleAxis]]:
        """Slices along the samples have whole rounds of them, or are of some of them only."""
        axis, count, whole = self._axis(graph, one), graph.inputs(one)[0], known[0]
        if whole is None or whole.axis != axis or one.get('squeeze_axis', False):
            return super().samples(graph, one, known)
        found, low = [], 0
        for output in range(one.outputs):
            high = low + graph.shape(one, output)[axis]
            found.append(after_slice(whole, axis, count[axis], low, high))
            low = high
        return found


@register('slice_axis')
class SliceAxis(Rule):
    """All dimensions; a part reads what it makes."""

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        axis, begin = self._where(graph, one)
        low, high = place.box[axis]
        return OperatorPart([with_range(place.box, axis, (low + begin, high + begin))], [place.box],
                    {'begin': 0, 'end': high - low})

    @staticmethod
    def _where(graph: Graph, one: Operator) -> Tuple[int, int]:
        """Return the dimension that is cut, and its first coordinate that is kept."""
        shape = graph.inputs(one)[0]
        axis = axis_of(one, len(shape), 0)
        return axis, int(one.get('begin', 0)) % shape[axis] if shape[axis] else 0

    def samples(self, graph: Graph, one: Operator, known: SampleAxes) -> List[Optional[SampleAxis]]:
        """A slice along the samples has whole rounds of them, or is of some of them only."""
        axis, begin = self._where(graph, one)
        return [after_slice(known[0], axis, graph.inputs(one)[0][axis], begin, begin + graph.shape(one)[axis])]


@register('SwapAxis', 'transpose')
class Permute(Rule):
    """SwapAxis and transpose: dimensions in another order."""

    moves_dimensions = True

    def _order(self, graph: Graph, one: Operator) -> List[int]:
        count = len(graph.shape(one))
        if one.op == 'SwapAxis':
            order = list(range(count))
            first, second = int(one.get('dim1', 0)) % count, int(one.get('dim2', 0)) % count
            order[first], order[second] = second, first
            return order
        axes = one.get('axes', ())
        return [int(axis) % count for axis in axes] if axes else list(range(count))[::-1]

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All."""
        return [True] * len(graph.shape(one))

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        box: List[Any] = [None] * len(place.box)
        for to, source in enumerate(self._order(graph, one)):
            box[source] = place.box[to]
        return OperatorPart([tuple(box)], [place.box])


def shape_groups(before: Sequence[int], after: Sequence[int]) -> List[Tuple[range, range]]:
    """Neighbouring dimensions of two shapes that have the same elements, in the same order: where nothing crosses."""
    found, first, second = [], 0, 0
    while first < len(before) or second < len(after):
        start, begin = first, second
        left = right = 1
        if first < len(before):
            left, first = before[first], first + 1
        if second < len(after):
            right, second = after[second], second + 1
        while left != right:
            if left < right:
                left, first = left * before[first], first + 1
            else:
                right, second = right * after[second], second + 1
        found.append((range(start, first), range(begin, second)))
    return found


@register('Reshape', 'reshape', 'Flatten', 'flatten', 'expand_dims', 'squeeze', 'reshape_like')
class Reshape(Rule):
    """Another shape of the same elements, in the same order: cut where whole rows of both shapes are cut."""

    moves_dimensions = True

    def _groups(self, graph: Graph, one: Operator) -> Dict[int, Tuple[range, range]]:
        """Those whose first dimension can be cut, by that dimension of the output."""
        before, after = graph.inputs(one)[0], graph.shape(one)
        found = {}
        for old, new in shape_groups(before, after):
            # Dimensions of 1 in front do not matter.
            old = range(next((at for at in old if before[at] > 1), old.start), old.stop)
            new = range(next((at for at in new if after[at] > 1), new.start), new.stop)
            if len(old) and len(new):
                found[new.start] = (old, new)
        return found

    def grains(self, graph: Graph, one: Operator) -> List[int]:
        """What the cut dimension of the input holds of the output's."""
        before, after = graph.inputs(one)[0], graph.shape(one)
        grains = [1] * len(after)
        for at, (old, new) in self._groups(graph, one).items():
            inner_old = _product(before, old) // before[old.start]
            inner_new = _product(after, new) // after[at]
            if inner_old % inner_new == 0:
                grains[at] = inner_old // inner_new
            elif inner_new % inner_old:
                grains[at] = after[at]
        return grains

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """Those that lead a group."""
        groups = self._groups(graph, one)
        return [at in groups for at in range(len(graph.shape(one)))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        before, after = graph.inputs(one)[0], graph.shape(one)
        box = list(full(before))
        for at, (old, new) in self._groups(graph, one).items():
            inner_old = _product(before, old) // before[old.start]
            inner_new = _product(after, new) // after[at]
            low, high = place.box[at]
            box[old.start] = (low * inner_new // inner_old, high * inner_new // inner_old)
        shape = shape_of(place.box)

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            return mx.sym.reshape(inputs[0], shape=shape, name=name)
        boxes = [tuple(box)] + shape_only(graph, one)
        assert size_of(tuple(box)) == size_of(place.box), (before, after, place.box)
        return OperatorPart(boxes, [place.box], build=build)

    def samples(self, graph: Graph, one: Operator, known: SampleAxes) -> List[Optional[SampleAxis]]:
        """Samples are known where their elements still lie in whole coordinates of a dimension."""
        return [after_reshape(known[0], graph.inputs(one)[0], graph.shape(one))]


def _product(shape: Sequence[int], dimensions: range) -> int:
    product = 1
    for at in dimensions:
        product *= shape[at]
    return product


@register('sum', 'mean', 'max', 'min', 'prod', 'nansum', 'nanprod', 'norm', 'argmax', 'argmin', 'moments')
class Reduction(Rule):
    """Whatever is not reduced."""

    def _reduced(self, graph: Graph, one: Operator) -> List[bool]:
        count = len(graph.inputs(one)[0])
        axes = one.get('axes' if one.op == 'moments' else 'axis', ())
        axes = [axes] if isinstance(axes, int) else list(axes)
        chosen = {int(axis) % count for axis in axes} or set(range(count))
        if one.get('exclude', False) and axes:
            chosen = set(range(count)) - chosen
        return [at in chosen for at in range(count)]

    def _kept(self, graph: Graph, one: Operator) -> List[Optional[int]]:
        """The dimension of the input for each of the output; None for one that was reduced to 1."""
        reduced = self._reduced(graph, one)
        if one.get('keepdims', False):
            return [None if gone else at for at, gone in enumerate(reduced)]
        found: List[Optional[int]] = [at for at, gone in enumerate(reduced) if not gone]
        return found or [None]

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """Those that are kept."""
        return [source is not None for source in self._kept(graph, one)]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        box = list(full(graph.inputs(one)[0]))
        for to, source in enumerate(self._kept(graph, one)):
            if source is not None:
                box[source] = place.box[to]
        return OperatorPart([tuple(box)], [place.box] * one.outputs)


@register('softmax', 'log_softmax')
class Softmax(Rule):
    """All dimensions; along the axis, parts tell each other what they sum to (:mod:`.collective_ops`).  With
    lengths, which count from the beginning of the axis, that stays whole.
    """

    index_input = 1
    collective = SplitSoftmax

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return one more than the longest length."""
        return axis_length(graph, one, -1) + 1

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All, or all but the axis."""
        shape = graph.shape(one)
        return [len(one.inputs) == 1 or at != axis_of(one, len(shape), -1) for at in range(len(shape))]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        axis = axis_of(one, len(place.box), -1)
        lengths: Box = place.box[:axis] + place.box[axis + 1:]
        return OperatorPart([place.box] + [lengths] * (len(one.inputs) - 1), [place.box])


@register('pick')
class Pick(Rule):
    """All dimensions that are left; addends are ranges of what is picked from."""

    index_input = 1
    sums_last_dimension = True

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return the number of elements that one is picked from."""
        return axis_length(graph, one, -1)

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All but the axis."""
        shape = graph.inputs(one)[0]
        axis = axis_of(one, len(shape), -1)
        return [not one.get('keepdims', False) or at != axis for at in range(len(graph.shape(one)))]

    def addends(self, graph: Graph, one: Operator) -> int:
        """What is picked from; MXNet clips indices beyond it, unless it wraps them."""
        shape = graph.inputs(one)[0]
        return 1 if one.get('mode', 'clip') != 'clip' else shape[axis_of(one, len(shape), -1)]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        data, index = graph.inputs(one)
        axis = axis_of(one, len(data), -1)
        keeps = bool(one.get('keepdims', False))
        others = place.box[:axis] + place.box[axis + 1:] if keeps else place.box
        own = summed(data[axis], place)
        boxes: List[Optional[Box]] = [others[:axis] + (own,) + others[axis:],
                                      others if len(index) < len(data) else others[:axis] + ((0, 1),) + others[axis:]]
        if place.addends == 1:
            return OperatorPart(boxes, [place.box])

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            shifted = shifted_indices(inputs[1], graph.dtypes[one.inputs[1]], own)
            found = mx.sym.pick(inputs[0], mx.sym.clip(shifted, 0, own[1] - own[0] - 1), name=name, **attributes)
            # Of the one or the other shape, whatever was given.
            mask = mx.sym.reshape_like(inside(shifted, own, data[axis]), found)
            return mx.sym.where(mask, found, mx.sym.zeros_like(found))  # a product with infinity would not be 0
        return OperatorPart(boxes, [place.box], build=build)


@register('one_hot')
class OneHot(Rule):
    """Indices in every dimension."""

    index_input = 0

    def index_limit(self, graph: Graph, one: Operator) -> Optional[int]:
        """Return the number of classes."""
        return int(one.get('depth'))

    def splittable(self, graph: Graph, one: Operator) -> List[bool]:
        """All but the new one."""
        count = len(graph.shape(one))
        return [at < count - 1 for at in range(count)]

    def part(self, graph: Graph, one: Operator, place: PartPlace) -> OperatorPart:
        """As :meth:`Rule.part`."""
        return OperatorPart([place.box[:-1]], [place.box])
