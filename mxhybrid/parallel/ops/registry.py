"""Which rule is whose: operators that are not here are computed whole."""
from typing import Dict, Optional

from .aligned_rules import (
    BatchTake,
    Dot,
    Normalised,
    Nothing,
    Product,
    Sequences,
    Take,
    TemporalLoss,
    WholeAlong,
    WholeLast,
)
from .attention_rules import Scores, Weighted
from .copy_rules import Broadcast, Repeat, Slice, Tile
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
    UpSampling,
)
from .loss_rules import Loss, LossOfElements
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
    Where,
)

_POINTWISE = '''
    Activation BlockGrad Cast _copy identity cast clip
    relu sigmoid hard_sigmoid softsign softrelu tanh exp log log2 log10 log1p expm1 sqrt rsqrt cbrt square abs sign
    reciprocal negative sin cos tan sinh cosh arcsin arccos arctan arcsinh arccosh arctanh degrees radians rcbrt
    logical_not erf erfinv floor ceil round rint trunc fix gamma gammaln smooth_l1 zeros_like ones_like
    elemwise_add elemwise_sub elemwise_mul elemwise_div add_n _maximum _minimum _power _hypot _mod
    _equal _not_equal _greater _greater_equal _lesser _lesser_equal _logical_and _logical_or _logical_xor
    broadcast_add broadcast_plus broadcast_sub broadcast_minus broadcast_mul broadcast_div broadcast_mod
    broadcast_power broadcast_maximum broadcast_minimum broadcast_equal broadcast_not_equal broadcast_greater
    broadcast_greater_equal broadcast_lesser broadcast_lesser_equal broadcast_hypot broadcast_logical_and
    broadcast_logical_or broadcast_logical_xor _hypot_scalar _logical_and_scalar _logical_or_scalar _logical_xor_scalar
    _plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar _mod_scalar _rmod_scalar
    _power_scalar _rpower_scalar _maximum_scalar _minimum_scalar _equal_scalar _not_equal_scalar _greater_scalar
    _greater_equal_scalar _lesser_scalar _lesser_equal_scalar amp_cast'''.split()

#: Of which numbers are drawn that are as many as an array has.
_DISTRIBUTIONS = 'exponential gamma generalized_negative_binomial negative_binomial normal poisson uniform'.split()

_RULES: Dict[str, Rule] = {
    'Convolution': Convolution(), 'FullyConnected': FullyConnected(), 'Pooling': Pooling(), 'BatchNorm': BatchNorm(),
    'Embedding': Embedding(), 'RNN': Recurrent(), 'LayerNorm': LayerNorm(),
    **dict.fromkeys(('Deconvolution', 'LRN', 'InstanceNorm', 'GroupNorm', 'Pad', 'Crop', 'im2col', 'col2im',
                     'depth_to_space', 'space_to_depth', 'GridGenerator', '_contrib_AdaptiveAvgPooling2D',
                     '_contrib_BilinearResize2D'), SamplesOnly(1)),
    **dict.fromkeys(('BilinearSampler', 'SpatialTransformer', 'Correlation'), SamplesOnly()),
    'UpSampling': UpSampling(),
    **dict.fromkeys(('SoftmaxOutput', 'LinearRegressionOutput', 'LogisticRegressionOutput', 'MAERegressionOutput',
                     'SVMOutput'), Loss()),
    'MakeLoss': LossOfElements(), 'make_loss': LossOfElements(),
    'batch_dot': Product(), '_linalg_gemm2': Product(), '_linalg_gemm': Product(), 'dot': Dot(),
    '_contrib_interleaved_matmul_selfatt_qk': Scores(False), '_contrib_interleaved_matmul_encdec_qk': Scores(True),
    '_contrib_interleaved_matmul_selfatt_valatt': Weighted(False),
    '_contrib_interleaved_matmul_encdec_valatt': Weighted(True), '_contrib_div_sqrt_dim': WholeLast(),
    'SequenceMask': Sequences(), 'SequenceReverse': Sequences(), 'SequenceLast': Sequences(), 'CTCLoss': TemporalLoss(),
    '_np_cumsum': WholeAlong(), 'reverse': WholeAlong(), 'softmin': WholeAlong(-1), 'sort': WholeAlong(-1),
    'argsort': WholeAlong(-1), 'topk': WholeAlong(-1), 'L2Normalization': Normalised(),
    'SoftmaxActivation': Normalised(),
    'take': Take(), 'batch_take': BatchTake(), 'slice': Slice(), 'slice_like': Slice(), 'repeat': Repeat(),
    'tile': Tile(), 'broadcast_to': Broadcast(), 'broadcast_axis': Broadcast(), 'broadcast_like': Broadcast(),
    '_contrib_arange_like': Nothing(), 'where': Where(),
    'Dropout': Drawn(), 'LeakyReLU': LeakyReLU(),
    'Concat': Concat(), 'concat': Concat(), 'stack': Stack(), 'SliceChannel': SliceChannel(), 'split': SliceChannel(),
    '_split_v2': SliceChannel(), 'slice_axis': SliceAxis(), 'SwapAxis': Permute(), 'transpose': Permute(),
    'Reshape': Reshape(), 'reshape': Reshape(), 'Flatten': Reshape(), 'flatten': Reshape(), 'expand_dims': Reshape(),
    'squeeze': Reshape(), 'reshape_like': Reshape(),
    **dict.fromkeys(('sum', 'mean', 'max', 'min', 'prod', 'nansum', 'nanprod', 'norm', 'argmax', 'argmin', 'moments'),
                    Reduction()),
    'amp_multicast': Multicast(), 'softmax': Softmax(), 'log_softmax': Softmax(), 'pick': Pick(), 'one_hot': OneHot(),
    **{name: Pointwise() for name in _POINTWISE},
    **{'_random_%s_like' % name: Drawn() for name in _DISTRIBUTIONS}}


#: Operators without a rule whose gradient does not depend on that of their output alone: they make a loss of their own,
#: or add one.  Each copy would give all of it.  A custom operator may be one.
_LOSSES = {'Softmax', 'IdentityAttachKLSparseReg', 'Custom'}


class _OnOneRank(Rule):
    """An operator that one rank computes for all: it draws numbers, or makes a loss."""

    alone = True


_WHOLE, _ON_ONE_RANK = Rule(), _OnOneRank()


def rule_of(one: Operator) -> Rule:
    """The rule of an operator."""
    if one.op == 'LeakyReLU' and one.draws:
        return _ON_ONE_RANK  # which gives the slopes, too
    return _RULES.get(one.op, _ON_ONE_RANK if one.draws or one.op in _LOSSES else _WHOLE)


def is_loss(one: Operator) -> bool:
    """Return whether an operator gives the gradient of a loss, whatever gradient comes back to it."""
    return one.op in _LOSSES or isinstance(rule_of(one), (Loss, LossOfElements))


def has_rule(one: Operator) -> bool:
    """Whether an operator has a rule of its own."""
    return one.op in _RULES


def is_elementwise(one: Operator) -> bool:
    """Whether each element that an operator makes comes of one of its only input."""
    return isinstance(rule_of(one), Pointwise) and not rule_of(one).alone and len(one.inputs) == 1


def moves_dimensions(one: Operator) -> bool:
    """Whether dimensions of an operator's output are others than those of its input at the same places."""
    return isinstance(rule_of(one), (Permute, Reshape))


#: Inputs that are indices, lengths or labels of losses, by the name of the operator.
_INDICES = {'Embedding': 0, 'pick': 1, 'one_hot': 0, 'take': 1, 'batch_take': 1, 'softmax': 1, 'log_softmax': 1,
            'SequenceMask': 1, 'SequenceReverse': 1, 'SequenceLast': 1, 'SoftmaxOutput': 1, 'SVMOutput': 1,
            'LinearRegressionOutput': 1, 'LogisticRegressionOutput': 1, 'MAERegressionOutput': 1}


def indices(one: Operator) -> Optional[int]:
    """Which input of an operator are indices, lengths or labels, through which no gradient flows."""
    found = _INDICES.get(one.op)
    return found if found is not None and found < len(one.inputs) else None
