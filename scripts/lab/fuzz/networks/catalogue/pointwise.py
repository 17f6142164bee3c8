"""Elementwise operators, and operators that draw numbers elementwise."""
from typing import Any

from .registry import any_shape, entry, simple
from .shaping import listed

#: Operators of one input, by the values that it may have.
ANY = ('relu sigmoid hard_sigmoid softsign tanh exp expm1 square abs sign negative sin cos sinh cosh arctan arcsinh '
       'degrees radians erf floor ceil round rint trunc fix cbrt identity logical_not zeros_like ones_like smooth_l1 '
       'BlockGrad stop_gradient contrib.quadratic contrib.round_ste contrib.sign_ste contrib.gradientmultiplier '
       'contrib.div_sqrt_dim').split()
POSITIVE = 'log log2 log10 log1p sqrt rsqrt reciprocal gamma gammaln rcbrt'.split()
SMALL = 'arcsin arccos arctanh tan erfinv'.split()

for _name in ANY:
    simple(_name, 'F.%s({0})' % _name, any_shape)
for _name in POSITIVE:
    simple(_name, 'F.%s(F.abs({0}) + 0.5)' % _name, any_shape)
for _name in SMALL:
    simple(_name, 'F.%s(F.clip({0}, -0.75, 0.75))' % _name, any_shape)
simple('arccosh', 'F.arccosh(F.abs({0}) + 1.5)', any_shape)
simple('contrib.quadratic', 'F.contrib.quadratic({0}, a=0.5, b=-1.0, c=0.25)', any_shape)
simple('contrib.gradientmultiplier', 'F.contrib.gradientmultiplier({0}, scalar=-0.5)', any_shape)


@entry('smooth_l1', 'clip', 'relu', 'Activation', 'LeakyReLU', chance=1.0)
def _activation(drawing: Any) -> None:
    random, value, more = drawing.random, drawing.pick(), ''
    kind = random.choice(('smooth_l1', 'clip', 'relu', 'Activation', 'Activation', 'LeakyReLU'))
    if kind == 'Activation':
        more = ', act_type=%r' % random.choice(('relu', 'sigmoid', 'tanh', 'softrelu', 'softsign'))
    elif kind == 'LeakyReLU':
        more = ', act_type=%r' % random.choice(('leaky', 'elu', 'selu', 'gelu'))
        more += ', slope=%s' % random.choice((0.25, 0.5))
    elif kind == 'clip':
        more = ', %s, %s' % random.choice(((-0.5, 0.5), (0.0, 1.0), (-1.0, 0.25)))
    elif kind == 'smooth_l1':
        more = ', scalar=%s' % random.choice((1.0, 2.0))
    drawing.add(kind, 'F.%s({0}%s)' % (kind, more), value)


@entry('LeakyReLU prelu', chance=1.5)
def _learned_slopes(drawing: Any) -> None:
    value = drawing.pick(lambda shape: len(shape) > 1)
    slopes = drawing.random.choice((drawing.shape(value)[1], drawing.shape(value)[1], 1))
    drawing.add('LeakyReLU prelu', "F.LeakyReLU({0}, {1}, act_type='prelu')", value,
                drawing.param((slopes,)), rounds='float32')


SAME = 'elemwise_add elemwise_sub elemwise_mul'.split()
BROADCAST = ('add plus sub minus mul maximum minimum equal not_equal greater greater_equal lesser lesser_equal '
             'logical_and logical_or logical_xor hypot').split()


@entry(*SAME, chance=0.5)
def _elementwise(drawing: Any) -> None:
    value, op = drawing.pick(), drawing.random.choice(SAME)
    drawing.add(op, 'F.%s({0}, {1})' % op, value, drawing.same_as(value))


simple('elemwise_div', 'F.elemwise_div({0}, F.abs({1}) + 1.0)', any_shape, None)


def broadcastable(drawing: Any, value: str) -> str:
    """Draw a value, or a parameter, that can be repeated to the shape of another value, or the other way round."""
    shape = drawing.shape(value)
    fits = [other for other in drawing.known(lambda other: len(other) == len(shape) and all(
        1 in lengths or lengths[0] == lengths[1] for lengths in zip(other, shape))) if other != value]
    if fits and drawing.random.random() < 0.6:
        return drawing.random.choice(fits)
    return drawing.param([length if drawing.random.random() < 0.6 else 1 for length in shape])


@entry(*('broadcast_' + name for name in BROADCAST), chance=0.4)
def _broadcast(drawing: Any) -> None:
    value, op = drawing.pick(), 'broadcast_' + drawing.random.choice(BROADCAST)
    pair, is_hypot = [value, broadcastable(drawing, value)], op == 'broadcast_hypot'
    if drawing.random.random() < 0.3 and not is_hypot:
        pair.reverse()
    drawing.add(op, 'F.%s({0}%s, {1})' % (op, ' + 3.0' * is_hypot), *pair)


@entry('broadcast_div', 'broadcast_power', 'broadcast_mod', chance=0.4)
def _broadcast_positive(drawing: Any) -> None:
    value, op = drawing.pick(), drawing.random.choice(('broadcast_div', 'broadcast_power', 'broadcast_mod'))
    first = 'F.abs({0}) + 0.5' if op == 'broadcast_power' else '{0}'
    drawing.add(op, 'F.%s(%s, F.abs({1}) + 0.75)' % (op, first), value, broadcastable(drawing, value))


@entry('maximum', 'minimum', chance=0.4)
def _extremes(drawing: Any) -> None:
    value, op = drawing.pick(), drawing.random.choice(('maximum', 'minimum'))
    other = drawing.random.choice(('{1}', '0.0', '0.25'))
    reads = [value, drawing.same_as(value)] if other == '{1}' else [value]
    drawing.add(op, 'F.%s({0}, %s)' % (op, other), *reads)


@entry('power', chance=0.3)
def _power(drawing: Any) -> None:
    drawing.add('power', 'F.power(F.abs({0}) + 0.5, %s)' % drawing.random.choice((2.0, -1.0, 0.5)), drawing.pick())


SCALARS = ('{0} + 2.0', '{0} - 0.5', '1.0 - {0}', '{0} * 1.5', '{0} / 4.0', '2.0 / (F.abs({0}) + 1.0)', '{0} % 0.75',
           '2.0 % (F.abs({0}) + 1.0)', '{0} ** 2.0', '2.0 ** {0}', '{0} == 0.5', '{0} != 0.0', '{0} > 0.0',
           '{0} >= 0.0', '{0} < 0.25', '{0} <= 0.25', '-{0}')


@entry('scalars', chance=2.0)
def _scalar(drawing: Any) -> None:
    drawing.add('scalars', drawing.random.choice(SCALARS), drawing.pick())


simple('operators', '{0} %s {1}', any_shape, None, options=('+', '-', '*', '==', '!=', '>', '>=', '<', '<='),
       chance=1.0)


@entry('add_n', 'ElementWiseSum', chance=0.7)
def _add_n(drawing: Any) -> None:
    value = drawing.pick()
    others = [drawing.same_as(value) for _ in range(drawing.random.choice((1, 2, 3, 9)))]
    op = drawing.random.choice(('add_n', 'ElementWiseSum'))
    drawing.add(op, 'F.%s(%s)' % (op, listed([value, *others])), value, *others)


@entry('where', chance=1.0)
def _where(drawing: Any) -> None:
    value = drawing.pick()
    other = drawing.same_as(value)
    is_learned = drawing.random.random() < 0.3
    condition = drawing.param(drawing.shape(value)[:1]) if is_learned else drawing.same_as(value)
    drawing.add('where', 'F.where({2} > 0.0, {0}, {1})', value, other, condition)


@entry('Cast', 'cast', 'amp_cast', chance=0.4)
def _cast(drawing: Any) -> None:
    op = drawing.random.choice(('Cast', 'cast', 'amp_cast'))
    kind = drawing.random.choice(('float32', 'float16', 'int32', 'int8'))
    if op == 'amp_cast':  # which MXNet does by oneDNN
        drawing.add(op, "F.amp_cast(F.round({0} * 4.0), dtype='float32')", drawing.pick(), single=True)
    else:
        drawing.add(op, "F.Cast(F.%s(F.round({0} * 4.0), dtype='%s'), dtype='float64')" % (op, kind), drawing.pick())


simple('amp_multicast', 'F.amp_multicast({0}, {1}, num_outputs=2)[%d]', any_shape, None, options=(0, 1), chance=0.4,
       single=True)


# -- operators that draw numbers ---------------------------------------------------------------------------------------

#: Numbers of which nothing but the shape is known: one process takes those of the job.
_NUMBERS = {'drawn': 'numbers', 'whole': '{given} + F.BlockGrad({0}) * 0.0'}


@entry('Dropout', chance=3.0)
def _dropout(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick(lambda shape: len(shape) > 1)
    count = len(drawing.shape(value))
    axes = sorted(random.sample(range(count), random.randint(1, count - 1))) if random.random() < 0.5 else []
    p = random.choice((0.25, 0.5))
    more = (', axes=%s' % (tuple(axes),) if axes else '') + (", mode='always'" if random.random() < 0.2 else '')
    kept = 'F.clip({0}, -8.0, 8.0) + 16.0'  # which is never 0 by itself
    drawing.add('Dropout', 'F.Dropout(%s, p=%s%s)' % (kept, p, more), value, drawn={'p': p, 'axes': axes},
                whole='(%s) * ({given} / F.BlockGrad(%s))' % (kept, kept))


simple('Dropout 0', 'F.Dropout({0}, p=0.0)', any_shape, chance=1.0)


@entry('random.normal_like', 'random.uniform_like', 'random.exponential_like', 'random.gamma_like',
       'random.poisson_like', 'random.negative_binomial_like', 'random.generalized_negative_binomial_like', chance=0.3)
def _drawn_like(drawing: Any) -> None:
    op = 'random.%s_like' % drawing.random.choice(
        ('normal', 'uniform', 'exponential', 'gamma', 'poisson', 'negative_binomial', 'generalized_negative_binomial'))
    drawing.add(op, 'F.%s({0})' % op, drawing.pick(), **_NUMBERS)


simple('LeakyReLU rrelu', "F.LeakyReLU(F.BlockGrad({0}), act_type='rrelu', lower_bound=0.125, upper_bound=0.25)[0]",
       any_shape, chance=0.3, **_NUMBERS)
simple('shuffle', 'F.shuffle(F.BlockGrad({0}))', any_shape, chance=0.3, **_NUMBERS)


@entry('sample_normal', 'sample_uniform', 'sample_exponential', 'sample_gamma', 'sample_poisson',
       'sample_negative_binomial', 'sample_generalized_negative_binomial', chance=0.2)
def _sampled(drawing: Any) -> None:
    op = 'sample_' + drawing.random.choice(('normal', 'uniform', 'exponential', 'gamma', 'poisson',
                                            'generalized_negative_binomial'))
    value = drawing.ranked(1, 2)
    second = '' if op in ('sample_exponential', 'sample_poisson') else ', F.BlockGrad(F.abs({0}) + 1.0)'
    first = 'F.BlockGrad({0})' if op in ('sample_normal', 'sample_uniform') else 'F.BlockGrad(F.abs({0}) + 0.5)'
    shape = drawing.random.choice(('', ', shape=3'))
    after = 'F.expand_dims({0}, axis=-1)' if shape else '{0}'
    drawing.add(op, "F.%s(%s%s%s, dtype='float64')" % (op, first, second, shape), value, drawn='numbers',
                whole='F.broadcast_add({given}, F.BlockGrad(%s) * 0.0)' % after)


@entry('random_pdf_normal', 'random_pdf_uniform', 'random_pdf_exponential', 'random_pdf_gamma', 'random_pdf_poisson',
       chance=0.2)
def _density(drawing: Any) -> None:
    """Draw densities of several numbers for each pair of parameters."""
    op, value = 'random_pdf_' + drawing.random.choice(('normal', 'uniform', 'exponential', 'gamma', 'poisson')), \
        drawing.ranked(2, 3)
    shape = drawing.shape(value)
    first = drawing.pick(lambda other: other == shape[:-1])
    numbers = 'F.abs({0}) + 0.25' if op != 'random_pdf_poisson' else 'F.BlockGrad(F.floor(F.abs({0}) * 3.0))'
    second = {'normal': ', F.abs({1}) + 1.0', 'uniform': ', F.abs({1}) + 64.0', 'gamma': ', F.abs({1}) + 0.5'}.get(
        op.split('_')[-1], '')
    one = '-F.abs({1})' if op == 'random_pdf_uniform' else 'F.abs({1}) + 0.5'
    drawing.add(op, 'F.%s(%s, %s%s)' % (op, numbers, one, second), value, first)


@entry('random_pdf_dirichlet', chance=0.1)
def _dirichlet(drawing: Any) -> None:
    value = drawing.ranked(2, 3)
    shape = drawing.shape(value)
    first = drawing.pick(lambda other: other == shape[:-2] + shape[-1:])
    drawing.add('random_pdf_dirichlet', 'F.random_pdf_dirichlet(F.softmax({0}, axis=-1), F.abs({1}) + 0.5)', value,
                first)
