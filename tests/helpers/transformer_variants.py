"""Symbols of attention with few heads of keys, attention in windows, and mixtures of experts."""
import mxnet as mx
import numpy as np
from mxnet import sym

from .split_networks import Network, weights_of
from .transformers import dense, norm

SAMPLES, TIMES, FEATURES, HEADS, SIZE = 4, 6, 16, 8, 2  # SIZE: features of a head
EXPERTS, HIDDEN = 4, 12
SIDE, WINDOW = 4, 2


# -- attention with fewer key heads than query heads -----------------------------------------------------------------


def _causal(scores):
    times = sym.arange(TIMES)
    past = sym.cast(sym.broadcast_greater_equal(times.reshape((TIMES, 1)), times.reshape((1, TIMES))), 'float64')
    return sym.broadcast_add(scores, (past.reshape((1, 1, TIMES, TIMES)) - 1) * 1e9)


def _projections(x, groups, no_bias=False):
    query = dense(x, HEADS * SIZE, 'query', no_bias=no_bias)
    return query, dense(x, groups * SIZE, 'key', no_bias=no_bias), dense(x, groups * SIZE, 'value', no_bias=no_bias)


def _out(x, context):
    return x + dense(context, FEATURES, 'out')


def _attend(query, key, value):
    """Attention of arrays of (samples, heads, times, features), by products of many matrices in four dimensions."""
    weights = sym.softmax(_causal(sym.linalg.gemm2(query, key, transpose_b=True) * 0.5), axis=-1)
    return sym.reshape(sym.transpose(sym.linalg.gemm2(weights, value), axes=(0, 2, 1, 3)), shape=(0, 0, -1))


def _attend_merged(query, key, value):
    """The same with samples and heads in one dimension."""
    merged = [sym.reshape(part, shape=(-3, 0, 0)) for part in (query, key, value)]
    scores = sym.batch_dot(merged[0], merged[1], transpose_b=True)
    weights = sym.softmax(_causal(sym.reshape(scores, shape=(-4, -1, HEADS, 0, 0))), axis=-1)
    context = sym.batch_dot(sym.reshape(weights, shape=(-3, 0, 0)), merged[2])
    context = sym.transpose(sym.reshape(context, shape=(-4, -1, HEADS, 0, 0)), axes=(0, 2, 1, 3))
    return sym.reshape(context, shape=(0, 0, -3))


def gqa_repeat(groups=2, attend=_attend):
    """Keys and values are repeated for each head of a group, after the transposition."""
    x = sym.var('data0')
    parts = [sym.transpose(sym.reshape(part, shape=(0, 0, -1, SIZE)), axes=(0, 2, 1, 3))
             for part in _projections(norm(x, 'norm'), groups)]
    key, value = (sym.repeat(part, repeats=HEADS // groups, axis=1) for part in parts[1:])
    return _out(x, attend(parts[0], key, value))


def gqa_repeat_early(groups=2):
    """Keys and values are repeated before the transposition, without biases."""
    x = sym.var('data0')
    parts = [sym.reshape(part, shape=(SAMPLES, TIMES, -1, SIZE)) for part in _projections(x, groups, True)]
    parts[1:] = [sym.repeat(part, repeats=HEADS // groups, axis=2) for part in parts[1:]]
    return _out(x, _attend_merged(*[sym.swapaxes(part, dim1=1, dim2=2) for part in parts]))


def gqa_broadcast(groups=2):
    """Keys and values are broadcast in a dimension of their own, which a reshape joins with that of groups."""
    x = sym.var('data0')
    query, *others = [sym.transpose(sym.reshape(part, shape=(0, 0, -1, SIZE)), axes=(0, 2, 1, 3))
                      for part in _projections(x, groups)]
    others = [sym.reshape(sym.broadcast_axis(sym.expand_dims(part, axis=2), axis=2, size=HEADS // groups),
                          shape=(0, -3, 0, 0)) for part in others]
    return _out(x, _attend(query, *others))


def gqa_grouped(groups=2):
    """Queries of a group are rows of one product with the keys of the group."""
    x, inside = sym.var('data0'), HEADS // groups
    query, key, value = _projections(x, groups)
    query = sym.transpose(sym.reshape(query, shape=(0, 0, groups, inside, SIZE)), axes=(0, 2, 3, 1, 4))
    query = sym.reshape(query, shape=(-3, -3, 0))  # samples x groups, heads x times
    key, value = (sym.reshape(sym.transpose(sym.reshape(part, shape=(0, 0, groups, SIZE)), axes=(0, 2, 1, 3)),
                              shape=(-3, 0, 0)) for part in (key, value))
    scores = sym.reshape(sym.batch_dot(query, key, transpose_b=True), shape=(-4, SAMPLES, -1, -4, inside, -1, 0))
    scores = sym.reshape(_causal(sym.reshape(scores, shape=(0, -3, 0, 0))), shape=(-1, inside * TIMES, TIMES))
    context = sym.batch_dot(sym.softmax(scores), value)
    context = sym.reshape(context, shape=(SAMPLES, groups, inside, TIMES, SIZE))
    return _out(x, sym.reshape(sym.transpose(context, axes=(0, 3, 1, 2, 4)), shape=(0, 0, -1)))


def gqa_joint(groups=2):
    """A single projection computes queries, keys and values, which slices take apart."""
    x, each = sym.var('data0'), groups * SIZE
    joint = dense(x, HEADS * SIZE + 2 * each, 'joint')
    bounds = [0, HEADS * SIZE, HEADS * SIZE + each, HEADS * SIZE + 2 * each]
    parts = [sym.transpose(sym.reshape(sym.slice_axis(joint, axis=2, begin=begin, end=end), shape=(0, 0, -1, SIZE)),
                           axes=(0, 2, 1, 3)) for begin, end in zip(bounds, bounds[1:])]
    parts[1:] = [sym.repeat(part, repeats=HEADS // groups, axis=1) for part in parts[1:]]
    return _out(x, _attend(*parts))


def gqa_times_first(groups=2):
    """Times are the first dimension, and samples and heads the second one."""
    x = sym.transpose(sym.var('data0'), axes=(1, 0, 2))

    def part(name, heads):
        apart = sym.reshape(dense(x, heads * SIZE, name), shape=(TIMES, SAMPLES * heads, SIZE))
        return sym.transpose(sym.repeat(apart, repeats=HEADS // heads, axis=1), axes=(1, 0, 2))
    query, key, value = part('query', HEADS), part('key', groups), part('value', groups)
    context = sym.batch_dot(sym.softmax(sym.batch_dot(query, key, transpose_b=True)), value)
    context = sym.reshape(sym.transpose(context, axes=(1, 0, 2)), shape=(TIMES, SAMPLES, HEADS * SIZE))
    return sym.transpose(_out(x, context), axes=(1, 0, 2))


def gqa_channels_first(groups=2):
    """Times are the last dimension, and keys and values are stacked for each head of a group."""
    x = sym.var('data0')
    query, key, value = (sym.reshape(sym.transpose(part, axes=(0, 2, 1)), shape=(0, -4, -1, SIZE, 0))
                         for part in _projections(x, groups))
    key, value = (sym.reshape(sym.stack(*[part] * (HEADS // groups), axis=2), shape=(0, -3, 0, 0))
                  for part in (key, value))
    weights = sym.softmax(sym.linalg.gemm2(query, key, transpose_a=True))
    context = sym.reshape(sym.linalg.gemm2(value, weights, transpose_b=True), shape=(0, -3, 0))
    return _out(x, sym.transpose(context, axes=(0, 2, 1)))


def _mqa_keys(x):
    return dense(x, SIZE, 'key'), dense(x, SIZE, 'value')


def mqa_heads_first():
    """Heads x times are the rows of one product per sample."""
    x = sym.var('data0')
    key, value = _mqa_keys(x)
    query = sym.transpose(sym.reshape(dense(x, HEADS * SIZE, 'query'), shape=(0, 0, HEADS, SIZE)), axes=(0, 2, 1, 3))
    scores = sym.batch_dot(sym.reshape(query, shape=(0, -3, 0)), key, transpose_b=True)
    scores = _causal(sym.reshape(scores, shape=(0, -4, HEADS, -1, 0)))
    context = sym.batch_dot(sym.reshape(sym.softmax(scores), shape=(0, -3, 0)), value)
    context = sym.transpose(sym.reshape(context, shape=(0, -4, HEADS, -1, 0)), axes=(0, 2, 1, 3))
    return _out(x, sym.reshape(context, shape=(0, 0, -3)))


def mqa_times_first():
    """Times x heads are the rows: a reshape of the queries suffices."""
    x = sym.var('data0')
    key, value = _mqa_keys(x)
    query = sym.reshape(dense(x, HEADS * SIZE, 'query', no_bias=True), shape=(SAMPLES, TIMES * HEADS, SIZE))
    scores = sym.batch_dot(query, key, transpose_b=True)
    context = sym.batch_dot(sym.softmax(scores), value)
    return _out(x, sym.reshape(context, shape=(SAMPLES, TIMES, HEADS * SIZE)))


def mqa_transposed():
    """Heads x times are the columns: keys are the first factor."""
    x = sym.var('data0')
    key, value = _mqa_keys(x)
    query = sym.transpose(sym.reshape(dense(x, HEADS * SIZE, 'query'), shape=(0, 0, HEADS, SIZE)), axes=(0, 2, 1, 3))
    weights = sym.softmax(sym.batch_dot(key, sym.reshape(query, shape=(0, -3, 0)), transpose_b=True), axis=1)
    context = sym.reshape(sym.batch_dot(weights, value, transpose_a=True), shape=(0, -4, HEADS, -1, 0))
    return _out(x, sym.reshape(sym.transpose(context, axes=(0, 2, 1, 3)), shape=(0, 0, -3)))


def mqa_broadcast():
    """The only head of keys and values is broadcast to all heads."""
    x = sym.var('data0')
    key, value = (sym.broadcast_axis(sym.expand_dims(part, axis=1), axis=1, size=HEADS) for part in _mqa_keys(x))
    query = sym.transpose(sym.reshape(dense(x, HEADS * SIZE, 'query'), shape=(0, 0, HEADS, SIZE)), axes=(0, 2, 1, 3))
    return _out(x, _attend(query, key, value))


# -- windows ---------------------------------------------------------------------------------------------------------


def _window_attention(x, heads):
    """Attention inside of windows: an array of (samples x windows, positions, features)."""
    count, size = WINDOW ** 2, FEATURES // heads
    joint = sym.transpose(sym.reshape(dense(x, 3 * FEATURES, 'qkv'), shape=(-1, count, 3, heads, size)),
                          axes=(2, 0, 3, 1, 4))
    query, key, value = (sym.reshape(part, shape=(-3, 0, 0)) for part in sym.split(
        joint, num_outputs=3, axis=0, squeeze_axis=True))
    bias = sym.transpose(sym.reshape(sym.var('table', shape=(count * count, heads)), shape=(count, count, heads)),
                         axes=(2, 0, 1))
    scores = sym.reshape(sym.batch_dot(query, key, transpose_b=True), shape=(-4, -1, heads, 0, 0))
    scores = sym.softmax(sym.broadcast_add(scores, sym.expand_dims(bias, axis=0)))
    context = sym.reshape(sym.batch_dot(sym.reshape(scores, shape=(-3, 0, 0)), value), shape=(-4, -1, heads, 0, 0))
    return dense(sym.reshape(sym.transpose(context, axes=(0, 2, 1, 3)), shape=(0, 0, -1)), FEATURES, 'out')


def swin_five(heads=2, shifted=False):
    """Windows by reshapes of five dimensions, one for each side of the image."""
    x, along = sym.var('data0'), SIDE // WINDOW
    image = norm(x, 'norm')
    if shifted:
        for axis in (1, 2):
            image = sym.concat(sym.slice_axis(image, axis=axis, begin=1, end=None),
                               sym.slice_axis(image, axis=axis, begin=0, end=1), dim=axis)
    rows = sym.reshape(image, shape=(-1, WINDOW, along, WINDOW, FEATURES))  # samples x along, rows, along, columns
    windows = sym.reshape(sym.transpose(rows, axes=(0, 2, 1, 3, 4)), shape=(-1, WINDOW ** 2, FEATURES))
    made = sym.reshape(_window_attention(windows, heads), shape=(-1, along, WINDOW, WINDOW, FEATURES))
    return x + sym.reshape(sym.transpose(made, axes=(0, 2, 1, 3, 4)), shape=(-1, SIDE, SIDE, FEATURES))


def swin_of_positions(heads=2):
    """Positions of an image are one dimension, with a learned embedding; then windows of rows alone."""
    x = sym.broadcast_add(sym.var('data0'), sym.var('positions', shape=(1, SIDE * SIDE, FEATURES)))
    windows = sym.reshape(x, shape=(0, -4, SIDE, SIDE, 0))
    windows = sym.reshape(windows, shape=(-1, WINDOW ** 2, FEATURES))
    made = _window_attention(windows, heads)
    return x + sym.reshape(made, shape=(-1, SIDE * SIDE, FEATURES))


# -- mixtures of experts ---------------------------------------------------------------------------------------------


def _weight(name, *shape):
    return sym.var(name, shape=shape)


def _gates(x, experts, top=0, name='router'):
    """Return gates of (rows, experts): a softmax, of which the `top` highest remain; without a softmax for a negative
    number.
    """
    scores = dense(x, experts, name)
    if top < 0:
        return sym.sigmoid(scores)
    gates = sym.softmax(scores)
    if top:
        chosen = sym.topk(gates, k=top, axis=-1, ret_typ='indices')
        gates = gates * sym.cast(sym.sum(sym.one_hot(chosen, experts), axis=-2), 'float64')
        gates = sym.broadcast_div(gates, sym.sum(gates, axis=-1, keepdims=True))
    return gates


def _spread(rows, way, experts):
    """Return an array of (rows, features) once for each expert."""
    apart = sym.expand_dims(rows, axis=0)
    return {'broadcast': lambda: sym.broadcast_axis(apart, axis=0, size=experts),
            'to': lambda: sym.broadcast_to(apart, shape=(experts, 0, 0)),
            'tile': lambda: sym.tile(apart, reps=(experts, 1, 1)),
            'repeat': lambda: sym.repeat(apart, repeats=experts, axis=0),
            'stack': lambda: sym.stack(*[rows] * experts, axis=0),
            'concat': lambda: sym.concat(*[apart] * experts, dim=0)}[way]()


def _expert_layer(data, weights, name, inputs, outputs, experts):
    """Return a dense layer of each expert, with weights of several forms."""
    if weights == 'flipped':
        return sym.batch_dot(data, _weight(name, experts, outputs, inputs), transpose_b=True)
    if weights == 'gemm2':
        return sym.linalg.gemm2(data, _weight(name, experts, inputs, outputs))
    if weights == 'flat':
        flat = _weight(name, experts, inputs * outputs)
        return sym.batch_dot(data, sym.reshape(flat, shape=(0, inputs, outputs)))
    if weights == 'last':
        return sym.batch_dot(data, sym.transpose(_weight(name, inputs, outputs, experts), axes=(2, 0, 1)))
    if weights == 'first':
        return sym.transpose(sym.batch_dot(_weight(name, experts, outputs, inputs), data, transpose_b=True),
                             axes=(0, 2, 1))
    return sym.batch_dot(data, _weight(name, experts, inputs, outputs))


def _mixture(x, way='broadcast', top=0, bias=True, weights='', gated=False, combine='sum', experts=EXPERTS, name=''):
    """Return a mixture of experts of rows, with gates for all experts, and the gates."""
    gates, spread = _gates(x, experts, top, name + 'router'), _spread(x, way, experts)

    def layer(data, part, inputs, outputs):
        product = _expert_layer(data, weights, name + part, inputs, outputs, experts)
        return sym.broadcast_add(product, sym.expand_dims(_weight(name + part + '_bias', experts, outputs), axis=1)
                                 ) if bias else product
    hidden = layer(spread, 'up', FEATURES, HIDDEN)
    hidden = hidden * sym.sigmoid(hidden) * layer(spread, 'gate', FEATURES, HIDDEN) if gated else sym.relu(hidden)
    outputs = layer(hidden, 'down', HIDDEN, FEATURES)  # experts, rows, features
    by_expert = sym.expand_dims(sym.transpose(gates), axis=2)
    if combine == 'sum':
        out = sym.sum(sym.broadcast_mul(outputs, by_expert), axis=0)
    elif combine == 'mean':
        out = sym.mean(sym.broadcast_mul(outputs, by_expert), axis=0) * experts
    elif combine == 'product':
        out = sym.reshape(sym.batch_dot(sym.expand_dims(gates, axis=1), sym.transpose(outputs, axes=(1, 0, 2))),
                          shape=(-1, FEATURES))
    elif combine == 'last':
        weighted = sym.broadcast_mul(sym.transpose(outputs, axes=(1, 2, 0)), sym.expand_dims(gates, axis=1))
        out = sym.sum(weighted, axis=-1)
    elif combine == 'middle':
        weighted = sym.broadcast_mul(sym.swapaxes(outputs, dim1=0, dim2=1), sym.expand_dims(gates, axis=2))
        out = sym.sum(weighted, axis=1)
    else:
        parts = sym.split(outputs, num_outputs=experts, axis=0, squeeze_axis=True)
        columns = sym.split(gates, num_outputs=experts, axis=1)
        out = sym.add_n(*[sym.broadcast_mul(part, column) for part, column in zip(parts, columns)])
    return out, gates


def moe(**settings):
    """A mixture of experts with gates for all experts."""
    x = sym.var('data0')
    out, _ = _mixture(sym.reshape(norm(x, 'norm'), shape=(-3, 0)), **settings)
    return x + sym.reshape(out, shape=(-4, SAMPLES, -1, 0))


def moe_layers():
    """Two layers of attention and experts, and a loss that balances the load of experts."""
    x, losses = sym.var('data0'), []
    for name in ('first_', 'second_'):
        with mx.name.Prefix(name):
            parts = [sym.reshape(dense(x, FEATURES, part), shape=(0, 0, -1, SIZE)) for part in ('q', 'k', 'v')]
            x = x + dense(_attend(*[sym.transpose(part, axes=(0, 2, 1, 3)) for part in parts]), FEATURES, 'o')
        out, gates = _mixture(sym.reshape(norm(x, name + 'norm'), shape=(-3, 0)), top=2, bias=False, name=name)
        x = x + sym.reshape_like(out, x)
        share = sym.mean(sym.reshape(gates, shape=(-4, SAMPLES, -1, 0)), axis=1)  # samples, experts
        losses.append(sym.sum(share * share, axis=1))
    return sym.Group([x, losses[0] + losses[1]])


def moe_dispatched():
    """Rows are sent to places of experts by products with one_hot."""
    x, capacity = sym.var('data0'), 5
    rows = sym.reshape(x, shape=(-3, 0))
    gates = _gates(rows, EXPERTS)
    chosen = sym.one_hot(sym.argmax(gates, axis=-1), EXPERTS, dtype='float64')
    number = sym.cast(sym.contrib.arange_like(rows, axis=0), 'float64')
    places = sym.one_hot(number - sym.floor(number / capacity) * capacity, capacity, dtype='float64')
    dispatch = sym.broadcast_mul(sym.expand_dims(chosen, axis=2), sym.expand_dims(places, axis=1))
    sent = sym.dot(sym.transpose(dispatch, axes=(1, 2, 0)), rows)  # experts, capacity, features
    hidden = sym.relu(sym.batch_dot(sent, _weight('up', EXPERTS, FEATURES, HIDDEN)))
    made = sym.batch_dot(hidden, _weight('down', EXPERTS, HIDDEN, FEATURES))
    combine = sym.broadcast_mul(dispatch, sym.expand_dims(gates, axis=2))
    out = sym.dot(sym.reshape(combine, shape=(0, -3)), sym.reshape(made, shape=(-3, 0)))
    return x + sym.reshape(out, shape=(SAMPLES, TIMES, FEATURES))


def moe_by_sample():
    """Samples and experts are one dimension of products, with a copy of the weights for each sample."""
    x = sym.var('data0')

    def layer(data, name, *shape):
        copies = sym.broadcast_axis(sym.expand_dims(_weight(name, EXPERTS, *shape), axis=0), axis=0, size=SAMPLES)
        return sym.batch_dot(data, sym.reshape(copies, shape=(-3, 0, 0)))
    spread = sym.reshape(sym.broadcast_axis(sym.expand_dims(x, axis=1), axis=1, size=EXPERTS), shape=(-3, 0, 0))
    outputs = layer(sym.relu(layer(spread, 'up', FEATURES, HIDDEN)), 'down', HIDDEN, FEATURES)
    gates = sym.expand_dims(sym.transpose(sym.softmax(dense(x, EXPERTS, 'router')), axes=(0, 2, 1)), axis=3)
    return x + sym.sum(sym.broadcast_mul(sym.reshape(outputs, shape=(-4, -1, EXPERTS, 0, 0)), gates), axis=1)


def heads_of_weights():
    """Attention whose projections have a matrix for each head."""
    x = sym.var('data0')
    spread = _spread(sym.reshape(x, shape=(-3, 0)), 'broadcast', HEADS)
    parts = [sym.reshape(sym.batch_dot(spread, _weight(name, HEADS, FEATURES, SIZE)), shape=(0, SAMPLES, -1, SIZE))
             for name in ('query', 'key', 'value')]
    return _out(x, _attend(*[sym.transpose(part, axes=(1, 0, 2, 3)) for part in parts]))


IMAGES = (SAMPLES, SIDE, SIDE, FEATURES)
SEQUENCES = (SAMPLES, TIMES, FEATURES)
VARIANTS = {
    'gqa repeat': (gqa_repeat, {}), 'gqa repeat merged': (gqa_repeat, {'attend': _attend_merged}),
    'gqa repeat 4': (gqa_repeat, {'groups': 4}),
    'gqa repeat early': (gqa_repeat_early, {}), 'gqa repeat early 4': (gqa_repeat_early, {'groups': 4}),
    'gqa broadcast': (gqa_broadcast, {}), 'gqa broadcast 4': (gqa_broadcast, {'groups': 4}),
    'gqa grouped': (gqa_grouped, {}), 'gqa grouped 4': (gqa_grouped, {'groups': 4}),
    'gqa joint': (gqa_joint, {}), 'gqa times first': (gqa_times_first, {}),
    'gqa channels first': (gqa_channels_first, {}), 'mqa transposed': (mqa_transposed, {}),
    'mqa heads first': (mqa_heads_first, {}), 'mqa times first': (mqa_times_first, {}),
    'mqa broadcast': (mqa_broadcast, {}), 'mqa repeat': (gqa_repeat, {'groups': 1}),
    'swin': (swin_five, {}), 'swin of 4 heads': (swin_five, {'heads': 4}),
    'swin shifted': (swin_five, {'heads': 4, 'shifted': True}),
    'swin of positions': (swin_of_positions, {'heads': 4}),
    'moe': (moe, {}), 'moe top': (moe, {'top': 2}), 'moe to': (moe, {'way': 'to', 'bias': False}),
    'moe tile': (moe, {'way': 'tile', 'weights': 'flipped'}), 'moe repeat': (moe, {'way': 'repeat', 'top': 1}),
    'moe stack': (moe, {'way': 'stack', 'gated': True}), 'moe concat': (moe, {'way': 'concat', 'combine': 'product'}),
    'moe last': (moe, {'combine': 'last', 'weights': 'gemm2'}), 'moe middle': (moe, {'combine': 'middle', 'top': 2}),
    'moe mean': (moe, {'combine': 'mean', 'weights': 'flat'}), 'moe split': (moe, {'combine': 'split'}),
    'moe first': (moe, {'weights': 'first', 'top': -1}), 'moe transposed': (moe, {'weights': 'last', 'bias': False}),
    'moe of 2': (moe, {'experts': 2}), 'moe of 6': (moe, {'experts': 6, 'top': 2}),
    'moe layers': (moe_layers, {}), 'moe dispatched': (moe_dispatched, {}),
    'moe by sample': (moe_by_sample, {}), 'heads of weights': (heads_of_weights, {}),
}


def variant(name):
    """Return a network by its name, with data and weights."""
    with mx.name.NameManager():
        build, settings = VARIANTS[name]
        symbol = build(**settings)
    shape = IMAGES if name.startswith('swin') else SEQUENCES
    if name == 'swin of positions':
        shape = (SAMPLES, SIDE * SIDE, FEATURES)
    data = {'data0': np.random.RandomState(0).uniform(-1, 1, shape)}
    return Network(symbol, data, weights_of(symbol, data, 1), {'data0': 0})
