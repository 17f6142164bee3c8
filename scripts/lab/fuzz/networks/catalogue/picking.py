"""Operators that choose values by ids, sort them or search them."""
from typing import Any

from .registry import any_shape, entry, ranks, simple
from .shaping import axis_of


@entry('take', chance=1.2)
def _take(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick()
    axis = axis_of(drawing, value, False)
    limit = drawing.shape(value)[axis]
    mode = random.choice(('', ", mode='wrap'"))
    drawing.add('take', 'F.take({0}, {1}, axis=%d%s)' % (axis, mode), value,
                drawing.ids(5 if mode else limit, ranks(1, 2, 3)))


@entry('take of a weight', chance=0.5)
def _take_weight(drawing: Any) -> None:
    ids = drawing.ids(5, ranks(1, 2, 3))
    drawing.add('take of a weight', 'F.take({0}, {1})', drawing.param((5, 3)), ids)


@entry('pick', 'choose_element_0index', chance=0.8)
def _pick(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(2, 3, 4)
    shape = drawing.shape(value)
    axis = axis_of(drawing, value)
    at = axis % len(shape)
    ids = drawing.ids(shape[at], lambda other: other == shape[:at] + shape[at + 1:])
    if len(shape) == 2 and at == 1 and random.random() < 0.3:
        drawing.add('choose_element_0index', 'F.choose_element_0index({0}, {1})', value, ids)
    else:
        drawing.add('pick', 'F.pick({0}, {1}, axis=%d%s%s)' % (
            axis, ', keepdims=True' * random.choice((0, 1)), random.choice(('', ", mode='wrap'"))), value, ids)


@entry('fill_element_0index', chance=0.2)
def _fill(drawing: Any) -> None:
    value = drawing.ranked(2)
    count, length = drawing.shape(value)
    other = drawing.pick(lambda shape: shape == (count,))
    ids = drawing.ids(length, lambda shape: shape == (count,))
    drawing.add('fill_element_0index', 'F.fill_element_0index(F.BlockGrad({0}), F.BlockGrad({1}), {2})', value, other,
                ids)


@entry('batch_take', chance=0.6)
def _batch_take(drawing: Any) -> None:
    value = drawing.ranked(2)
    count, length = drawing.shape(value)
    ids = drawing.ids(length, lambda shape: shape == (count,))
    drawing.add('batch_take', "F.batch_take({0}, F.Cast({1}, dtype='int32'))", value, ids)


@entry('gather_nd', chance=0.6)
def _gather_nd(drawing: Any) -> None:
    value = drawing.pick()
    ids = drawing.ids(min(drawing.shape(value)[:2]), ranks(1, 2, 3))
    count = drawing.random.choice((1, min(2, len(drawing.shape(value)))))
    drawing.add('gather_nd', 'F.gather_nd({0}, F.stack(%s, axis=0))' % ', '.join(['{1}'] * count), value, ids)


@entry('scatter_nd', chance=0.5)
def _scatter_nd(drawing: Any) -> None:
    ids = drawing.ids(4, ranks(1))
    count = drawing.shape(ids)[0]
    value = drawing.pick(lambda shape: shape[0] == count and len(shape) < 4)
    drawing.add('scatter_nd', 'F.scatter_nd({0}, F.stack({1}, F.contrib.arange_like({1}), axis=0), shape=%s)' % (
        (4, count) + drawing.shape(value)[1:],), value, ids)


@entry('one_hot', chance=0.6)
def _one_hot(drawing: Any) -> None:
    drawing.add('one_hot', "F.one_hot({0}, depth=%d, dtype='float64')" % drawing.random.choice((4, 5, 6)),
                drawing.ids(5, ranks(1, 2, 3)))


@entry('contrib.index_copy', chance=0.4)
def _index_copy(drawing: Any) -> None:
    value = drawing.ranked(1, 2, 3)
    count, *row = drawing.shape(value)
    rows = drawing.pick(lambda shape: shape[0] <= count and list(shape[1:]) == row)
    drawing.add('contrib.index_copy', "F.contrib.index_copy({0}, F.Cast(F.contrib.arange_like({1}, axis=0), "
                "dtype='int64'), {1})", value, rows)


@entry('topk', chance=0.8)
def _topk(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick()
    axis = axis_of(drawing, value)
    kind = random.choice(('value', 'mask', 'indices', 'both'))
    more = ', is_ascend=True' * random.choice((0, 1)) + ", dtype='float64'" * (kind == 'indices')
    count = random.randint(1, drawing.shape(value)[axis])
    # Equal values may be taken in any order.
    drawing.add('topk', 'F.topk({0}, k=%d, axis=%d, ret_typ=%r%s)' % (count, axis, kind, more), value,
                outputs=2 if kind == 'both' else 1)


@entry('sort', 'argsort', chance=0.6)
def _sort(drawing: Any) -> None:
    random, value, op = drawing.random, drawing.pick(), drawing.random.choice(('sort', 'argsort'))
    axis, more = axis_of(drawing, value), ', is_ascend=False' * random.choice((0, 1))
    drawing.add(op, 'F.%s({0}, axis=%d%s%s)' % (op, axis, more, ", dtype='float64'" * (op == 'argsort')), value)


@entry('argmax', 'argmin', 'argmax_channel', chance=0.5)
def _argmax(drawing: Any) -> None:
    random, op = drawing.random, drawing.random.choice(('argmax', 'argmin', 'argmax_channel'))
    if op == 'argmax_channel':
        value, more = drawing.ranked(2), ''
    else:
        value = drawing.ranked(2, 3, 4)
        more = ', axis=%d%s' % (axis_of(drawing, value), ', keepdims=True' * random.choice((0, 1)))
    drawing.add(op, 'F.%s({0}%s)' % (op, more), value)


@entry('ravel_multi_index', 'unravel_index', chance=0.3)
def _ravel(drawing: Any) -> None:
    ids = drawing.ids(5, ranks(1))
    if drawing.random.random() < 0.5:
        drawing.add('ravel_multi_index', 'F.ravel_multi_index(F.stack({0}, {0}, axis=0), shape=(6, 7))', ids)
    else:
        drawing.add('unravel_index', 'F.unravel_index({0}, shape=(3, 2))', ids)


simple('boolean operators', 'F.broadcast_mul({0}, ({0} > 0.0) * ({0} < 0.5))', any_shape)
