"""Operators of `F` that have weights or windows: dense layers, convolutions, pooling and the like."""
import math
from typing import Any, Tuple

from .registry import entry, is_image, ranks, simple


def is_large_image(shape: Tuple[int, ...]) -> bool:
    """Accept shapes of four dimensions, of which the last two are at least 3."""
    return len(shape) == 4 and min(shape[2:]) > 2


@entry('FullyConnected', chance=2.0)
def _fully_connected(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick(lambda shape: len(shape) > 1)
    shape = drawing.shape(value)
    flatten, hidden = random.random() < 0.6, random.choice((2, 3, 4))
    weight = drawing.param((hidden, math.prod(shape[1:]) if flatten else shape[-1]))
    kind = random.choice(('plain', 'bias', 'made'))
    if kind == 'bias':
        drawing.add('FullyConnected', 'F.FullyConnected({0}, {1}, {2}, num_hidden=%d, flatten=%s)' % (hidden, flatten),
                    value, weight, drawing.param((hidden,)))
        return
    used = '{1}' if kind == 'plain' else random.choice(('F.tanh({1})', '{1} * 2.0', 'F.relu({1})'))
    drawing.add('FullyConnected', 'F.FullyConnected({0}, %s, num_hidden=%d, no_bias=True, flatten=%s)' % (
        used, hidden, flatten), value, weight)


@entry('Convolution', chance=2.0)
def _convolution(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(4)
    shape = drawing.shape(value)
    kernel = tuple(random.randint(1, min(3, length)) for length in shape[2:])
    filters, pad = random.choice((1, 2, 4)), (random.choice((0, 1)), random.choice((0, 1)))
    drawing.add('Convolution', 'F.Convolution({0}, {1}, num_filter=%d, kernel=%s, no_bias=True, pad=%s)' % (
        filters, kernel, pad), value, drawing.param((filters, shape[1], *kernel)))


@entry('Deconvolution', chance=0.7)
def _deconvolution(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(4)
    channels = drawing.shape(value)[1]
    drawing.add('Deconvolution', 'F.Deconvolution({0}, {1}, num_filter=2, kernel=(2, 2), stride=(%d, 1), no_bias=True)'
                % random.choice((1, 2)), value, drawing.param((channels, 2, 2, 2)))


@entry('Pooling', chance=3.0)
def _pooling(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(3, 4, 5)
    kernel = tuple(random.randint(1, min(3, length)) for length in drawing.shape(value)[2:])
    kind = random.choice(('max', 'avg', 'sum'))
    more = ', pooling_convention=%r' % random.choice(('full', 'valid'))
    if random.random() < 0.2:
        more = ', global_pool=True'
    stride, pad = tuple(random.randint(1, 2) for _ in kernel), tuple(random.randint(0, size // 2) for size in kernel)
    drawing.add('Pooling', 'F.Pooling({0}, kernel=%s, pool_type=%r, stride=%s, pad=%s%s)' % (
        kernel, kind, stride, pad, more), value)


simple('lp pooling', "F.Pooling({0} + 2.0, kernel=(2, 2), pool_type='lp', p_value=2)", is_image, chance=0.3)
simple('LRN', 'F.LRN({0}, nsize=3, alpha=0.5, beta=0.75, knorm=2)', ranks(4), chance=0.7, single=True)


@entry('UpSampling', chance=1.2)
def _upsampling(drawing: Any) -> None:
    value = drawing.ranked(4)
    shape = drawing.shape(value)
    kind = drawing.random.choice(('one', 'concat', 'sum', 'bilinear'))
    if kind == 'one':
        drawing.add('UpSampling', "F.UpSampling({0}, scale=2, sample_type='nearest')", value)
    elif kind == 'bilinear':
        drawing.add('UpSampling', "F.UpSampling({0}, {1}, scale=2, sample_type='bilinear', num_filter=%d)" % shape[1],
                    value, drawing.param((shape[1], 1, 4, 4)))
    else:
        other = drawing.pick(lambda small: len(small) == 4 and small[:2] == shape[:2] and all(
            2 * length % part == 0 and 2 * length // part == 2 * shape[2] // small[2]
            for length, part in zip(shape[2:], small[2:])))
        drawing.add('UpSampling', "F.UpSampling({0}, {1}, scale=2, sample_type='nearest', num_args=2, "
                    'multi_input_mode=%r)' % kind, value, other)


@entry('LayerNorm op', 'InstanceNorm op', 'GroupNorm op', chance=0.4)
def _norms(drawing: Any) -> None:
    kind = drawing.random.choice(('LayerNorm', 'InstanceNorm', 'GroupNorm'))
    value = drawing.ranked(2, 3, 4) if kind == 'LayerNorm' else drawing.ranked(3, 4)
    more, channels = '', drawing.shape(value)[-1 if kind == 'LayerNorm' else 1]
    if kind == 'GroupNorm':
        more, channels = ', num_groups=1', 1
    drawing.add(kind + ' op', 'F.%s({0}, {1}, {2}, eps=0.0625%s)' % (kind, more), value, drawing.param((channels,)),
                drawing.param((channels,)), single=kind == 'InstanceNorm')


@entry('Embedding op', chance=0.7)
def _embedding(drawing: Any) -> None:
    ids = drawing.ids(5, ranks(1, 2, 3))
    drawing.add('Embedding op', 'F.Embedding({0}, {1}, input_dim=5, output_dim=3)', ids, drawing.param((5, 3)))


simple('contrib.AdaptiveAvgPooling2D', 'F.contrib.AdaptiveAvgPooling2D({0}, output_size=(2, 1))', ranks(4), chance=0.5)
simple('contrib.BilinearResize2D', 'F.contrib.BilinearResize2D({0}, height=3, width=5)', ranks(4), chance=0.5)
simple('Correlation', 'F.Correlation({0}, {1}, kernel_size=1, max_displacement=1, stride1=1, stride2=1, pad_size=1, '
       'is_multiply=%s)', is_large_image, None, options=(True, False), chance=0.4, single=True)


@entry('GridGenerator', 'BilinearSampler', chance=0.5)
def _sampler(drawing: Any) -> None:
    value = drawing.pick(is_image)
    count = drawing.shape(value)[0]
    if drawing.random.random() < 0.3:
        code = "F.GridGenerator({0}, transform_type='affine', target_shape=(3, 2))"
        source = drawing.pick(lambda other: other == (count, 6))
    else:
        code = "F.GridGenerator({0} / 4.0, transform_type='warp')"
        source = drawing.pick(lambda other: is_image(other) and other[:2] == (count, 2))
    grid = drawing.add('GridGenerator', code, source, single=True)
    drawing.add('BilinearSampler', 'F.BilinearSampler({0}, {1})', value, grid, single=True)


@entry('SpatialTransformer', chance=0.4)
def _transformer(drawing: Any) -> None:
    value = drawing.pick(is_image)
    affine = drawing.add('FullyConnected', 'F.FullyConnected({0}, {1}, num_hidden=6, no_bias=True)', value,
                         drawing.param((6, math.prod(drawing.shape(value)[1:]))))
    drawing.add('SpatialTransformer', "F.SpatialTransformer({0}, F.tanh({1}) / 2.0, transform_type='affine', "
                "sampler_type='bilinear', target_shape=(3, 3))", value, affine, single=True)


@entry('contrib.DeformableConvolution', chance=0.3)
def _deformable(drawing: Any) -> None:
    value = drawing.pick(is_large_image)
    channels = drawing.shape(value)[1]
    offsets = drawing.add('Convolution', 'F.Convolution({0}, {1}, num_filter=8, kernel=(2, 2), no_bias=True)', value,
                          drawing.param((8, channels, 2, 2)))
    drawing.add('contrib.DeformableConvolution', 'F.contrib.DeformableConvolution({0}, F.tanh({1}) / 4.0, {2}, '
                'kernel=(2, 2), num_filter=2, num_deformable_group=1, no_bias=True)', value, offsets,
                drawing.param((2, channels, 2, 2)))


@entry('contrib.ModulatedDeformableConvolution', chance=0.2)
def _modulated(drawing: Any) -> None:
    value = drawing.pick(is_large_image)
    channels = drawing.shape(value)[1]
    made = [drawing.add('Convolution', 'F.Convolution({0}, {1}, num_filter=%d, kernel=(2, 2), no_bias=True)' % count,
                        value, drawing.param((count, channels, 2, 2))) for count in (8, 4)]
    drawing.add('contrib.ModulatedDeformableConvolution', 'F.contrib.ModulatedDeformableConvolution({0}, F.tanh({1}) / '
                '4.0, F.sigmoid({2}), {3}, kernel=(2, 2), num_filter=2, num_deformable_group=1, no_bias=True)', value,
                *made, drawing.param((2, channels, 2, 2)))
