"""Sums, norms and softmaxes."""
from typing import Any

from .registry import any_shape, entry, simple
from .shaping import axis_of

_SUMS = 'sum mean prod max min nansum nanprod sum_axis max_axis min_axis'.split()


def axes_of(drawing: Any, value: str) -> str:
    """Draw the argument `axis`: one dimension, several, all but one, or no argument."""
    random, count = drawing.random, len(drawing.shape(value))
    kind = random.choice(('one', 'one', 'some', 'rest', 'all'))
    if kind == 'one':
        return ', axis=%d' % axis_of(drawing, value)
    axes = tuple(sorted(random.sample(range(count), random.randint(1, count))))
    rest = ', axis=%d, exclude=True' % axes[0] if count > 1 else ''
    return {'some': ', axis=%s' % (axes,), 'rest': rest, 'all': ''}[kind]


@entry(*_SUMS, chance=0.5)
def _reduce(drawing: Any) -> None:
    op, value = drawing.random.choice(_SUMS), drawing.pick()
    drawing.add(op, 'F.%s({0}%s%s)' % (op, axes_of(drawing, value), ', keepdims=True' * drawing.random.choice((0, 1))),
                value)


@entry('norm', chance=0.7)
def _norm(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick()
    more = random.choice(('', ', axis=%d' % axis_of(drawing, value)))
    more = ', ord=%d%s%s' % (random.choice((1, 2)), more, ', keepdims=True' * random.choice((0, 1)))
    drawing.add('norm', 'F.norm({0} + 2.0%s)' % more, value)


@entry('moments', chance=0.4)
def _moments(drawing: Any) -> None:
    value = drawing.pick()
    # Both: MXNet's compiled operator returns uninitialised memory as the variance where nothing reads the mean.
    drawing.add('moments', 'F.elemwise_add(*F.moments({0}, axes=(%d,)%s))' % (
        axis_of(drawing, value, False), ', keepdims=True' * drawing.random.choice((0, 1))), value)


@entry('softmax', 'log_softmax', 'softmin', 'Softmax', 'SoftmaxActivation', chance=0.6)
def _softmax(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick()
    op = random.choice(('softmax', 'softmax', 'log_softmax', 'log_softmax', 'softmin', 'SoftmaxActivation'))
    if op == 'SoftmaxActivation':
        value = drawing.ranked(2, 3, 4)
        mode = 'channel' if len(drawing.shape(value)) > 2 and random.random() < 0.5 else 'instance'
        drawing.add(op, 'F.SoftmaxActivation({0}, mode=%r)' % mode, value, single=True)
        return
    more = ', temperature=%s' % random.choice((2.0, 0.5)) if random.random() < 0.2 else ''
    drawing.add(op, 'F.%s({0}, axis=%d%s)' % (op, axis_of(drawing, value), more), value)


@entry('softmax with length', chance=0.5)
def _softmax_with_length(drawing: Any) -> None:
    value = drawing.ranked(2, 3)
    shape = drawing.shape(value)
    lengths = drawing.ids(5, lambda other: other == shape[:-1])
    drawing.add('softmax with length', "F.softmax({0}, F.Cast(F.clip({1} + 1, 1, %d), dtype='int32'), use_length=True, "
                'axis=-1)' % shape[-1], value, lengths)


@entry('L2Normalization', chance=0.7)
def _l2(drawing: Any) -> None:
    value = drawing.ranked(2, 3, 4)
    mode = drawing.random.choice(('instance', 'channel', 'spatial')[:len(drawing.shape(value))])
    drawing.add('L2Normalization', 'F.L2Normalization({0} + 2.0, mode=%r)' % mode, value)


@entry('softmax_cross_entropy', chance=0.4)
def _softmax_cross_entropy(drawing: Any) -> None:
    value = drawing.ranked(2)
    count, length = drawing.shape(value)
    drawing.add('softmax_cross_entropy', 'F.softmax_cross_entropy({0}, {1})', value,
                drawing.ids(length, lambda shape: shape == (count,)))


simple('contrib.allclose', "F.contrib.allclose({0}, {0}, rtol=0.0, atol=0.0).reshape((1,))", any_shape, chance=0.1)
simple('all_finite', 'F.all_finite({0})', any_shape, chance=0.1)
