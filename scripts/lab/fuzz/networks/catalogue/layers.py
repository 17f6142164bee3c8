"""Layers of gluon, called once or several times."""
import math
from typing import Any

from .registry import entry, is_image, ranks

#: Layers that compute something as float32, whatever the type of their data.
_ROUND = {'PReLU': {'rounds': 'float32'}}


def _call(drawing: Any, op: str, layer: str, value: str, test: Any) -> None:
    drawing.add(op, _code(drawing, layer), value, **_ROUND.get(op, {}))
    drawing.fits[layer] = op, test


def _code(drawing: Any, layer: str) -> str:
    """Return the call of a layer.

    BatchNorm of MXNet 1.9.1 reads and writes views of its arrays if its channels are not in dimension 1, which fails
    with "Check failed: !is_view", or damages memory, if its data or the gradient of its output is in a layout of oneDNN
    (float32, of operators such as convolution, pooling and transpose).  F.identity converts both.
    """
    kind = next(each['make'] for each in drawing.program['layers'] if each['name'] == layer)
    is_converted = kind.startswith('nn.BatchNorm(') and 'axis=1,' not in kind
    return ('F.identity(self.%s(F.identity({0})))' if is_converted else 'self.%s({0})') % layer


@entry('again', chance=4.0)
def _again(drawing: Any) -> None:
    """Call a layer of the network on another value."""
    layers = {each['name'] for each in drawing.program['layers']}
    name = drawing.random.choice(sorted(layers & set(drawing.fits)) or [''])
    if name:
        op, test = drawing.fits[name]
        drawing.add(op + ' again', _code(drawing, name), drawing.pick(test), **_ROUND.get(op, {}))


@entry('Dense', chance=6.0)
def _dense(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick()
    shape = drawing.shape(value)
    flatten = random.random() < 0.5 and len(shape) > 1
    units = math.prod(shape[1:]) if flatten else shape[-1]
    more = (', use_bias=False' if random.random() < 0.3 else '') + ('' if flatten else ', flatten=False') + (
        ', activation=%r' % random.choice(('relu', 'tanh')) if random.random() < 0.3 else '') + (
        '' if random.random() < 0.3 else ', in_units=%d' % units)
    layer = drawing.layer('dense', 'nn.Dense(%d%s)' % (random.choice((1, 2, 3, 4, 5, units)), more))
    _call(drawing, 'Dense', layer, value, lambda other: (
        len(other) > 1 and math.prod(other[1:]) == units if flatten else other[-1] == units))


@entry('Dense tied', chance=1.5)
def _tied(drawing: Any) -> None:
    """Make a dense layer with the parameters of another one, and call it."""
    layers = [each for each in drawing.program['layers'] if each['make'].startswith('nn.Dense')
              and 'in_units' in each['make'] and not each.get('tied')]
    if layers:
        other = drawing.random.choice(layers)
        layer = drawing.layer('dense', other['make'].replace(", activation='relu'", ''), other['name'])
        test = drawing.fits[other['name']][1]
        _call(drawing, 'Dense tied', layer, drawing.pick(test), test)


@entry('Conv', chance=6.0)
def _conv(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(3, 4, 5)
    shape = drawing.shape(value)
    count, channels = len(shape) - 2, shape[1]
    kernel = tuple(random.randint(1, min(3, length)) for length in shape[2:])
    pad = tuple(random.randint(0, 1) for _ in kernel)
    groups = random.choice([number for number in (1, 1, 2, channels) if channels % number == 0])
    more = ', groups=%d' % groups if groups > 1 else ''
    more += ', use_bias=False' if random.random() < 0.3 else ''
    more += ', strides=%s' % (tuple(random.randint(1, 2) for _ in kernel),) if random.random() < 0.3 else ''
    more += ", activation='relu'" if random.random() < 0.2 else ''
    more += ', dilation=%s' % ((2,) * count,) if random.random() < 0.15 else ''
    more += '' if random.random() < 0.3 else ', in_channels=%d' % channels
    layer = drawing.layer('conv', 'nn.Conv%dD(%d, %s, padding=%s%s)' % (
        count, groups * random.choice((1, 2, 3)), kernel, pad, more))
    _call(drawing, 'Conv', layer, value, lambda other: len(other) == len(shape) and other[1] == channels)


@entry('ConvTranspose', chance=1.0)
def _deconvolve(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(3, 4)
    shape = drawing.shape(value)
    count = len(shape) - 2
    layer = drawing.layer('up', 'nn.Conv%dDTranspose(%d, %s, strides=%s, in_channels=%d%s)' % (
        count, random.choice((1, 2, 3)), tuple(random.randint(1, 3) for _ in range(count)),
        tuple(random.randint(1, 2) for _ in range(count)), shape[1], ', use_bias=False' * random.choice((0, 1))))
    _call(drawing, 'ConvTranspose', layer, value, lambda other: len(other) == len(shape) and other[1] == shape[1])


@entry('BatchNorm', chance=4.0)
def _batch_norm(drawing: Any) -> None:
    random, value = drawing.random, drawing.pick(lambda shape: len(shape) > 1 and shape[0] > 1)
    shape = drawing.shape(value)
    axis = random.choice((1, 1, 1, -1, len(shape) - 1))
    channels = shape[axis]
    more = (', center=False' if random.random() < 0.15 else '') + (', scale=False' if random.random() < 0.2 else '') + (
        ', use_global_stats=True' if random.random() < 0.1 else '') + (
        ', momentum=%s' % random.choice((0.5, 0.8)) if random.random() < 0.3 else '')
    layer = drawing.layer('norm', 'nn.BatchNorm(axis=%d, epsilon=0.0625, in_channels=%d%s)' % (axis, channels, more))
    _call(drawing, 'BatchNorm', layer, value, lambda other: len(other) == len(shape) and other[axis] == channels)


@entry('LayerNorm', 'GroupNorm', chance=1.5)
def _norms(drawing: Any) -> None:
    random, kind = drawing.random, drawing.random.choice(('LayerNorm', 'GroupNorm'))
    test = ranks(3, 4) if kind == 'GroupNorm' else (lambda shape: len(shape) > 1)
    value = drawing.pick(test)
    axis = 1 if kind == 'GroupNorm' else random.choice((-1, -1, 1))
    channels = drawing.shape(value)[axis]
    if kind == 'LayerNorm':
        make = 'nn.LayerNorm(axis=%d, epsilon=0.0625, in_channels=%d)' % (axis, channels)
    else:
        make = 'nn.GroupNorm(num_groups=%d, epsilon=0.0625)' % random.choice(
            [number for number in (1, 2, channels) if channels % number == 0])
    _call(drawing, kind, drawing.layer('norm', make), value, lambda other: test(other) and other[axis] == channels)


@entry('Embedding', chance=2.5)
def _embedding(drawing: Any) -> None:
    ids = drawing.ids(5, ranks(1, 2, 3))
    layer = drawing.layer('embedding', 'nn.Embedding(5, %d)' % drawing.random.choice((1, 3, 4)))
    drawing.add('Embedding', 'self.%s({0})' % layer, ids)
    if drawing.random.random() < 0.3:
        drawing.add('Embedding again', 'self.%s({0})' % layer, drawing.ids(5, ranks(1, 2, 3)))


@entry('PReLU', chance=1.0)
def _prelu(drawing: Any) -> None:
    value = drawing.pick(lambda shape: len(shape) > 1)
    _call(drawing, 'PReLU', drawing.layer('prelu', 'nn.PReLU()'), value, lambda other: len(other) > 1)


@entry('LSTM', 'GRU', 'RNN', chance=1.0)
def _recurrent(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(3)
    shape = drawing.shape(value)
    kind, layout = random.choice(('LSTM', 'GRU', 'RNN')), random.choice(('TNC', 'NTC'))
    hidden = random.choice((1, 2, 3))
    # There is one layer only: with several layers in float64, gradients of MXNet 1.9.1 differ from run to run:
    # one of 7 networks had values of 1e-311, as unwritten memory has, in place of 1e-7.
    layer = drawing.layer('lstm', 'rnn.%s(%d, layout=%r, input_size=%d%s)' % (
        kind, hidden, layout, shape[2], ', bidirectional=True' * random.choice((0, 1))))
    drawing.add(kind, 'self.%s({0})' % layer, value)


@entry('Pool', chance=2.5)
def _pool(drawing: Any) -> None:
    random, value = drawing.random, drawing.ranked(3, 4, 5)
    shape = drawing.shape(value)
    count = len(shape) - 2
    kind = random.choice(('Max', 'Avg', 'GlobalMax', 'GlobalAvg'))
    if kind.startswith('Global'):
        layer = drawing.layer('pool', 'nn.%sPool%dD()' % (kind, count))
    else:
        kernel = tuple(random.randint(1, min(3, length)) for length in shape[2:])
        more = ', strides=%s' % (tuple(random.randint(1, 2) for _ in kernel),)
        more += ', padding=%s' % (tuple(random.randint(0, size // 2) for size in kernel),)
        more += ', ceil_mode=True' if random.random() < 0.3 else ''
        more += ', count_include_pad=False' if kind == 'Avg' and random.random() < 0.4 else ''
        layer = drawing.layer('pool', 'nn.%sPool%dD(%s%s)' % (kind, count, kernel, more))
    drawing.add('Pool', 'self.%s({0})' % layer, value)


@entry('activations', chance=0.7)
def _activations(drawing: Any) -> None:
    layer = drawing.layer('act', drawing.random.choice(('nn.SELU()', 'nn.GELU()', 'nn.Swish()', 'nn.ELU()',
                                                        'nn.LeakyReLU(0.25)', "nn.Activation('relu')")))
    _call(drawing, 'activations', layer, drawing.pick(), lambda other: True)


@entry('ReflectionPad2D', chance=0.3)
def _reflect(drawing: Any) -> None:
    value = drawing.pick(is_image)
    drawing.add('ReflectionPad2D', 'self.%s({0})' % drawing.layer('pad', 'nn.ReflectionPad2D(1)'), value)
