"""Which rule is whose: operators that are not here are computed whole."""
from typing import Dict, Optional

from .graph import Operator
from .layer_rules import (
    BatchNorm,
    Convolution,
    Embedding,
    FullyConnected,
    LayerNorm,
    Pooling,
    Recurrent,
    Rule,
    SamplesOnly,
)
from .shape_rules import (
    Concat,
    Drawn,
    LeakyReLU,
    Multicast,
    OneHot,
    Permute,
    Pick,
    Pointwise,
    Reduction,
    Reshape,
    SliceAxis,
    SliceChannel,
    Softmax,
    Stack,
)

_POINTWISE = '''
    Activation BlockGrad Cast _copy identity cast clip
    relu sigmoid hard_sigmoid softsign softrelu tanh exp log log2 log10 log1p expm1 sqrt rsqrt cbrt square abs sign
    reciprocal negative sin cos erf floor ceil round rint trunc fix gamma gammaln smooth_l1 zeros_like ones_like
    elemwise_add elemwise_sub elemwise_mul elemwise_div add_n where _maximum _minimum _power _hypot _mod
    _equal _not_equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or
    broadcast_add broadcast_plus broadcast_sub broadcast_minus broadcast_mul broadcast_div broadcast_mod
    broadcast_power broadcast_maximum broadcast_minimum broadcast_equal broadcast_not_equal broadcast_greater
    broadcast_greater_equal broadcast_lesser broadcast_lesser_equal
    _plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar _mod_scalar _rmod_scalar
    _power_scalar _rpower_scalar _maximum_scalar _minimum_scalar _equal_scalar _not_equal_scalar _greater_scalar
    _greater_equal_scalar _lesser_scalar _lesser_equal_scalar amp_cast'''.split()

#: Of which numbers are drawn that are as many as an array has.
_DISTRIBUTIONS = 'exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform'.split()

_RULES: Dict[str, Rule] = {
    'Convolution': Convolution(), 'FullyConnected': FullyConnected(), 'Pooling': Pooling(), 'BatchNorm': BatchNorm(),
    'Embedding': Embedding(), 'RNN': Recurrent(), 'LayerNorm': LayerNorm(),
    'Deconvolution': SamplesOnly(), 'LRN': SamplesOnly(), 'UpSampling': SamplesOnly(), 'InstanceNorm': SamplesOnly(),
    'GroupNorm': SamplesOnly(), 'Pad': SamplesOnly(),
    'Dropout': Drawn(), 'LeakyReLU': LeakyReLU(),
    'Concat': Concat(), 'concat': Concat(), 'stack': Stack(), 'SliceChannel': SliceChannel(), 'split': SliceChannel(),
    'slice_axis': SliceAxis(), 'SwapAxis': Permute(), 'transpose': Permute(),
    'Reshape': Reshape(), 'reshape': Reshape(), 'Flatten': Reshape(), 'flatten': Reshape(), 'expand_dims': Reshape(),
    'squeeze': Reshape(),
    'sum': Reduction(), 'mean': Reduction(), 'max': Reduction(), 'min': Reduction(), 'prod': Reduction(),
    'amp_multicast': Multicast(), 'softmax': Softmax(), 'log_softmax': Softmax(), 'pick': Pick(), 'one_hot': OneHot(),
    **{name: Pointwise() for name in _POINTWISE},
    **{'_random_%s_like' % name: Drawn() for name in _DISTRIBUTIONS}}


class _DrawnWhole(Rule):
    """What is drawn by one rank for all."""

    alone = True


_WHOLE, _DRAWN_WHOLE = Rule(), _DrawnWhole()


def rule_of(one: Operator) -> Rule:
    """The rule of an operator."""
    if one.op == 'LeakyReLU' and one.draws:
        return _DRAWN_WHOLE  # which gives the slopes, too
    return _RULES.get(one.op, _DRAWN_WHOLE if one.draws else _WHOLE)


def has_rule(one: Operator) -> bool:
    """Whether an operator has a rule of its own."""
    return one.op in _RULES


def is_elementwise(one: Operator) -> bool:
    """Whether each element that an operator makes comes of one of its only input."""
    return isinstance(rule_of(one), Pointwise) and not rule_of(one).alone and len(one.inputs) == 1


def indices(one: Operator) -> Optional[int]:
    """Which input of an operator are indices, through which no gradient flows."""
    return {'Embedding': 0, 'pick': 1, 'one_hot': 0}.get(one.op)
