"""The rules of operators that compute, or draw, each element by itself."""
from typing import Any, Callable, List, Optional

import mxnet as mx

from ..ops.graph import Graph, Operator
from ..ops.registry import register
from ..ops.rule import OperatorShard, Rule, Substituted
from ..sharding.box import Box
from ..sharding.split import OutputShard
from .aligned import Aligned, Alignment

_POINTWISE = '''
    BlockGrad Cast identity cast clip sigmoid softsign softrelu tanh exp log log2 log10 log1p expm1
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
    _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar _lesser_equal_scalar amp_cast
    _contrib_quadratic _contrib_gradientmultiplier _contrib_round_ste _contrib_sign_ste'''.split()


@register('Activation', 'relu', '_copy', keeps_blocked=True)
@register('elemwise_add', keeps_blocked=True, shares_gradient=True)
@register(*_POINTWISE)
class Pointwise(Rule):
    """An operator whose output elements depend on the input elements at the same position; inputs are broadcast as in
    NumPy.
    """

    splits_every_dimension = True
    is_elementwise = True

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        whole = graph.shape(operator)
        boxes = [tuple((0, 1) if count == 1 and others > 1 else chosen for count, others, chosen in
                       zip(shape, whole[len(whole) - len(shape):], output_shard.box[len(whole) - len(shape):]))
                 for shape in graph.inputs(operator)]
        return OperatorShard(boxes, [output_shard.box])


@register('hard_sigmoid')
class HardSigmoid(Substituted, Pointwise):
    """hard_sigmoid: every dimension can be split.  In a hybridized network MXNet 1.9.1 overwrites the gradient of a sum
    with that of hard_sigmoid, if this is not the first term, before the other terms have read it; a split network does
    not.
    """

    def substitute(self, graph: Graph, operator: Operator) -> Optional[Callable[..., Any]]:
        return lambda inputs, name, attributes: mx.sym.hard_sigmoid(*inputs, **attributes) * 1


@register('where')
class Where(Pointwise):
    """where: the condition has the shape of the output, or an element for each index of its first dimension."""

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        count = len(graph.inputs(operator)[0])
        return OperatorShard([output_shard.box[:count], output_shard.box, output_shard.box], [output_shard.box])


@register('amp_multicast')
class TypePromotion(Aligned):
    """amp_multicast, which casts its inputs to one type: every dimension can be split where all have one shape."""

    def aligned(self, graph: Graph, operator: Operator) -> List[Alignment]:
        shapes = graph.inputs(operator)
        have_one_shape = len(set(shapes)) == 1
        return [[at if have_one_shape else None for at in range(len(shape))] for shape in shapes]


@register('LeakyReLU')
class LeakyReLU(Pointwise):
    """LeakyReLU: elementwise, with slopes by channel that may be learned.  In a hybridized network MXNet 1.9.1 may
    compute wrong gradients of learned slopes; a split network computes them by other operators.
    """

    def covers(self, operator: Operator) -> bool:
        """Return whether slopes are not drawn: drawn slopes are an output, too, and no rule covers these."""
        return not operator.draws

    def shard(self, graph: Graph, operator: Operator, output_shard: OutputShard) -> OperatorShard:
        slopes: List[Box] = [(output_shard.box[1],) if shape[0] > 1 else ((0, 1),)
                             for shape in graph.inputs(operator)[1:]]
        return OperatorShard([output_shard.box, *slopes], [output_shard.box], build=self.substitute(graph, operator))

    def substitute(self, graph: Graph, operator: Operator) -> Optional[Callable[..., Any]]:
        entry = operator.number, 0
        shape, is_double = graph.array_shapes[entry], graph.dtypes[entry] == 'float64'

        def build(inputs: List[Any], name: str, attributes: Any) -> Any:
            # MXNet's PReLU may overwrite the gradient of the output with that of the data before it has used the former
            # for the slopes (leaky_relu-inl.h, backward of prelu).
            slope = mx.sym.reshape(inputs[1], shape=(1, -1) + (1,) * (len(shape) - 2))
            return learned_slopes(inputs[0], slope, is_double, name)
        return build if len(operator.inputs) > 1 else None


def learned_slopes(data: Any, slope: Any, is_double: bool, name: str) -> Any:
    """Return PReLU by elementary operators, with the values and gradients of MXNet's (xelu, xelu_grad and prelu_grad of
    mshadow_op.h): where an element is 0, NaN or negative, its gradient is the slope, and the slope's is the element.
    """
    positive = data > 0
    lower = mx.sym.where(positive, mx.sym.zeros_like(data), data)
    product = mx.sym.broadcast_mul(slope, lower)
    if is_double:
        # MXNet multiplies as float32; gradients are not rounded.
        rounded = mx.sym.cast(mx.sym.broadcast_mul(*[mx.sym.cast(factor, 'float32') for factor in (slope, lower)]),
                              'float64')
        exact = mx.sym.BlockGrad(rounded) - (mx.sym.BlockGrad(product) - product)  # keeps -0.0
        product = mx.sym.where(product - product == 0, exact, product)  # false for infinities
    return mx.sym.where(positive, data, product, name=name)


#: Distributions from which an operator draws a number for each element of an array.
_DISTRIBUTIONS = 'exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform'.split()


@register('Dropout', keeps_blocked=True)
@register(*['_random_%s_like' % name for name in _DISTRIBUTIONS])
class RandomLike(Pointwise):
    """An operator that draws for each element: every dimension can be split, but for `axes` of Dropout, along which all
    elements share a draw.  In a second backward pass of one call (``retain_graph=True``), Dropout of MXNet 1.9.1 leaves
    out its mask.
    """

    not_replicable = True

    def splittable(self, graph: Graph, operator: Operator) -> List[bool]:
        count, axes = len(graph.shape(operator)), operator.get('axes', ())
        shared = {int(axis) % count for axis in ((axes,) if isinstance(axes, int) else axes)}
        return [can and at not in shared for at, can in enumerate(super().splittable(graph, operator))]
