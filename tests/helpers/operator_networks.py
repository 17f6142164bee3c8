"""Small networks of operators, and the arrays that they get as inputs."""
import mxnet as mx
import numpy as np


def ids(rng, shape):
    return rng.randint(0, 7, shape).astype('float64')


def reals(rng, shape):
    return rng.uniform(-1, 1, shape)


def singles(rng, shape):
    """Numbers for operators that take float32 alone."""
    return rng.uniform(-1, 1, shape).astype('float32')


def edges(rng, shape):
    """Reals, of which some are exactly 0 or -0.0."""
    return np.where(rng.uniform(size=shape) < 0.5, rng.choice([0.0, -0.0], shape), rng.uniform(-1, 1, shape))


def masked(rng, shape):
    """Reals, of which the rows have -inf for all but two neighbours, the first two, say."""
    columns, first = np.arange(shape[-1]), rng.randint(0, shape[-1] - 1, shape[:-1])[..., None]
    return np.where((columns == first) | (columns == first + 1), rng.uniform(-1, 1, shape), -np.inf)


def infinite_but_in_the_middle(rng, shape):
    return np.where((np.arange(shape[0]) == 3)[:, None], rng.uniform(-1, 1, shape), -np.inf)


def threes(rng, shape):
    return np.full(shape, 3.0)


def classes(rng, shape):
    return rng.randint(0, 3, shape).astype('float64')


def read_by_many(x):
    """The gradients of the first two come last, and overwrite the sum where MXNet adds up in place."""
    return mx.sym.Group([mx.sym.clip(x, 0, 0.5), mx.sym.mean(x, axis=1)] + [mx.sym.sin(x * at) for at in range(1, 10)])


def dense(x):
    return mx.sym.FullyConnected(x, num_hidden=3, name='dense')


def language_model(ids, labels):
    """Cross-entropy of an LSTM, as gluon makes it."""
    embedded = mx.sym.Embedding(ids, input_dim=7, output_dim=6, name='embed')
    normal = mx.sym.LayerNorm(embedded, axis=-1, name='norm')
    series = mx.sym.SwapAxis(normal, dim1=0, dim2=1)
    states = [mx.sym.zeros(shape=(2, 0, 4), dtype='float64') for _ in range(2)]
    lstm = mx.sym.RNN(series, mx.sym.var('params', shape=(2 * 4 * 4 * 2 + 4 * 4 * (6 + 4 + 4 + 4),)), *states,
                      state_size=4, num_layers=2, mode='lstm', state_outputs=True, name='lstm')
    outputs = mx.sym.SwapAxis(lstm[0], dim1=0, dim2=1)
    logits = mx.sym.FullyConnected(outputs, num_hidden=7, flatten=False, name='out')
    loss = -mx.sym.pick(mx.sym.log_softmax(logits, axis=-1), labels, axis=-1, keepdims=True)
    return mx.sym.mean(loss, axis=0, exclude=True)


IDS, REALS, SINGLE, EDGES, MASKED = ids, reals, singles, edges, masked


def attention(x, lengths):
    """Self-attention of (times, samples, heads x 3 x features), masked, back to features."""
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.tanh(x), heads=2)
    lengths = mx.sym.cast(mx.sym.repeat(mx.sym.clip(lengths, 1, 4), repeats=2, axis=0), 'int32')
    lengths = mx.sym.broadcast_axis(mx.sym.expand_dims(lengths, axis=1), axis=1, size=4)
    return mx.sym.contrib.interleaved_matmul_selfatt_valatt(
        x, mx.sym.softmax(scores, length=lengths, use_length=True, axis=-1), heads=2)


def attention_by_reshape(x, mask, heads=2):
    """Self-attention of (samples, times, features) as gluonnlp writes it: samples and heads become one dimension."""
    def split(name):
        each = mx.sym.FullyConnected(x, num_hidden=4 * heads, flatten=False, name=name)
        apart = mx.sym.transpose(mx.sym.reshape(each, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))
        return mx.sym.reshape(apart, shape=(-1, 0, 0), reverse=True)
    query, key, value = map(split, ('query', 'key', 'value'))
    scores = mx.sym.batch_dot(query, key, transpose_b=True) / 2
    masks = mx.sym.broadcast_axis(mx.sym.expand_dims(mask, axis=1), axis=1, size=heads)
    masks = mx.sym.reshape(masks, shape=(-1, 0, 0), reverse=True)
    scores = mx.sym.where(masks > 2, scores, -1e9 * mx.sym.ones_like(scores))
    context = mx.sym.batch_dot(mx.sym.softmax(scores, axis=-1), value)
    context = mx.sym.transpose(mx.sym.reshape(context, shape=(-1, heads, 0, 0), reverse=True), axes=(0, 2, 1, 3))
    return mx.sym.FullyConnected(mx.sym.reshape(context, shape=(0, 0, -1)), num_hidden=5, flatten=False, name='out')


def attention_of_one_projection(x):
    """Self-attention of (samples, times, features) as GPT has it: a single projection, masked to former times."""
    joint = mx.sym.FullyConnected(x, num_hidden=3 * 6, flatten=False, name='joint')
    apart = mx.sym.reshape(joint, shape=(0, 0, 3, 3, -1))
    query, key, value = mx.sym.split(mx.sym.transpose(apart, axes=(2, 0, 3, 1, 4)), num_outputs=3, axis=0,
                                     squeeze_axis=True)
    scores = mx.sym.linalg.gemm2(query, key, transpose_b=True, alpha=0.7)
    past = mx.sym.broadcast_greater_equal(mx.sym.arange(4).reshape((4, 1)), mx.sym.arange(4).reshape((1, 4)))
    past = mx.sym.cast(past.reshape((1, 1, 4, 4)), 'float64')
    weights = mx.sym.softmax(mx.sym.broadcast_add(scores, (past - 1) * 1e9), axis=-1)
    context = mx.sym.transpose(mx.sym.linalg.gemm2(weights, value), axes=(0, 2, 1, 3))
    return mx.sym.FullyConnected(mx.sym.reshape(context, shape=(0, 0, -1)), num_hidden=5, flatten=False, name='out')


def projection_of_a_projection(x):
    """A projection of (3, heads, features) reads another one, which is not cut by heads there."""
    def products(joint):
        apart = mx.sym.transpose(mx.sym.reshape(joint, shape=(0, 0, 3, 2, -1)), axes=(2, 0, 3, 1, 4))
        query, key, value = mx.sym.split(apart, num_outputs=3, axis=0, squeeze_axis=True)
        return mx.sym.linalg.gemm2(mx.sym.softmax(mx.sym.linalg.gemm2(query, key, transpose_b=True)), value)
    first = mx.sym.FullyConnected(x, num_hidden=3 * 4, flatten=False, name='first')
    second = mx.sym.FullyConnected(mx.sym.tanh(first), num_hidden=3 * 4, flatten=False, name='second')
    return products(first) + products(second)


def attention_of_joint_weights(x):
    """Self-attention of (times, samples, features) as gluonnlp's BERT has it: one weight is made of three."""
    heads, features = 3, 2
    weights = [mx.sym.reshape(mx.sym.var(name, shape=(heads * features, 5)), shape=(heads, -1, 5))
               for name in ('query', 'key', 'value')]
    biases = [mx.sym.reshape(mx.sym.var(name + '_bias', shape=(heads * features,)), shape=(heads, -1))
              for name in ('query', 'key', 'value')]
    joint = mx.sym.FullyConnected(x, mx.sym.reshape(mx.sym.concat(*weights, dim=1), shape=(-3, 0)),
                                  mx.sym.reshape(mx.sym.concat(*biases, dim=1), shape=(-1,)),
                                  num_hidden=3 * heads * features, flatten=False, name='joint')
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.cast(joint, 'float32'), heads=heads)
    context = mx.sym.contrib.interleaved_matmul_selfatt_valatt(mx.sym.cast(joint, 'float32'),
                                                               mx.sym.softmax(scores), heads=heads)
    return mx.sym.FullyConnected(mx.sym.cast(context, 'float64'), num_hidden=5, flatten=False, name='out')


def attention_weights(x):
    """Attention weights are an output, of samples and heads in one dimension; dropout is off."""
    apart = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, 3, 2)), axes=(0, 2, 1, 3)).reshape((-3, 0, 0))
    lengths = mx.sym.repeat(mx.sym.cast(mx.sym.slice_axis(mx.sym.sum(x * 0, axis=-1), axis=1, begin=0, end=1) + 3,
                                        'int32'), repeats=3, axis=0)
    lengths = mx.sym.broadcast_axis(lengths, axis=1, size=4)
    weights = mx.sym.softmax(mx.sym.batch_dot(apart, apart, transpose_b=True), length=lengths, use_length=True)
    return mx.sym.Group([weights, mx.sym.batch_dot(weights, apart)])


def attention_between(queries, keys):
    scores = mx.sym.contrib.interleaved_matmul_encdec_qk(mx.sym.tanh(queries), keys, heads=2)
    return mx.sym.contrib.interleaved_matmul_encdec_valatt(keys, mx.sym.softmax(scores), heads=2)


def heads(x):
    """Attention of (samples, times, heads x features), as it is written by hand."""
    heads = mx.sym.reshape(mx.sym.transpose(mx.sym.reshape(mx.sym.tanh(x), shape=(0, 0, 2, -1)), axes=(0, 2, 1, 3)),
                           shape=(-1, 0, 0), reverse=True)
    scores = mx.sym.softmax(mx.sym.batch_dot(mx.sym.contrib.div_sqrt_dim(heads), heads, transpose_b=True))
    context = mx.sym.transpose(mx.sym.reshape(mx.sym.batch_dot(scores, heads), shape=(-4, -1, 2, 0, 0)),
                               axes=(0, 2, 1, 3))
    return mx.sym.reshape_like(context, x)


def sequences(x, lengths):
    lengths = mx.sym.clip(lengths, 1, 4)
    masked = mx.sym.SequenceMask(mx.sym.tanh(x), lengths, use_sequence_length=True, value=0.5)
    turned = mx.sym.SequenceReverse(masked * 2, lengths, use_sequence_length=True)
    return mx.sym.Group([turned, mx.sym.SequenceLast(turned, lengths, use_sequence_length=True)])


def single(x):
    return mx.sym.cast(x, dtype='float32')


def regions(positions):
    """Regions (image, left, top, right, bottom) of three images, of numbers of shape (3, 2, 5)."""
    numbers = mx.sym.split(mx.sym.cast(mx.sym.reshape(positions, shape=(-1, 5)), 'float32'), num_outputs=5, axis=1)
    return mx.sym.concat(mx.sym.clip(numbers[0], 0, 2), numbers[1], numbers[2], numbers[1] + numbers[3] + 1,
                         numbers[2] + numbers[4] + 1, dim=1)


def boxes_of_samples(x, positions):
    """Training targets and detections of SSD, of two classes and labels of shape (3, 2, 5)."""
    anchors = mx.sym.contrib.MultiBoxPrior(mx.sym.tanh(x), sizes=(0.5, 0.3), ratios=(1, 2), clip=True)
    scores = mx.sym.reshape(mx.sym.Convolution(x, num_filter=9, kernel=(1, 1), name='classes'), shape=(0, 3, -1))
    moves = mx.sym.reshape(mx.sym.Convolution(x, num_filter=12, kernel=(1, 1), name='moves'), shape=(0, -1))
    numbers = mx.sym.split(mx.sym.cast(positions, 'float32') / 14, num_outputs=5, axis=2)
    labels = mx.sym.concat(numbers[0] > 0.2, numbers[1], numbers[2], numbers[1] + numbers[3], numbers[2] + numbers[4],
                           dim=2)
    targets = mx.sym.contrib.MultiBoxTarget(anchors, labels, scores, negative_mining_ratio=2,
                                            negative_mining_thresh=0.4, overlap_threshold=0.3)
    return mx.sym.Group([mx.sym.BlockGrad(one) for one in targets] + [
        mx.sym.BlockGrad(mx.sym.contrib.MultiBoxDetection(mx.sym.softmax(scores, axis=1), moves, anchors)), moves,
        mx.sym.BlockGrad(anchors)])


def encoded(x, y):
    """Targets of boxes, of which the second half is matched."""
    matches = mx.sym.cast(mx.sym.slice_axis(x, axis=2, begin=0, end=1) > 0, 'float32').reshape((0, -1))
    shared = [mx.sym.zeros(4), mx.sym.ones(4)]
    return list(mx.sym.contrib.box_encode(matches * 2 - 1, matches, mx.sym.abs(x), mx.sym.abs(y), *shared))


def definite(x):
    """Return positive definite matrices."""
    return mx.sym.broadcast_add(mx.sym.linalg.gemm2(x, x, transpose_b=True), mx.sym.reshape(
        mx.sym.eye(3, dtype='float64'), shape=(1, 1, 3, 3)))


def two_inputs_behind_each_other(x, y):
    joint = mx.sym.concat(mx.sym.tanh(x), y, mx.sym.sin(y), dim=0)
    output = mx.sym.FullyConnected(joint, num_hidden=3, name='dense')
    first, second, third = mx.sym.split(output, num_outputs=3, axis=0)
    return mx.sym.Group([output, first * second - third, mx.sym.slice_axis(output, axis=0, begin=0, end=10),
                         mx.sym.reshape(output, shape=(3, -1, 3))])
