"""Operators that rearrange values: reshapes, transposes, slices, concatenations and the like."""
import math
import operator
from typing import Any, List

from .registry import entry, is_image, ranks, simple


def axis_of(drawing: Any, value: str, negative: bool = True) -> int:
    """Draw a dimension of a value, sometimes counted from the end."""
    count = len(drawing.shape(value))
    axis = drawing.random.randrange(count)
    return axis - count if negative and drawing.random.random() < 0.3 else axis


def listed(reads: List[str]) -> str:
    """Return the places of all values that a statement reads, as arguments."""
    return ', '.join('{%d}' % number for number in range(len(reads)))


@entry('reshape', 'Reshape', chance=3.0)
def _reshape(drawing: Any) -> None:
    random, op = drawing.random, drawing.random.choice(('reshape', 'Reshape'))
    value = drawing.pick(lambda shape: len(shape) > 1)
    shape = drawing.shape(value)
    options = [(0, -1), (-1,), (-1, 0), (0, 0, -1), (-3, -2), (0, -3, -2), (-2, -3), (-1, shape[-1]), (-4, 1, -1, -2),
               (0, -2, 1), (shape[0], -1), (-2, 1), (1, -2), (0, 0, 0, -1)]
    for axis, length in enumerate(shape):
        if length % 2 == 0:
            options += [(0,) * axis + (-4, 2, -1, -2), (0,) * axis + (-4, -1, 2, -2), (-1, 2)]
    more = ''
    if random.random() < 0.2:
        more, options = ', reverse=True', [(-1, 0), (0, -1), (-1, 0, 0), (-1, 1, 0)]
    drawing.add(op, 'F.%s({0}, shape=%s%s)' % (op, random.choice(options), more), value)


simple('flatten', 'F.flatten({0})', ranks(2, 3, 4, 5))
simple('Flatten', 'F.Flatten({0})', ranks(2, 3, 4, 5))
simple('expand_dims', 'F.expand_dims({0}, axis=%d)', ranks(1, 2, 3, 4), options=(0, 1, -1), chance=1.0)


@entry('squeeze', chance=0.6)
def _squeeze(drawing: Any) -> None:
    value = drawing.pick(lambda shape: 1 in shape and len(shape) > 1 and max(shape) > 1)
    axis = drawing.random.choice([axis for axis, length in enumerate(drawing.shape(value)) if length == 1])
    drawing.add('squeeze', drawing.random.choice(('F.squeeze({0}, axis=%d)' % axis, 'F.squeeze({0})')), value)


@entry('transpose', chance=2.0)
def _transpose(drawing: Any) -> None:
    value = drawing.ranked(2, 3, 4, 5)
    axes = list(range(len(drawing.shape(value))))
    drawing.random.shuffle(axes)
    more = '' if drawing.random.random() < 0.3 else ', axes=%s' % (tuple(axes),)
    drawing.add('transpose', 'F.transpose({0}%s)' % more, value)


@entry('swapaxes', 'SwapAxis', chance=1.0)
def _swap(drawing: Any) -> None:
    value, op = drawing.ranked(2, 3, 4, 5), drawing.random.choice(('swapaxes', 'SwapAxis'))
    first, second = drawing.random.sample(range(len(drawing.shape(value))), 2)
    drawing.add(op, 'F.%s({0}, dim1=%d, dim2=%d)' % (op, first, second), value)


@entry('slice', 'crop', chance=1.2)
def _slice(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick(lambda shape: max(shape) > 1)
    shape = drawing.shape(value)
    begin, end, step = [], [], []
    for length in shape[:random.randint(1, len(shape))]:
        low = random.randrange(length)
        begin.append(random.choice((None, 0, low)))
        end.append(random.choice((None, length, None) if begin[-1] else (None, max(1, low), length)))
        step.append(random.choice((1, 1, 1, 2)))
    more = ', step=%s' % (tuple(step),) if random.random() < 0.3 else ''
    drawing.add('slice', 'F.slice({0}, begin=%s, end=%s%s)' % (tuple(begin), tuple(end), more), value)


@entry('slice_axis', chance=1.5)
def _slice_axis(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick(lambda shape: max(shape) > 1)
    axis = axis_of(drawing, value)
    length = drawing.shape(value)[axis]
    low = random.randrange(length)
    high = random.choice((None, length, random.randint(low + 1, length)))
    low = low - length if random.random() < 0.2 else low
    drawing.add('slice_axis', 'F.slice_axis({0}, axis=%d, begin=%d, end=%s)' % (axis, low, high), value)


@entry('slice_like', chance=0.8)
def _slice_like(drawing: Any) -> None:
    value = drawing.pick()
    shape = drawing.shape(value)
    other = drawing.pick(lambda small: len(small) == len(shape) and all(map(operator.le, small, shape)))
    axes = drawing.random.choice(('', ', axes=(%d,)' % axis_of(drawing, value, False)))
    drawing.add('slice_like', 'F.slice_like({0}, {1}%s)' % axes, value, other)


@entry('split', 'SliceChannel', 'split_v2', chance=1.0)
def _split(drawing: Any) -> None:
    random, op = drawing.random, drawing.random.choice(('split', 'SliceChannel', 'split_v2'))
    value = drawing.pick(lambda shape: max(shape) > 1)
    axis = axis_of(drawing, value, op == 'split_v2')
    length = drawing.shape(value)[axis]
    counts = [count for count in (2, 3, 4) if length % count == 0]
    if not counts:
        _slice_axis(drawing)
        return
    count = random.choice(counts)
    squeezes = length == count and len(drawing.shape(value)) > 1 and random.random() < 0.6
    more = ', squeeze_axis=True' * squeezes
    if op != 'split_v2':
        drawing.add(op, 'F.%s({0}, num_outputs=%d, axis=%d%s)' % (op, count, axis, more), value, outputs=count)
    elif random.random() < 0.5 and length > 2:
        drawing.add(op, 'F.split_v2({0}, %s, axis=%d)' % ((1, length - 1), axis), value, outputs=3)
    else:
        drawing.add(op, 'F.split_v2({0}, %d, axis=%d%s)' % (count, axis, more), value, outputs=count)


@entry('concat', 'Concat', chance=1.5)
def _concat(drawing: Any) -> None:
    random, value, op = drawing.random, drawing.pick(), drawing.random.choice(('concat', 'Concat'))
    axis = axis_of(drawing, value)
    shape = drawing.shape(value)
    cut = axis % len(shape)
    before, after = shape[:cut], shape[cut + 1:]
    fits = drawing.known(lambda other: len(other) == len(shape) and (other[:cut], other[cut + 1:]) == (before, after))
    reads = [value] + [random.choice(fits) if random.random() < 0.75 else drawing.param(
        (*before, random.choice((1, 2, shape[cut])), *after)) for _ in range(random.choice((1, 1, 2)))]
    random.shuffle(reads)
    drawing.add(op, 'F.%s(%s, dim=%d)' % (op, listed(reads), axis), *reads)


@entry('stack', chance=1.0)
def _stack(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(1, 2, 3, 4)
    reads = [value] + [drawing.same_as(value) for _ in range(random.choice((1, 2)))]
    drawing.add('stack', 'F.stack(%s, axis=%d)' % (listed(reads), random.choice((0, 1, -1))), *reads)


@entry('repeat', chance=0.7)
def _repeat(drawing: Any) -> None:
    value = drawing.pick()
    axis = drawing.random.choice(('', ', axis=%d' % axis_of(drawing, value)))
    drawing.add('repeat', 'F.repeat({0}, repeats=%d%s)' % (drawing.random.choice((1, 2, 3)), axis), value)


@entry('tile', chance=0.7)
def _tile(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(1, 2, 3, 4)
    count = len(drawing.shape(value))
    reps = tuple(random.choice((1, 1, 2)) for _ in range(random.choice((1, count, count + 1))))
    drawing.add('tile', 'F.tile({0}, reps=%s)' % (reps,), value)


@entry('flip', 'reverse', chance=0.7)
def _flip(drawing: Any) -> None:
    value, op = drawing.pick(), drawing.random.choice(('flip', 'reverse'))
    drawing.add(op, 'F.%s({0}, axis=%d)' % (op, axis_of(drawing, value, False)), value)


@entry('pad', 'Pad', chance=1.0)
def _pad(drawing: Any) -> None:
    random, value, op = drawing.random, drawing.ranked(4, 5), drawing.random.choice(('pad', 'Pad'))
    mode, width = random.choice(('constant', 'edge', 'reflect')), [0, 0, 0, 0]
    for length in drawing.shape(value)[2:]:
        width += [random.randint(0, min(2, length - 1)) for _ in range(2)]
    drawing.add(op, 'F.%s({0}, mode=%r, pad_width=%s%s)' % (
        op, mode, tuple(width), ', constant_value=0.5' if mode == 'constant' else ''), value)


@entry('broadcast_to', 'broadcast_axis', 'broadcast_axes', 'broadcast_like', chance=0.5)
def _broadcast_to(drawing: Any) -> None:
    op = drawing.random.choice(('broadcast_to', 'broadcast_axis', 'broadcast_axes', 'broadcast_like'))
    value = drawing.pick(lambda shape: 1 in shape)
    shape = drawing.shape(value)
    axis = drawing.random.choice([axis for axis, length in enumerate(shape) if length == 1])
    if op == 'broadcast_like':
        other = drawing.pick(lambda other: len(other) == len(shape) and all(
            small in (1, large) for small, large in zip(shape, other)))
        drawing.add(op, 'F.broadcast_like({0}, {1})', value, other)
    elif op == 'broadcast_to':
        lengths = [0] * len(shape)
        lengths[axis] = drawing.length()
        drawing.add(op, 'F.broadcast_to({0}, shape=%s)' % (tuple(lengths),), value)
    else:
        drawing.add(op, 'F.%s({0}, axis=%d, size=%d)' % (op, axis, drawing.length()), value)


@entry('reshape_like', chance=0.6)
def _reshape_like(drawing: Any) -> None:
    value = drawing.pick()
    size = drawing.arrays[value].size
    drawing.add('reshape_like', 'F.reshape_like({0}, {1})', value, drawing.pick(lambda shape: math.prod(shape) == size))


@entry('depth_to_space', 'space_to_depth', chance=0.5)
def _depth(drawing: Any) -> None:
    if drawing.random.random() < 0.5:
        value = drawing.pick(lambda shape: len(shape) == 4 and shape[1] % 4 == 0)
        drawing.add('depth_to_space', 'F.depth_to_space({0}, block_size=2)', value)
    else:
        value = drawing.pick(lambda shape: len(shape) == 4 and shape[2] % 2 == 0 and shape[3] % 2 == 0)
        drawing.add('space_to_depth', 'F.space_to_depth({0}, block_size=2)', value)


simple('diag', 'F.diag({0}, k=%d)', ranks(1, 2, 3), options=(0, 0, 1))


@entry('Crop', chance=0.5)
def _crop(drawing: Any) -> None:
    value = drawing.ranked(4)
    shape = drawing.shape(value)
    lengths = tuple(drawing.random.randint(1, length) for length in shape[2:])
    if drawing.random.random() < 0.5:
        drawing.add('Crop', 'F.Crop({0}, h_w=%s, num_args=1)' % (lengths,), value, single=True)
    else:
        other = drawing.pick(lambda small: len(small) == 4 and small[2] <= shape[2] and small[3] <= shape[3])
        drawing.add('Crop', 'F.Crop({0}, {1}, num_args=2)', value, other, single=True)


simple('im2col', 'F.im2col({0}, kernel=(2, 2), stride=(1, 1), pad=(%d, 0))', is_image, options=(0, 1))


@entry('col2im', chance=0.5)
def _col2im(drawing: Any) -> None:
    value = drawing.pick(lambda shape: len(shape) == 3 and shape[1] % 2 == 0)
    length = drawing.shape(value)[2]
    drawing.add('col2im', 'F.col2im({0}, output_size=(1, %d), kernel=(1, 2), stride=(1, 1))' % (length + 1), value)


@entry('cumsum', chance=0.8)
def _cumsum(drawing: Any) -> None:
    value = drawing.pick()
    axis = drawing.random.choice(('', ', axis=%d' % axis_of(drawing, value, False)))
    drawing.add('cumsum', 'F.cumsum({0}%s)' % axis, value)


@entry('SequenceMask', 'SequenceLast', 'SequenceReverse', chance=0.6)
def _sequence(drawing: Any) -> None:
    op, value = drawing.random.choice(('SequenceMask', 'SequenceLast', 'SequenceReverse')), drawing.ranked(2, 3, 4)
    axis, more = 0, ''
    if op != 'SequenceReverse':
        axis = drawing.random.choice((0, 0, 1))
        more = ', axis=%d' % axis
    # The backward pass of SequenceLast without lengths writes beyond its memory.
    if drawing.random.random() < 0.3 and op != 'SequenceLast':
        drawing.add(op, 'F.%s({0}%s)' % (op, more), value)
        return
    shape = drawing.shape(value)
    lengths = drawing.ids(5, lambda other: other == (shape[1 - axis],))
    drawing.add(op, 'F.%s({0}, F.clip({1} + 1.0, 1, %d), use_sequence_length=True%s)' % (op, shape[axis], more), value,
                lengths)


@entry('shape_array', 'size_array', chance=0.2)
def _shape_array(drawing: Any) -> None:
    value, op = drawing.pick(), drawing.random.choice(('shape_array', 'size_array'))
    drawing.add(op, "F.Cast(F.%s({0}), dtype='float64')" % op, value)


@entry('contrib.arange_like', chance=0.7)
def _arange_like(drawing: Any) -> None:
    value = drawing.pick()
    more = drawing.random.choice(('', ', axis=%d' % axis_of(drawing, value, False)))
    drawing.add('contrib.arange_like', 'F.contrib.arange_like({0}, start=0.5, step=0.25%s)' % more, value)


simple('contrib.index_array', "F.Cast(F.contrib.index_array({0}), dtype='float64')", ranks(1, 2, 3), chance=0.3)
simple('image.flip_left_right', 'F.image.flip_left_right({0})', ranks(3, 4), chance=0.2)
simple('image.flip_top_bottom', 'F.image.flip_top_bottom({0})', ranks(3, 4), chance=0.2)
simple('image.to_tensor', "F.Cast(F.image.to_tensor({0} * 255.0), dtype='float64')", ranks(3, 4),
       chance=0.2, rounds='float32')
simple('image.normalize', "F.image.normalize({0}, mean=(0.5,), std=(2.0,))", lambda shape: len(shape) in (3, 4)
       and shape[-3] in (1, 3), chance=0.2, rounds='float32')
simple('image.crop', 'F.image.crop({0}, x=0, y=0, width=1, height=1)', ranks(3, 4), chance=0.2)
