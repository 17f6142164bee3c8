"""Products of matrices, linalg and attention."""
from typing import Any

from .registry import entry, ranks, simple


def square(shape: Any) -> bool:
    """Take square matrices, one or many."""
    return 2 <= len(shape) <= 4 and shape[-1] == shape[-2] and shape[-1] <= 4


@entry('dot', chance=1.5)
def _dot(drawing: Any) -> None:
    random, value, more = drawing.random, drawing.ranked(1, 2, 3), ''
    shape = drawing.shape(value)
    if random.random() < 0.5:
        other = drawing.param((shape[-1], random.choice((2, 3))))
    elif len(shape) == 2:
        other, more = drawing.pick(lambda two: len(two) == 2 and two[0] == shape[0]), ', transpose_a=True'
    else:
        other = drawing.pick(lambda two: len(two) < 4 and two[0] == shape[-1])
    drawing.add('dot', 'F.dot({0}, {1}%s)' % more, value, other)


@entry('batch_dot', chance=1.5)
def _batch_dot(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(3)
    shape = drawing.shape(value)
    other = drawing.pick(lambda two: len(two) == 3 and two[0] == shape[0] and shape[2] in two[1:])
    straight = drawing.shape(other)[1] == shape[2] and (drawing.shape(other)[2] != shape[2] or random.random() < 0.5)
    drawing.add('batch_dot', 'F.batch_dot({0}, {1}%s)' % ('' if straight else ', transpose_b=True'), value, other)


@entry('khatri_rao', chance=0.2)
def _khatri_rao(drawing: Any) -> None:
    value = drawing.ranked(2)
    drawing.add('khatri_rao', 'F.khatri_rao({0}, {1})', value, drawing.pick(
        lambda shape: len(shape) == 2 and shape[1] == drawing.shape(value)[1]))


def _definite(drawing: Any) -> str:
    """Make a symmetric, positive definite matrix of a square one."""
    value = drawing.pick(square)
    *many, length, _ = drawing.shape(value)
    product = drawing.add('linalg.gemm2', 'F.linalg.gemm2({0}, {0}, transpose_b=True)', value)
    unit = "F.reshape(F.eye(%d, dtype='float64'), shape=%s)" % (length, (1,) * len(many) + (length, length))
    return drawing.add('broadcast_add', 'F.broadcast_add({0}, %s)' % unit, product)


@entry('linalg.gemm', 'linalg.gemm2', chance=0.6)
def _gemm(drawing: Any) -> None:
    value = drawing.ranked(2, 3, 4)
    shape = drawing.shape(value)
    other = drawing.pick(lambda two: two[:-2] == shape[:-2] and len(two) == len(shape) and two[-2] == shape[-1])
    product = drawing.add('linalg.gemm2', 'F.linalg.gemm2({0}, {1}, alpha=0.5)', value, other)
    if drawing.random.random() < 0.4:
        drawing.add('linalg.gemm', 'F.linalg.gemm({0}, {1}, {2}, alpha=0.5, beta=2.0)', value, other, product)


@entry('linalg.syrk', chance=0.3)
def _syrk(drawing: Any) -> None:
    drawing.add('linalg.syrk', 'F.linalg.syrk({0}, transpose=%s)' % drawing.random.choice((True, False)),
                drawing.ranked(2, 3))


@entry('linalg.potrf', 'linalg.potri', 'linalg.sumlogdiag', 'linalg.det', 'linalg.slogdet', 'linalg.inverse',
       'linalg.trsm', 'linalg.trmm', 'linalg.syevd', chance=0.25)
def _of_definite(drawing: Any) -> None:
    op = drawing.random.choice(('potrf', 'potri', 'sumlogdiag', 'det', 'slogdet', 'inverse', 'trsm', 'trmm'))
    value = _definite(drawing)
    if op in ('det', 'slogdet', 'sumlogdiag', 'inverse'):
        drawing.add('linalg.' + op, 'F.linalg.%s({0})' % op, value, outputs=2 if op == 'slogdet' else 1)
        return
    lower = drawing.add('linalg.potrf', 'F.linalg.potrf({0})', value)
    if op == 'potri':
        drawing.add('linalg.potri', 'F.linalg.potri({0})', lower)
    elif op in ('trsm', 'trmm'):
        drawing.add('linalg.' + op, 'F.linalg.%s({0}, {1})' % op, lower, value)


@entry('linalg.gelqf', chance=0.15)
def _gelqf(drawing: Any) -> None:
    drawing.add('linalg.gelqf', 'F.linalg.gelqf({0})', _definite(drawing), outputs=2)


simple('linalg.extractdiag', 'F.linalg.extractdiag({0})', square, chance=0.3)
simple('linalg.makediag', 'F.linalg.makediag({0})', ranks(1, 2, 3), chance=0.3)
simple('linalg.extracttrian', 'F.linalg.extracttrian({0})', square, chance=0.3)
simple('linalg.maketrian', 'F.linalg.maketrian({0})', lambda shape: len(shape) < 4 and shape[-1] in (1, 3, 6, 10),
       chance=0.2)


def _project(drawing: Any, value: str, units: int) -> str:
    """Apply a linear layer to the last dimension of a value."""
    code = 'F.FullyConnected({0}, {1}, num_hidden=%d, no_bias=True, flatten=False)' % units
    return drawing.add('FullyConnected', code, value, drawing.param((units, drawing.shape(value)[-1])))


@entry('contrib.interleaved_matmul_selfatt_qk', 'contrib.interleaved_matmul_selfatt_valatt', chance=1.0)
def _attention(drawing: Any) -> None:
    value = drawing.ranked(3)
    heads = drawing.random.choice((1, 2))
    merged = _project(drawing, value, 6 * heads)
    scores = drawing.add('contrib.interleaved_matmul_selfatt_qk',
                         'F.contrib.interleaved_matmul_selfatt_qk({0}, heads=%d)' % heads, merged, single=True,
                         scales=True)
    if drawing.random.random() < 0.7:
        weights = drawing.add('softmax', 'F.softmax({0}, axis=-1)', scores)
        drawing.add('contrib.interleaved_matmul_selfatt_valatt',
                    'F.contrib.interleaved_matmul_selfatt_valatt({0}, {1}, heads=%d)' % heads, merged, weights,
                    single=True)


@entry('contrib.interleaved_matmul_encdec_qk', 'contrib.interleaved_matmul_encdec_valatt', chance=0.5)
def _cross_attention(drawing: Any) -> None:
    value = drawing.ranked(3)
    shape = drawing.shape(value)
    other = drawing.pick(lambda two: len(two) == 3 and two[1] == shape[1])
    query, keys = _project(drawing, value, 4), _project(drawing, other, 8)
    scores = drawing.add('contrib.interleaved_matmul_encdec_qk',
                         'F.contrib.interleaved_matmul_encdec_qk({0}, {1}, heads=2)', query, keys, single=True,
                         scales=True)
    drawing.add('contrib.interleaved_matmul_encdec_valatt',
                'F.contrib.interleaved_matmul_encdec_valatt({0}, F.softmax({1}, axis=-1), heads=2)', keys, scores,
                single=True)
