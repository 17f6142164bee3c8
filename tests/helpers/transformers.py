"""Symbols of small Transformers, written in each usual way."""
import mxnet as mx
import numpy as np

from .split_networks import Network, weights_of

WORDS, FEATURES, HEADS, TIMES, SAMPLES = 14, 8, 4, 6, 4


def dense(x, outputs, name, **settings):
    """Return a dense layer of the last dimension."""
    return mx.sym.FullyConnected(x, num_hidden=outputs, flatten=False, name=name, **settings)


def norm(x, name):
    """Return a LayerNorm of the last dimension."""
    return mx.sym.LayerNorm(x, axis=-1, name=name)


def gelu(x):
    """Return the activation by elementary operators."""
    return x * (mx.sym.erf(x / 2 ** 0.5) + 1) * 0.5


def feed_forward(x, name, activation=gelu, features=FEATURES):
    """Return two dense layers and an activation."""
    hidden = activation(dense(x, 4 * features, name + '_ffn1'))
    return dense(mx.sym.Dropout(hidden, p=0.0), features, name + '_ffn2')


def _gpt_attention(x, name, fused, features=FEATURES):
    """Return attention to former times."""
    if fused:
        joint = mx.sym.reshape(dense(x, 3 * features, name + '_qkv'), shape=(0, 0, 3, HEADS, -1))
        query, key, value = mx.sym.split(mx.sym.transpose(joint, axes=(2, 0, 3, 1, 4)), num_outputs=3, axis=0,
                                         squeeze_axis=True)
    else:
        query, key, value = (mx.sym.transpose(mx.sym.reshape(dense(x, features, name + '_' + part),
                                                             shape=(0, 0, HEADS, -1)), axes=(0, 2, 1, 3))
                             for part in ('query', 'key', 'value'))
    scores = mx.sym.linalg.gemm2(query, key, transpose_b=True, alpha=(features // HEADS) ** -0.5)
    times = mx.sym.arange(TIMES)
    past = mx.sym.broadcast_greater_equal(times.reshape((TIMES, 1)), times.reshape((1, TIMES)))
    past = mx.sym.cast(past.reshape((1, 1, TIMES, TIMES)), 'float64')
    scores = mx.sym.broadcast_add(scores, (past - 1) * 1e9)
    weights = mx.sym.Dropout(mx.sym.softmax(scores, axis=-1), p=0.0)
    context = mx.sym.transpose(mx.sym.linalg.gemm2(weights, value), axes=(0, 2, 1, 3))
    return dense(mx.sym.reshape(context, shape=(0, 0, -1)), features, name + '_out')


def _gpt(fused, layers=2, tied=True, words=WORDS, features=FEATURES):
    ids, labels = mx.sym.var('data0'), mx.sym.var('data1')
    table = mx.sym.var('words_weight', shape=(words, features))
    x = mx.sym.Embedding(ids, table, input_dim=words, output_dim=features, name='words')
    x = mx.sym.broadcast_add(x, mx.sym.var('positions', shape=(1, TIMES, features)))
    x = mx.sym.Dropout(x, p=0.0)
    for layer in range(layers):
        name = 'layer%d' % layer
        x = x + mx.sym.Dropout(_gpt_attention(norm(x, name + '_norm1'), name, fused, features), p=0.0)
        x = x + mx.sym.Dropout(feed_forward(norm(x, name + '_norm2'), name, features=features), p=0.0)
    x = norm(x, 'norm')
    logits = dense(x, words, 'decoder', weight=table, no_bias=True) if tied else dense(x, words, 'decoder')
    loss = -mx.sym.pick(mx.sym.log_softmax(logits, axis=-1), labels, axis=-1)
    return mx.sym.mean(loss, axis=1), {'data0': 0, 'data1': 0}, 'float64'


def _bert(layers=1):
    """An encoder with samples and heads in one dimension, a mask, and words as outputs of the network."""
    ids, lengths = mx.sym.var('data0'), mx.sym.var('data1')
    x = mx.sym.Embedding(ids, input_dim=WORDS, output_dim=FEATURES, name='words')
    x = mx.sym.Dropout(norm(x, 'norm'), p=0.0)
    times = mx.sym.contrib.arange_like(ids, axis=1)
    mask = mx.sym.broadcast_lesser(mx.sym.reshape(times, shape=(1, -1)), mx.sym.reshape(lengths + 1, shape=(-1, 1)))
    mask = mx.sym.broadcast_axis(mx.sym.reshape(mask, shape=(0, 1, 1, -1)), axis=(1, 2), size=(HEADS, TIMES))
    mask = mx.sym.reshape(mask, shape=(-1, 0, 0), reverse=True)
    for layer in range(layers):
        name = 'layer%d' % layer

        def split(part, x=x, name=name):
            apart = mx.sym.reshape(dense(x, FEATURES, name + '_' + part), shape=(0, 0, HEADS, -1))
            return mx.sym.reshape(mx.sym.transpose(apart, axes=(0, 2, 1, 3)), shape=(-1, 0, 0), reverse=True)
        query, key, value = map(split, ('query', 'key', 'value'))
        scores = mx.sym.batch_dot(mx.sym.contrib.div_sqrt_dim(query), key, transpose_b=True)
        scores = mx.sym.where(mask, scores, -1e9 * mx.sym.ones_like(scores))
        context = mx.sym.batch_dot(mx.sym.Dropout(mx.sym.softmax(scores, axis=-1), p=0.0), value)
        context = mx.sym.transpose(mx.sym.reshape(context, shape=(-1, HEADS, 0, 0), reverse=True), axes=(0, 2, 1, 3))
        context = dense(mx.sym.reshape(context, shape=(0, 0, -1)), FEATURES, name + '_out')
        x = norm(mx.sym.Dropout(context, p=0.0) + x, name + '_norm1')
        x = norm(x + feed_forward(x, name), name + '_norm2')
    pooled = dense(mx.sym.reshape(mx.sym.slice_axis(x, axis=1, begin=0, end=1), shape=(0, -1)), FEATURES, 'pooler')
    return mx.sym.Group([mx.sym.tanh(pooled), dense(x, WORDS, 'decoder')]), {'data0': 0, 'data1': 0}, 'float64'


def _gluonnlp():
    """A layer as GluonNLP 0.10 writes it: weights of queries, keys and values are woven together, head by head."""
    x, lengths = mx.sym.var('data0'), mx.sym.var('data1')
    woven = []
    for what, inner in (('weight', (FEATURES,)), ('bias', ())):
        parts = [mx.sym.reshape(mx.sym.var('%s_%s' % (part, what), shape=(FEATURES,) + inner),
                                shape=(HEADS, -1) + (0,) * len(inner), reverse=bool(inner))
                 for part in ('query', 'key', 'value')]
        shape = (-1,) + inner
        woven.append(mx.sym.reshape(mx.sym.concat(*parts, dim=1), shape=shape))
    x = mx.sym.transpose(mx.sym.tanh(x), axes=(1, 0, 2))
    joint = dense(x, 3 * FEATURES, 'qkv', weight=woven[0], bias=woven[1])
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(joint, heads=HEADS)
    lengths = mx.sym.repeat(mx.sym.cast(mx.sym.clip(lengths, 1, TIMES), 'int32'), repeats=HEADS, axis=0)
    lengths = mx.sym.broadcast_axis(mx.sym.expand_dims(lengths, axis=1), axis=1, size=TIMES)
    weights = mx.sym.Dropout(mx.sym.softmax(scores, length=lengths, use_length=True, axis=-1), p=0.0)
    context = mx.sym.contrib.interleaved_matmul_selfatt_valatt(joint, weights, heads=HEADS)
    x = norm(mx.sym.Dropout(dense(context, FEATURES, 'out'), p=0.0) + x, 'norm1')
    x = norm(x + feed_forward(x, 'cell', lambda x: mx.sym.LeakyReLU(x, act_type='gelu')), 'norm2')
    return mx.sym.transpose(x, axes=(1, 0, 2)), {'data0': 0, 'data1': 0}, 'float32'


def _sockeye():
    """Layers of an encoder and a decoder, as Sockeye writes them: times are the first dimension."""
    source, target = mx.sym.var('data0'), mx.sym.var('data1')
    joint = dense(norm(source, 'norm1'), 3 * FEATURES, 'self_in', no_bias=True)
    weights = mx.sym.softmax(mx.sym.contrib.interleaved_matmul_selfatt_qk(joint, heads=HEADS), axis=-1)
    context = mx.sym.contrib.interleaved_matmul_selfatt_valatt(joint, mx.sym.Dropout(weights, p=0.0), heads=HEADS)
    source = source + mx.sym.Dropout(dense(context, FEATURES, 'self_out', no_bias=True), p=0.0)
    source = source + feed_forward(norm(source, 'norm2'), 'self', mx.sym.relu)
    queries = dense(norm(target, 'norm3'), FEATURES, 'between_q', no_bias=True)
    both = dense(source, 2 * FEATURES, 'between_kv', no_bias=True)
    weights = mx.sym.softmax(mx.sym.contrib.interleaved_matmul_encdec_qk(queries, both, heads=HEADS))
    context = mx.sym.contrib.interleaved_matmul_encdec_valatt(both, weights, heads=HEADS)
    made = target + dense(context, FEATURES, 'between_out', no_bias=True)
    return dense(mx.sym.reshape(made, shape=(-3, 0)), WORDS, 'output'), {'data0': 1, 'data1': 1}, 'float32'


def _sockeye_decoder():
    """Attention of Sockeye's decoder to its former times: keys and values are joined behind a state of one time, which
    attention leaves out, and the joint projection does not keep the features of a head together.
    """
    target, state = mx.sym.var('data0'), mx.sym.var('data1')
    joint = dense(norm(target, 'norm1'), 3 * FEATURES, 'self_in', no_bias=True)
    queries, first, second = mx.sym.split(joint, num_outputs=3, axis=2)
    state = mx.sym.zeros_like(mx.sym.slice_axis(mx.sym.concat(state, state, dim=2), axis=0, begin=0, end=1))
    both = mx.sym.slice(mx.sym.concat(state, mx.sym.concat(first, second, dim=2), dim=0), begin=(1, None, None),
                        end=(None, None, None))
    scores = mx.sym.contrib.interleaved_matmul_encdec_qk(queries, both, heads=HEADS)
    times = mx.sym.contrib.arange_like(target, axis=0)
    later = mx.sym.broadcast_greater(mx.sym.expand_dims(times, axis=0), mx.sym.expand_dims(times, axis=1))
    scores = mx.sym.broadcast_add(scores, mx.sym.BlockGrad(mx.sym.expand_dims(later * -1e8, axis=0)))
    context = mx.sym.contrib.interleaved_matmul_encdec_valatt(both, mx.sym.softmax(scores), heads=HEADS)
    target = target + dense(context, FEATURES, 'self_out', no_bias=True)
    return target + feed_forward(norm(target, 'norm2'), 'self', mx.sym.relu), {'data0': 1, 'data1': 1}, 'float32'


def _gated():
    """Feed-forward layers with a gate, without attention."""
    x = mx.sym.var('data0')
    gate, up = dense(x, 3 * FEATURES, 'gate'), dense(x, 3 * FEATURES, 'up')
    hidden = gate * mx.sym.sigmoid(gate) * up
    return x + dense(hidden, FEATURES, 'down'), {'data0': 0}, 'float64'


_NETWORKS = {
    'gpt': lambda: _gpt(False), 'gpt of one projection': lambda: _gpt(True),
    'gpt with a decoder of its own': lambda: _gpt(False, 1, False),
    'gpt with many words': lambda: _gpt(False, words=512, features=64), 'bert': _bert, 'gluonnlp': _gluonnlp,
    'sockeye': _sockeye, 'sockeye decoder': _sockeye_decoder, 'gated': _gated}

#: The networks that are small enough to be computed.
NAMES = sorted(set(_NETWORKS) - {'gpt with many words'})


def network(name, samples=SAMPLES):
    """Return a network by its name, with data and weights."""
    with mx.name.NameManager():  # names are the same each time
        symbol, axes, dtype = _NETWORKS[name]()
    rng = np.random.RandomState(0)
    sizes = {'gpt': [(samples, TIMES)] * 2, 'bert': [(samples, TIMES), (samples,)],
             'gluonnlp': [(samples, TIMES, FEATURES), (samples,)],
             'sockeye': [(TIMES, samples, FEATURES), (TIMES - 1, samples, FEATURES)],
             'gated': [(samples, TIMES, FEATURES)]}[name.split()[0]]
    data = {key: rng.uniform(-1, 1, shape) if len(shape) == 3 else rng.randint(1, TIMES, shape).astype('float64')
            for key, shape in zip(sorted(axes), sizes)}
    weights = weights_of(symbol, data, 1)
    data, weights = ({key: array.astype(dtype) for key, array in arrays.items()} for arrays in (data, weights))
    return Network(symbol, data, weights, axes)
