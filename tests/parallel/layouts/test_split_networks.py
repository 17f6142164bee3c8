"""Random networks, split at random over 2 and 4 ranks: outputs and gradients equal those of the whole network."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mxhybrid.parallel.ops.graph import Graph
from mxhybrid.parallel.ops.tracing import dimensions_of
from mxhybrid.parallel.sharding.split import Split

from ...helpers import split_networks
from ...helpers.split_networks import Layers, Ranks, drawn_splits, run_whole, weights_of


@pytest.fixture(scope='module', params=[2, 4], ids='{} ranks'.format)
def ranks(request):
    made = Ranks(request.param)
    yield made
    made.close()


@pytest.fixture(scope='module')
def four():
    made = Ranks(4)
    yield made
    made.close()


def compare(ranks, symbol, data, weights, draw, tolerance=1e-10, axes=None):
    """Split all operators as is drawn, and compare with the whole."""
    graph = Graph(symbol, {name: array.shape for name, array in data.items()},
                  {name: array.dtype for name, array in {**data, **weights}.items()})
    dimensions_of(graph, axes or dict.fromkeys(data, 0))  # gives it the factors of dimensions that contain heads
    whole, whole_gradients = run_whole(symbol, data, weights)
    found, gradients, _ = ranks.run(symbol, data, weights, drawn_splits(draw, graph, ranks.count), axes=axes)
    for one, other in zip(found, whole):
        np.testing.assert_allclose(one.reshape(other.shape), other, rtol=tolerance, atol=tolerance)
    for name, gradient in whole_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=10 * tolerance, atol=10 * tolerance, err_msg=name)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_networks_of_images(ranks, drawn):
    samples = drawn.draw(st.integers(1, 5))
    layers = Layers(drawn.draw, samples, drawn.draw(st.integers(1, 4)), drawn.draw(st.integers(3, 9)))
    data = {'data': np.random.RandomState(0).uniform(-1, 1, layers.first)}
    compare(ranks, layers.symbol, data, weights_of(layers.symbol, data, 1), drawn.draw)


def test_ranks_that_take_too_long_are_started_anew(four, monkeypatch):
    symbol = mx.sym.FullyConnected(mx.sym.var('data', dtype='float64'), num_hidden=3, name='dense')
    data = {'data': np.random.RandomState(0).uniform(-1, 1, (4, 2))}
    other = {'data': np.random.RandomState(1).uniform(-1, 1, (5, 2))}
    graph = Graph(symbol, {'data': (4, 2)}, {'data': 'float64'})
    splits = {one.number: Split([4, 1], [0, 1, 2, 3]) for one in graph.computing}
    monkeypatch.setattr(split_networks, 'ANSWER_S', 0.0)
    with pytest.raises(AssertionError, match='rank 0'):
        four.run(symbol, data, weights_of(symbol, data, 1), splits)
    monkeypatch.undo()
    weights = weights_of(symbol, other, 2)
    found, _, _ = four.run(symbol, other, weights, splits)
    whole, _ = run_whole(symbol, other, weights)
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-12)


def test_data_of_which_the_shape_alone_is_read_has_a_gradient_of_zeros(four):
    symbol = mx.sym.slice_like(mx.sym.tanh(mx.sym.var('data')), mx.sym.var('like'))
    data = {name: np.random.RandomState(0).uniform(-1, 1, shape) for name, shape in
            (('data', (4, 3)), ('like', (4, 2)))}
    graph = Graph(symbol, {name: array.shape for name, array in data.items()}, dict.fromkeys(data, 'float64'))
    splits = {operator.number: Split([4, 1], [0, 1, 2, 3]) for operator in graph.computing}
    whole, whole_gradients = run_whole(symbol, data, {})
    outputs, gradients, _ = four.run(symbol, data, {}, splits)
    np.testing.assert_allclose(outputs[0], whole[0], rtol=1e-12)
    assert sorted(gradients) == sorted(whole_gradients) == ['data', 'like']
    np.testing.assert_allclose(gradients['data'], whole_gradients['data'], rtol=1e-12)
    np.testing.assert_array_equal(gradients['like'], np.zeros((4, 2)))


def _ids(rng, shape):
    return rng.randint(0, 7, shape).astype('float64')


def _reals(rng, shape):
    return rng.uniform(-1, 1, shape)


def _singles(rng, shape):
    """Numbers for operators that take float32 alone."""
    return rng.uniform(-1, 1, shape).astype('float32')


def _edges(rng, shape):
    """Reals, of which some are exactly 0 or -0.0."""
    return np.where(rng.uniform(size=shape) < 0.5, rng.choice([0.0, -0.0], shape), rng.uniform(-1, 1, shape))


def _masked(rng, shape):
    """Reals, of which the rows have -inf for all but two neighbours, the first two, say."""
    columns, first = np.arange(shape[-1]), rng.randint(0, shape[-1] - 1, shape[:-1])[..., None]
    return np.where((columns == first) | (columns == first + 1), rng.uniform(-1, 1, shape), -np.inf)


def _infinite_but_in_the_middle(rng, shape):
    return np.where((np.arange(shape[0]) == 3)[:, None], rng.uniform(-1, 1, shape), -np.inf)


def _threes(rng, shape):
    return np.full(shape, 3.0)


def _classes(rng, shape):
    return rng.randint(0, 3, shape).astype('float64')


def _read_by_many(x):
    """The gradients of the first two come last, and overwrite the sum where MXNet adds up in place."""
    return mx.sym.Group([mx.sym.clip(x, 0, 0.5), mx.sym.mean(x, axis=1)] + [mx.sym.sin(x * at) for at in range(1, 10)])


def _dense(x):
    return mx.sym.FullyConnected(x, num_hidden=3, name='dense')


def _language_model(ids, labels):
    """Cross-entropy of an LSTM, as gluon makes it."""
    embedded = mx.sym.Embedding(ids, input_dim=7, output_dim=6, name='embed')
    normal = mx.sym.LayerNorm(embedded, axis=-1, name='norm')
    series = mx.sym.SwapAxis(normal, dim1=0, dim2=1)
    states = [mx.sym.zeros(shape=(2, 0, 4), dtype='float64') for _ in range(2)]
    made = mx.sym.RNN(series, mx.sym.var('params', shape=(2 * 4 * 4 * 2 + 4 * 4 * (6 + 4 + 4 + 4),)), *states,
                      state_size=4, num_layers=2, mode='lstm', state_outputs=True, name='lstm')
    outputs = mx.sym.SwapAxis(made[0], dim1=0, dim2=1)
    logits = mx.sym.FullyConnected(outputs, num_hidden=7, flatten=False, name='out')
    loss = -mx.sym.pick(mx.sym.log_softmax(logits, axis=-1), labels, axis=-1, keepdims=True)
    return mx.sym.mean(loss, axis=0, exclude=True)


IDS, REALS, SINGLE, EDGES, MASKED = _ids, _reals, _singles, _edges, _masked


def _attention(x, lengths):
    """Self-attention of (times, samples, heads x 3 x features), masked, back to features."""
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(mx.sym.tanh(x), heads=2)
    lengths = mx.sym.cast(mx.sym.repeat(mx.sym.clip(lengths, 1, 4), repeats=2, axis=0), 'int32')
    lengths = mx.sym.broadcast_axis(mx.sym.expand_dims(lengths, axis=1), axis=1, size=4)
    return mx.sym.contrib.interleaved_matmul_selfatt_valatt(
        x, mx.sym.softmax(scores, length=lengths, use_length=True, axis=-1), heads=2)


def _attention_by_reshape(x, mask, heads=2):
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


def _attention_of_one_projection(x):
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


def _projection_of_a_projection(x):
    """A projection of (3, heads, features) reads another one, which is not cut by heads there."""
    def products(joint):
        apart = mx.sym.transpose(mx.sym.reshape(joint, shape=(0, 0, 3, 2, -1)), axes=(2, 0, 3, 1, 4))
        query, key, value = mx.sym.split(apart, num_outputs=3, axis=0, squeeze_axis=True)
        return mx.sym.linalg.gemm2(mx.sym.softmax(mx.sym.linalg.gemm2(query, key, transpose_b=True)), value)
    first = mx.sym.FullyConnected(x, num_hidden=3 * 4, flatten=False, name='first')
    second = mx.sym.FullyConnected(mx.sym.tanh(first), num_hidden=3 * 4, flatten=False, name='second')
    return products(first) + products(second)


def _attention_of_joint_weights(x):
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


def _attention_weights(x):
    """Attention weights are an output, of samples and heads in one dimension; dropout is off."""
    apart = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, 3, 2)), axes=(0, 2, 1, 3)).reshape((-3, 0, 0))
    lengths = mx.sym.repeat(mx.sym.cast(mx.sym.slice_axis(mx.sym.sum(x * 0, axis=-1), axis=1, begin=0, end=1) + 3,
                                        'int32'), repeats=3, axis=0)
    lengths = mx.sym.broadcast_axis(lengths, axis=1, size=4)
    weights = mx.sym.softmax(mx.sym.batch_dot(apart, apart, transpose_b=True), length=lengths, use_length=True)
    return mx.sym.Group([weights, mx.sym.batch_dot(weights, apart)])


def _attention_between(queries, keys):
    scores = mx.sym.contrib.interleaved_matmul_encdec_qk(mx.sym.tanh(queries), keys, heads=2)
    return mx.sym.contrib.interleaved_matmul_encdec_valatt(keys, mx.sym.softmax(scores), heads=2)


def _heads(x):
    """Attention of (samples, times, heads x features), as it is written by hand."""
    heads = mx.sym.reshape(mx.sym.transpose(mx.sym.reshape(mx.sym.tanh(x), shape=(0, 0, 2, -1)), axes=(0, 2, 1, 3)),
                           shape=(-1, 0, 0), reverse=True)
    scores = mx.sym.softmax(mx.sym.batch_dot(mx.sym.contrib.div_sqrt_dim(heads), heads, transpose_b=True))
    made = mx.sym.transpose(mx.sym.reshape(mx.sym.batch_dot(scores, heads), shape=(-4, -1, 2, 0, 0)), axes=(0, 2, 1, 3))
    return mx.sym.reshape_like(made, x)


def _sequences(x, lengths):
    lengths = mx.sym.clip(lengths, 1, 4)
    masked = mx.sym.SequenceMask(mx.sym.tanh(x), lengths, use_sequence_length=True, value=0.5)
    turned = mx.sym.SequenceReverse(masked * 2, lengths, use_sequence_length=True)
    return mx.sym.Group([turned, mx.sym.SequenceLast(turned, lengths, use_sequence_length=True)])


def _single(x):
    return mx.sym.cast(x, dtype='float32')


def _regions(positions):
    """Regions (image, left, top, right, bottom) of three images, of numbers of shape (3, 2, 5)."""
    numbers = mx.sym.split(mx.sym.cast(mx.sym.reshape(positions, shape=(-1, 5)), 'float32'), num_outputs=5, axis=1)
    return mx.sym.concat(mx.sym.clip(numbers[0], 0, 2), numbers[1], numbers[2], numbers[1] + numbers[3] + 1,
                         numbers[2] + numbers[4] + 1, dim=1)


def _boxes_of_samples(x, positions):
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


def _encoded(x, y):
    """Targets of boxes, of which the second half is matched."""
    matches = mx.sym.cast(mx.sym.slice_axis(x, axis=2, begin=0, end=1) > 0, 'float32').reshape((0, -1))
    shared = [mx.sym.zeros(4), mx.sym.ones(4)]
    return list(mx.sym.contrib.box_encode(matches * 2 - 1, matches, mx.sym.abs(x), mx.sym.abs(y), *shared))


def _definite(x):
    """Return positive definite matrices."""
    return mx.sym.broadcast_add(mx.sym.linalg.gemm2(x, x, transpose_b=True), mx.sym.reshape(
        mx.sym.eye(3, dtype='float64'), shape=(1, 1, 3, 3)))


def _two_inputs_behind_each_other(x, y):
    joint = mx.sym.concat(mx.sym.tanh(x), y, mx.sym.sin(y), dim=0)
    made = mx.sym.FullyConnected(joint, num_hidden=3, name='dense')
    first, second, third = mx.sym.split(made, num_outputs=3, axis=0)
    return mx.sym.Group([made, first * second - third, mx.sym.slice_axis(made, axis=0, begin=0, end=10),
                         mx.sym.reshape(made, shape=(3, -1, 3))])


#: Functions that build a network, with the kinds and shapes of its inputs, and the dimensions that have the samples, if
#: not the first.
OPERATORS = {
    'attention': (_attention, [(SINGLE, (4, 4, 12)), (IDS, (4,))], (1, 0)),
    'attention between': (_attention_between, [(SINGLE, (3, 4, 4)), (SINGLE, (4, 4, 8))], (1, 1)),
    'attention by reshape': (_attention_by_reshape, [(REALS, (3, 4, 6)), (IDS, (3, 4, 4))]),
    'attention of one projection': (_attention_of_one_projection, [(REALS, (3, 4, 5))]),
    'attention of joint weights': (_attention_of_joint_weights, [(REALS, (4, 3, 5))], (1,)),
    'attention of two projections': (_projection_of_a_projection, [(REALS, (3, 4, 5))]),
    'attention weights': (_attention_weights, [(REALS, (3, 4, 6))]),
    'heads': (_heads, [(REALS, (4, 4, 4))]),
    'sequences': (_sequences, [(REALS, (4, 4, 3)), (IDS, (4,))], (1, 0)),
    'sequences of samples': (lambda x, n: mx.sym.SequenceLast(mx.sym.SequenceMask(
        mx.sym.tanh(x), n, use_sequence_length=True, axis=1), mx.sym.clip(n, 1, 4), use_sequence_length=True, axis=1),
        [(REALS, (4, 4, 3)), (IDS, (4,))]),
    'two inputs behind each other': (_two_inputs_behind_each_other, [(REALS, (5, 4)), (REALS, (5, 4))]),
    'dot': (lambda x: mx.sym.dot(mx.sym.dot(mx.sym.tanh(x), mx.sym.var('w', shape=(3, 4))), mx.sym.var(
        'v', shape=(5, 4)), transpose_b=True), [(REALS, (4, 3, 3))]),
    'dot of the first dimension': (lambda x: mx.sym.dot(mx.sym.var('w', shape=(4, 3)), mx.sym.dot(
        mx.sym.tanh(x), mx.sym.sin(x), transpose_a=True), transpose_a=True), [(REALS, (4, 4))]),
    'gemm': (lambda x: mx.sym.linalg.gemm(mx.sym.tanh(x), mx.sym.sin(x), mx.sym.cos(x), alpha=2.0, beta=0.5,
                                          transpose_a=True), [(REALS, (3, 4, 4))]),
    'gemm along another axis': (lambda x: mx.sym.linalg.gemm2(mx.sym.tanh(x), x, axis=0), [(REALS, (3, 3, 3))]),
    'sorted': (lambda x: mx.sym.topk(mx.sym.sort(mx.sym.tanh(x), axis=1), axis=-1, k=2, ret_typ='value'),
               [(REALS, (4, 3, 4))]),
    'reversed': (lambda x: mx.sym.reverse(mx.sym.flip(mx.sym.tanh(x), axis=0) * 2, axis=(1, 2)), [(REALS, (4, 4, 4))]),
    'repeated': (lambda x: mx.sym.tile(mx.sym.repeat(mx.sym.repeat(
        mx.sym.tanh(x), repeats=2, axis=0), repeats=3, axis=1), reps=(2, 1, 2)) * 2, [(REALS, (4, 2, 3))]),
    'repeated without an axis': (lambda x: mx.sym.repeat(mx.sym.tanh(x), repeats=2) * 2, [(REALS, (4, 2))]),
    'sliced': (lambda x: mx.sym.slice_like(mx.sym.slice(mx.sym.tanh(x), begin=(None, 1, None), end=(None, -1, None),
                                                        step=(1, 1, -2)) * 2, mx.sym.var('like', shape=(4, 2, 1)),
                                           axes=(2,)) * 2, [(REALS, (4, 5, 4))]),
    'some samples': (lambda x: mx.sym.slice(mx.sym.tanh(x), begin=(1,), end=(4,)) * 2, [(REALS, (5, 4))]),
    'slices of several lengths': (lambda x: mx.sym.Group([
        2 * one for one in mx.sym.split_v2(mx.sym.tanh(x), (1, 3), axis=1)]), [(REALS, (4, 5))]),
    'as large as another': (lambda x: mx.sym.broadcast_mul(mx.sym.broadcast_like(mx.sym.var('w', shape=(1, 4)), x) * 2,
                                                           mx.sym.broadcast_to(mx.sym.mean(x, axis=1, keepdims=True),
                                                                               shape=(0, 4))), [(REALS, (4, 4))]),
    'taken': (lambda x, at: mx.sym.broadcast_add(
        mx.sym.take(mx.sym.var('w', shape=(3, 7, 2)), at, axis=1).mean(axis=0), mx.sym.expand_dims(x, axis=1)),
        [(REALS, (4, 2)), (IDS, (4, 3))]),
    'taken of rows': (lambda x, at: mx.sym.BlockGrad(mx.sym.batch_take(
        mx.sym.tanh(x), mx.sym.cast(at, 'int32'))), [(REALS, (4, 7)), (IDS, (4,))]),
    'positions': (lambda x: mx.sym.broadcast_add(x, mx.sym.expand_dims(mx.sym.Embedding(mx.sym.contrib.arange_like(
        x, axis=1), input_dim=4, output_dim=3, name='embed'), axis=0)), [(REALS, (4, 4, 3))]),
    'norms and positions': (lambda x: mx.sym.Group([mx.sym.norm(x, axis=2), mx.sym.argmax(x, axis=1), mx.sym.moments(
        x, axes=(1,), keepdims=True)[1]]), [(REALS, (4, 4, 3))]),
    'chosen': (lambda x, y, n: mx.sym.where(n > 3, mx.sym.tanh(x), y) + mx.sym.where(x > 0, x, y * 2),
               [(REALS, (4, 3)), (REALS, (4, 3)), (IDS, (4,))]),
    'images side by side': (lambda x, y: mx.sym.UpSampling(
        mx.sym.tanh(x), y, scale=2, sample_type='nearest', num_args=2), [(REALS, (4, 2, 4, 4)), (REALS, (4, 3, 4, 4))]),
    'images by a weight': (lambda x: mx.sym.UpSampling(mx.sym.tanh(x), mx.sym.var('w', shape=(2, 1, 4, 4)), scale=2,
                                                       num_filter=2, sample_type='bilinear', num_args=2),
                           [(REALS, (4, 2, 3, 3))]),
    'images bent': (lambda x, theta: mx.sym.BilinearSampler(mx.sym.tanh(x), mx.sym.GridGenerator(
        theta, transform_type='affine', target_shape=(3, 3))), [(SINGLE, (4, 2, 4, 4)), (SINGLE, (4, 6))]),
    'transposed convolutions': (lambda x: mx.sym.Deconvolution(mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=4, kernel=(4, 3), stride=(2, 1), pad=(1, 1), no_bias=False, name='up'), num_filter=2,
        num_group=2, kernel=(3, 3), stride=(2, 2), pad=(1, 0), adj=(1, 0), dilate=(1, 2), name='groups'),
        [(REALS, (3, 2, 4, 3))]),
    'transposed convolutions with gaps': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=2, kernel=(1, 2), stride=(3, 3), adj=(2, 2), no_bias=False, name='gaps'),
        [(REALS, (2, 2, 4, 3))]),
    'transposed convolutions of a size': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=3, kernel=(5, 5), stride=(2, 3), target_shape=(9, 10), name='sized'),
        [(REALS, (2, 2, 4, 3))]),
    'transposed convolutions in one dimension': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=3, kernel=(3,), stride=(2,), pad=(1,), adj=(1,), name='up'), [(REALS, (2, 2, 7))]),
    'transposed convolutions in three dimensions': (lambda x: mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=2, kernel=(2, 3, 2), stride=(2, 1, 2), pad=(0, 1, 0), name='up'),
        [(SINGLE, (2, 2, 3, 3, 2))]),
    'larger images': (lambda x: mx.sym.UpSampling(mx.sym.tanh(x), scale=3, sample_type='nearest') * 2,
                      [(REALS, (2, 3, 3, 4))]),
    'sums of larger images': (lambda x, y: mx.sym.UpSampling(
        mx.sym.tanh(x), y, scale=2, sample_type='nearest', num_args=2, multi_input_mode='sum'),
        [(REALS, (2, 3, 4, 4)), (REALS, (2, 3, 2, 2))]),
    'larger images by an odd factor': (lambda x: mx.sym.UpSampling(
        mx.sym.tanh(x), mx.sym.var('w', shape=(2, 1, 5, 5)), scale=3, num_filter=2, sample_type='bilinear', num_args=2),
        [(REALS, (2, 2, 4, 3))]),
    'images between others': (lambda x: mx.sym.Group([mx.sym.contrib.BilinearResize2D(
        mx.sym.tanh(x), height=height, width=width, align_corners=aligned) * 2
        for height, width, aligned in ((7, 9, True), (7, 9, False), (2, 3, True), (1, 8, False))]),
        [(REALS, (2, 3, 4, 5))]),
    'images as large as others': (lambda x, y: mx.sym.contrib.BilinearResize2D(
        mx.sym.tanh(x), mx.sym.Pooling(y, kernel=(2, 2), pool_type='avg'), mode='like') * 2,
        [(REALS, (2, 3, 3, 4)), (REALS, (2, 1, 6, 8))]),
    'averages of parts of images': (lambda x: mx.sym.Group([mx.sym.contrib.AdaptiveAvgPooling2D(
        mx.sym.tanh(x), output_size=size) * 2 for size in ((3, 4), (7, 2), (1, 1), (2, 2))]), [(REALS, (2, 3, 5, 6))]),
    'constant borders': (lambda x: mx.sym.Pad(mx.sym.Convolution(
        x, num_filter=3, kernel=(1, 1), name='conv'), mode='constant', constant_value=0.7,
        pad_width=(0, 0, 0, 0, 3, 1, 0, 2)) * 2, [(REALS, (2, 2, 3, 4))]),
    'borders of edges': (lambda x: mx.sym.Pad(mx.sym.tanh(x), mode='edge', pad_width=(0, 0, 0, 0, 3, 1, 0, 4)) * 2,
                         [(REALS, (2, 2, 3, 4))]),
    'reflected borders': (lambda x: mx.sym.Pad(mx.sym.tanh(x), mode='reflect', pad_width=(0, 0, 0, 0, 2, 2, 3, 1)) * 2,
                          [(REALS, (2, 2, 3, 4))]),
    'reflected borders in three dimensions': (lambda x: mx.sym.Pad(
        mx.sym.tanh(x), mode='reflect', pad_width=(0, 0, 0, 0, 1, 0, 2, 2, 1, 1)) * 2, [(REALS, (2, 2, 3, 3, 2))]),
    'largest of partial sums': (lambda x: mx.sym.Pooling(mx.sym.Convolution(
        -mx.sym.square(x) - 1, mx.sym.square(mx.sym.var('w', shape=(3, 4, 1, 1))), num_filter=3, kernel=(1, 1),
        no_bias=True), kernel=(3, 3), pad=(1, 1), pool_type='max') * 2, [(REALS, (2, 4, 3, 4))]),
    'cut images': (lambda x, y: mx.sym.Group([
        mx.sym.Crop(mx.sym.tanh(x), y, num_args=2, offset=(1, 2)) * 2, mx.sym.Crop(x, h_w=(3, 2), center_crop=True),
        mx.sym.Crop(x, y, num_args=2, center_crop=True) + y]), [(SINGLE, (2, 2, 6, 5)), (SINGLE, (2, 2, 4, 3))]),
    'neighbouring channels': (lambda x: mx.sym.LRN(mx.sym.tanh(x), nsize=3, alpha=0.5, beta=0.7, knorm=1.5) * 2,
                              [(SINGLE, (2, 6, 3, 2))]),
    'blocks of images': (lambda x: mx.sym.space_to_depth(mx.sym.depth_to_space(mx.sym.tanh(x), 2) * 2, 3),
                         [(REALS, (2, 4, 6, 3))]),
    'windows of images': (lambda x: mx.sym.col2im(mx.sym.im2col(
        mx.sym.tanh(x), kernel=(3, 2), stride=(1, 2), pad=(1, 1), dilate=(1, 2)) * 2, output_size=(5, 6), kernel=(3, 2),
        stride=(1, 2), pad=(1, 1), dilate=(1, 2)), [(REALS, (2, 3, 5, 6))]),
    'windows of images alone': (lambda x: mx.sym.im2col(mx.sym.tanh(x), kernel=(2, 3), stride=(2, 1), pad=(1, 0)) * 2,
                                [(REALS, (2, 3, 7, 5))]),
    'statistics of images': (lambda x: mx.sym.InstanceNorm(mx.sym.tanh(x), name='norm', eps=0.01),
                             [(SINGLE, (3, 4, 5, 3))]),
    'statistics of sequences': (lambda x: mx.sym.InstanceNorm(mx.sym.tanh(x), name='norm'), [(SINGLE, (3, 2, 7))]),
    'statistics of groups': (lambda x: mx.sym.GroupNorm(mx.sym.Convolution(
        x, num_filter=6, kernel=(2, 2), name='conv'), num_groups=3, name='norm', eps=0.01), [(REALS, (2, 2, 5, 4))]),
    'statistics of groups that are outputs': (lambda x: mx.sym.Group([one if at == 0 else mx.sym.BlockGrad(
        one) for at, one in enumerate(mx.sym.GroupNorm(mx.sym.tanh(x), num_groups=2, name='norm',
                                                       output_mean_var=True))]), [(REALS, (3, 4, 3, 2))]),
    'statistics beside epsilon': (lambda x: mx.sym.Group([mx.sym.BatchNorm(x / 30, fix_gamma=False, name='batch')] + [
        mx.sym.GroupNorm(x / 30, num_groups=2, name='group%d' % at, **options)
        for at, options in enumerate(({}, {'eps': 0.003}))]), [(REALS, (4, 4, 3, 2))]),
    'elements between others': (lambda x, y: mx.sym.BilinearSampler(mx.sym.tanh(x), mx.sym.tanh(y)),
                                [(REALS, (2, 3, 4, 5)), (REALS, (2, 2, 3, 6))]),
    'regions': (lambda x, at: mx.sym.Group([make(mx.sym.tanh(x), _regions(at)) * 2 for make in (
        lambda images, boxes: mx.sym.ROIPooling(images, boxes, pooled_size=(2, 3), spatial_scale=0.5),
        lambda images, boxes: mx.sym.contrib.ROIAlign(images, boxes, pooled_size=(2, 2), spatial_scale=0.7,
                                                      sample_ratio=2),
        lambda images, boxes: mx.sym.contrib.ROIAlign(images, boxes, pooled_size=(2, 2), spatial_scale=1.0,
                                                      position_sensitive=True, aligned=True))]),
        [(SINGLE, (3, 8, 6, 5)), (IDS, (3, 2, 5))]),
    'moved windows': (lambda x, offset: mx.sym.contrib.DeformableConvolution(
        mx.sym.tanh(x), mx.sym.tanh(offset), kernel=(2, 2), num_filter=3, name='conv'),
        [(SINGLE, (3, 2, 4, 5)), (SINGLE, (3, 8, 3, 4))]),
    'boxes of samples': (_boxes_of_samples, [(SINGLE, (3, 2, 3, 2)), (IDS, (3, 2, 5))]),
    'boxes that overlap': (lambda x: mx.sym.BlockGrad(mx.sym.contrib.box_nms(
        mx.sym.abs(x), overlap_thresh=0.3, coord_start=1, score_index=0, id_index=-1, topk=3)),
        [(EDGES, (2, 3, 5, 5))]),
    'overlaps of boxes': (lambda x, y: mx.sym.BlockGrad(mx.sym.contrib.box_iou(mx.sym.abs(x), mx.sym.abs(y))),
                          [(EDGES, (3, 2, 4)), (REALS, (3, 4))]),
    'boxes by anchors': (lambda x, y: mx.sym.Group([
        mx.sym.BlockGrad(one) for one in [mx.sym.contrib.box_decode(x, mx.sym.abs(mx.sym.slice_axis(
            y, axis=0, begin=0, end=1))), *_encoded(x, y)]]),
        [(SINGLE, (3, 4, 4)), (SINGLE, (3, 4, 4))]),
    'matches': (lambda x: mx.sym.Group([mx.sym.BlockGrad(one) for one in mx.sym.contrib.bipartite_matching(
        mx.sym.tanh(x), threshold=0.1)]), [(REALS, (3, 4, 2))]),
    'matrices': (lambda x: mx.sym.Group([mx.sym.linalg.det(x), *mx.sym.linalg.slogdet(x), mx.sym.linalg.inverse(
        _definite(x)), mx.sym.linalg.potri(mx.sym.linalg.potrf(_definite(x))), mx.sym.linalg.sumlogdiag(_definite(x)),
        mx.sym.linalg.trmm(x, mx.sym.sin(x), transpose=True), mx.sym.linalg.trsm(_definite(x), x, rightside=True)]),
        [(REALS, (3, 2, 3, 3))]),
    'parts of matrices': (lambda x: mx.sym.Group([
        mx.sym.linalg.makediag(mx.sym.linalg.extractdiag(mx.sym.tanh(x), offset=1) * 2, offset=-1),
        mx.sym.linalg.maketrian(mx.sym.linalg.extracttrian(mx.sym.tanh(x), lower=False) * 2)]),
        [(REALS, (3, 2, 4, 4))]),
    'elements by number': (lambda x, at: mx.sym.gather_nd(mx.sym.tanh(x), mx.sym.concat(
        mx.sym.reshape(mx.sym.repeat(mx.sym.contrib.arange_like(at, axis=0), repeats=2), shape=(1, -1)),
        mx.sym.reshape(mx.sym.clip(at, 0, 4), shape=(1, -1)), dim=0)) * 2, [(REALS, (4, 5, 3)), (IDS, (4, 2))]),
    'elements of all samples': (lambda x, at: mx.sym.gather_nd(
        mx.sym.transpose(mx.sym.tanh(x)), mx.sym.clip(mx.sym.transpose(at), 0, 4)) * 2,
        [(REALS, (4, 5)), (IDS, (3, 1))], (0, None)),
    'elements to numbers': (lambda x, at: mx.sym.scatter_nd(
        mx.sym.tanh(x), mx.sym.expand_dims(mx.sym.argsort(at + mx.sym.contrib.arange_like(at) / 9), axis=0),
        shape=(7, 3, 2)) * 2, [(REALS, (5, 3, 2)), (IDS, (5,))]),
    'rows by number': (lambda x, y, at: mx.sym.contrib.index_copy(mx.sym.tanh(x), mx.sym.cast(mx.sym.argsort(
        at), 'int32'), mx.sym.sin(y)) * 2, [(REALS, (7, 3, 2)), (REALS, (4, 3, 2)), (IDS, (4,))],
        (1, 1, None)),
    'a sum of losses': (lambda x, at: mx.sym.softmax_cross_entropy(mx.sym.tanh(x), at) * 2,
                        [(REALS, (5, 3)), (_classes, (5,))]),
    'straight through': (lambda x: mx.sym.Group([mx.sym.contrib.round_ste(x * 3), mx.sym.contrib.sign_ste(
        x), mx.sym.contrib.gradientmultiplier(mx.sym.tanh(x), scalar=-2.0), mx.sym.contrib.quadratic(
            x, a=2.0, b=1.0, c=0.5)]), [(EDGES, (4, 3))]),
    'order of ties': (lambda x: mx.sym.Group([
        mx.sym.sort(x, axis=0, is_ascend=False), mx.sym.topk(x, axis=1, k=2, ret_typ='value', is_ascend=True),
        *[mx.sym.BlockGrad(one) for one in (
            mx.sym.argsort(x, axis=-2, is_ascend=False), mx.sym.topk(x, axis=-1, k=2, ret_typ='mask'),
            mx.sym.topk(x, axis=0, k=2, dtype='float64'), *mx.sym.topk(x, axis=1, k=2, ret_typ='both'),
            mx.sym.argmax(x, axis=-1, keepdims=True), mx.sym.argmin(x, axis=0), mx.sym.argmax(x))]]),
        [(EDGES, (4, 5, 3))]),
    'order of all': (lambda x: mx.sym.Group([mx.sym.sort(x, axis=None), mx.sym.cumsum(mx.sym.tanh(x)), mx.sym.BlockGrad(
        mx.sym.argsort(x, axis=None)), mx.sym.topk(x, axis=None, k=3, ret_typ='value')]), [(EDGES, (4, 3))]),
    'norms at zeros': (lambda x: mx.sym.Group([
        mx.sym.norm(x, ord=1, axis=(0, 2), keepdims=True), mx.sym.norm(x + 2, axis=-1), mx.sym.norm(x + 2, ord=2),
        *[mx.sym.L2Normalization(x, mode=mode, eps=0.1) for mode in ('instance', 'channel', 'spatial')]]),
        [(EDGES, (4, 5, 3))]),
    'sequences of letters': (lambda x, at, n: mx.sym.Group([
        mx.sym.CTCLoss(x, _single(mx.sym.clip(at, 1, 3))),
        mx.sym.CTCLoss(x, *map(_single, (mx.sym.clip(at, 0, 2), mx.sym.clip(n, 4, 6), mx.sym.clip(n, 1, 2))),
                       use_data_lengths=True, use_label_lengths=True, blank_label='last')]),
        [(SINGLE, (6, 3, 4)), (IDS, (3, 2)), (IDS, (3,))], (1, 0, 0)),
    'softmax outputs of other layouts': (lambda x, at, of: mx.sym.Group([
        mx.sym.SoftmaxOutput(mx.sym.tanh(x), at, multi_output=True, use_ignore=True, ignore_label=1),
        mx.sym.SoftmaxOutput(mx.sym.tanh(x), of, preserve_shape=True, out_grad=True, grad_scale=0.5)]),
        [(REALS, (4, 3, 5)), (_classes, (4, 5)), (_classes, (4, 3))]),
    'taken from behind': (lambda x, at: mx.sym.Group([
        mx.sym.take(mx.sym.tanh(x), at - 9, axis=-1, mode='wrap') * 2, mx.sym.take(mx.sym.tanh(x), at, axis=1) * 2]),
        [(REALS, (4, 3, 5)), (IDS, (2,))], (0, None)),
    'shapes of arrays': (lambda x: mx.sym.broadcast_div(mx.sym.tanh(x), mx.sym.cast(
        mx.sym.slice_axis(mx.sym.shape_array(x * 2), axis=0, begin=0, end=1) + mx.sym.size_array(x), dtype='float64')),
        [(REALS, (4, 3))]),
    'images of other sizes': (lambda x: mx.sym.depth_to_space(mx.sym.contrib.AdaptiveAvgPooling2D(mx.sym.tanh(
        x), output_size=2), 2) * 2, [(REALS, (4, 4, 4, 4))]),
    'softmin': (lambda x: mx.sym.softmin(mx.sym.tanh(x), axis=1) * 2, [(REALS, (4, 4, 3))]),
    'softmax of channels': (lambda x: mx.sym.SoftmaxActivation(x, mode='channel') * mx.sym.SoftmaxActivation(x),
                            [(SINGLE, (4, 4, 3))]),
    'a product of samples': (lambda x: mx.sym.broadcast_add(mx.sym.tanh(x), mx.sym.transpose(x)), [(REALS, (4, 4))]),
    'statistics of a norm': (lambda x: mx.sym.Group([one if at == 0 else mx.sym.BlockGrad(one) for at, one in enumerate(
        mx.sym.LayerNorm(x, axis=-1, output_mean_var=True, name='norm'))]), [(REALS, (4, 3, 5))]),
    'language model': (_language_model, [(IDS, (5, 3)), (IDS, (5, 3))]),
    'softmax along any axis': (lambda x: mx.sym.softmax(x * 3, axis=1, temperature=2.0), [(REALS, (3, 5, 4))]),
    'softmax in float32': (lambda x: mx.sym.Group([
        mx.sym.softmax(x * 3, axis=1, temperature=2.0), mx.sym.log_softmax(mx.sym.tanh(x), axis=-1),
        mx.sym.softmax(mx.sym.log_softmax(x, axis=0), axis=1) * 2]), [(SINGLE, (3, 5, 4))]),
    'softmax of masked rows in float32': (lambda x, y: mx.sym.softmax(mx.sym.cast(x, dtype='float32') + y, axis=1),
                                          [(MASKED, (4, 8)), (SINGLE, (4, 8))]),
    'embedding': (lambda x: mx.sym.Embedding(x, input_dim=7, output_dim=5, name='embed'), [(IDS, (5, 3))]),
    'ids of activations': (lambda x: mx.sym.Embedding(mx.sym.clip(mx.sym.floor(mx.sym.abs(x) * 3), 0, 4), input_dim=5,
                                                      output_dim=3, name='embed'), [(REALS, (5, 3))]),
    'pick': (lambda x, at: mx.sym.pick(x, at, axis=1), [(REALS, (5, 4, 3)), (IDS, (5, 3))]),
    'one hot': (lambda at: mx.sym.one_hot(at, depth=7, dtype='float64') * mx.sym.var('scale', shape=(1,)).reshape(
        (1, 1, 1)).broadcast_to((5, 3, 7)), [(IDS, (5, 3))]),
    'shapes': (lambda x: mx.sym.reshape(mx.sym.expand_dims(mx.sym.reshape(mx.sym.tanh(x), shape=(-1, 6)), axis=1),
                                        shape=(4, 2, 2, 6)) * 2, [(REALS, (4, 4, 3, 2))]),
    'squeeze and flatten': (lambda x: mx.sym.Flatten(mx.sym.squeeze(mx.sym.tanh(x), axis=1)), [(REALS, (5, 1, 3, 2))]),
    'casts of AMP': (lambda x: mx.sym.cast(mx.sym.elemwise_add(*mx.sym.amp_multicast(
        mx.sym.tanh(mx.sym.amp_cast(mx.sym.cast(x, dtype='float32'), dtype='float32')), mx.sym.cast(x, dtype='float32'),
        num_outputs=2)), dtype='float64'), [(SINGLE, (4, 3))]),
    'slices': (lambda x: mx.sym.concat(*[part * weight for weight, part in enumerate(mx.sym.SliceChannel(
        mx.sym.slice_axis(mx.sym.tanh(x), axis=1, begin=1, end=5), num_outputs=2, axis=1))], dim=2),
        [(REALS, (4, 6, 3))]),
    'squeezed slices': (lambda x: mx.sym.stack(*reversed(list(mx.sym.SliceChannel(
        mx.sym.sin(x), num_outputs=3, axis=1, squeeze_axis=True))), axis=-1), [(REALS, (4, 3, 5))]),
    'transpose': (lambda x: mx.sym.transpose(mx.sym.transpose(mx.sym.sin(x), axes=(0, 2, 1)) * 2, axes=(0, 2, 1)),
                  [(REALS, (4, 3, 5))]),
    'sums': (lambda x: mx.sym.broadcast_add(mx.sym.sum(x, axis=1, keepdims=True), mx.sym.max(x, axis=2, keepdims=True)),
             [(REALS, (4, 3, 5))]),
    'softmax of masked rows': (lambda x: mx.sym.softmax(x, axis=1), [(MASKED, (4, 8))]),
    'log of softmax of masked rows': (lambda x: mx.sym.clip(mx.sym.log_softmax(x, axis=1), -50, 50),
                                      [(MASKED, (4, 8))]),
    'pick beside infinities': (lambda x, at: mx.sym.pick(mx.sym.transpose(x) * 2, at, axis=1),
                               [(_infinite_but_in_the_middle, (7, 7)), (_threes, (7,))]),
    'embedding beside infinities': (lambda at, table: mx.sym.Embedding(
        at, table * 2, input_dim=7, output_dim=5, name='embed'),
        [(_threes, (7, 3)), (_infinite_but_in_the_middle, (7, 5))]),
    'learned slopes at zeros': (lambda x: mx.sym.LeakyReLU(x, act_type='prelu', name='prelu'), [(EDGES, (4, 3, 2, 2))]),
    'activations at zeros': (lambda x: mx.sym.Group([
        mx.sym.relu(x), mx.sym.Activation(x, act_type='relu'), mx.sym.abs(x), mx.sym.sign(x),
        mx.sym.LeakyReLU(x, act_type='leaky'), mx.sym.LeakyReLU(x, act_type='elu'), mx.sym.maximum(x, 0),
        mx.sym.broadcast_maximum(x, mx.sym.zeros_like(x)), mx.sym.smooth_l1(x)]), [(EDGES, (4, 5))]),
    'clipped at zeros': (lambda x: mx.sym.clip(x, 0, 0.5), [(EDGES, (4, 5))]),
    'ties of largest elements': (lambda x: mx.sym.Group([
        mx.sym.max(x, axis=1), mx.sym.min(x, axis=1), mx.sym.prod(x, axis=1),
        mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type='max')]), [(EDGES, (4, 3, 6, 6))]),
    'many readers': (lambda x: _read_by_many(mx.sym.tanh(x)), [(REALS, (4, 5))]),
    'many readers of data': (_read_by_many, [(REALS, (4, 5))]),
    'many readers that are several operators': (lambda x: mx.sym.Group([mx.sym.clip(x, 0, 0.5)] + [
        mx.sym.LeakyReLU(x, act_type='prelu', name='prelu%d' % at) for at in range(5)]), [(REALS, (4, 5))]),
    'many readers of a weight': (lambda x: mx.sym.Group([mx.sym.broadcast_mul(x, one) for one in _read_by_many(
        mx.sym.var('scale', shape=(1, 5)))]), [(REALS, (4, 5))]),
    'loss of a mean': (lambda x: mx.sym.make_loss(mx.sym.mean(mx.sym.square(_dense(x)))), [(REALS, (5, 4))]),
    'loss of a sum': (lambda x: mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(_dense(x))), grad_scale=0.5),
                      [(REALS, (5, 4))]),
    'losses of samples': (lambda x: mx.sym.Group([mx.sym.MakeLoss(
        mx.sym.relu(mx.sym.sum(_dense(x), axis=1)), normalization=norm, valid_thresh=0.1)
        for norm in ('null', 'batch', 'valid')]), [(REALS, (5, 4))]),
    'softmax output': (lambda x, at: mx.sym.Group([mx.sym.SoftmaxOutput(
        _dense(x), at, normalization=norm, use_ignore=True, ignore_label=2, smooth_alpha=0.1)
        for norm in ('null', 'batch', 'valid')]), [(REALS, (5, 4)), (_classes, (5,))]),
    'regression outputs': (lambda x, at: mx.sym.Group([make(_dense(x), at, grad_scale=0.7) for make in (
        mx.sym.LinearRegressionOutput, mx.sym.LogisticRegressionOutput, mx.sym.MAERegressionOutput)]),
        [(REALS, (5, 4)), (_classes, (5, 3))]),
    'margins': (lambda x, at: mx.sym.SVMOutput(_dense(x), at),
                [(REALS, (5, 4)), (_classes, (5,))]),
    'learned slopes': (lambda x: mx.sym.LeakyReLU(x, act_type='prelu', name='prelu'), [(REALS, (4, 3, 2, 2))]),
    'norms': (lambda x: mx.sym.L2Normalization(mx.sym.Convolution(
        x, num_filter=4, kernel=(3, 3), name='conv'), mode='channel'), [(REALS, (4, 2, 5, 5))]),
    'products': (lambda x: mx.sym.linalg.gemm2(
        mx.sym.cumsum(mx.sym.contrib.div_sqrt_dim(x), axis=1), mx.sym.tanh(x), transpose_b=True), [(REALS, (5, 6))]),
    'no rule': (lambda x: mx.sym.tanh(mx.sym.diag(mx.sym.Convolution(
        x, num_filter=4, kernel=(3, 3), name='conv'), axis1=2, axis2=3)) * 2, [(REALS, (4, 2, 5, 5))]),
    'no rule, of modules': (lambda x: mx.sym.linalg.syrk(mx.sym.tanh(x)) * 2, [(REALS, (5, 6))]),
    'samples only': (lambda x: mx.sym.UpSampling(mx.sym.Deconvolution(
        mx.sym.tanh(x), num_filter=3, kernel=(2, 2), stride=(2, 2), name='up'), scale=2, sample_type='nearest'),
        [(REALS, (4, 2, 3, 3))]),
    'weights by way of operators': (lambda x: mx.sym.FullyConnected(
        x, mx.sym.var('a', shape=(4, 6)) * mx.sym.var('b', shape=(4, 6)), num_hidden=4, no_bias=True),
        [(REALS, (5, 6))]),
    'a part of a weight': (lambda x: mx.sym.broadcast_mul(x, mx.sym.slice(
        mx.sym.var('w', shape=(3, 9)), begin=(1, 2), end=(2, 8))), [(REALS, (5, 6))]),
    'a weight twice': (lambda x: mx.sym.FullyConnected(mx.sym.FullyConnected(
        x, mx.sym.var('w', shape=(6, 6)), num_hidden=6, no_bias=True), mx.sym.var('w', shape=(6, 6)), num_hidden=6,
        no_bias=True), [(REALS, (5, 6))]),
    'several outputs': (lambda x: mx.sym.Group([mx.sym.sin(x), mx.sym.sum(x, axis=1), mx.sym.sum(x)]),
                        [(REALS, (5, 6))]),
    'images in one dimension': (lambda x: mx.sym.Pooling(mx.sym.Convolution(
        x, num_filter=4, kernel=(3,), pad=(1,), dilate=(2,), name='conv'), kernel=(2,), stride=(2,)),
        [(REALS, (4, 3, 9))]),
    'images in three dimensions': (lambda x: mx.sym.Convolution(
        x, num_filter=2, kernel=(2, 3, 2), stride=(2, 1, 1), pad=(1, 1, 0), name='conv'), [(REALS, (3, 2, 4, 5, 4))]),
    'no more samples than one': (lambda x: mx.sym.FullyConnected(mx.sym.Convolution(
        x, num_filter=3, kernel=(3, 3), pad=(1, 1), name='conv'), num_hidden=5, name='dense'), [(REALS, (1, 2, 6, 6))]),
}


@settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
@given(drawn=st.data())
def test_a_mask_for_whole_dimensions_is_one(four, drawn):
    axes = drawn.draw(st.sets(st.integers(0, 2), min_size=1))
    symbol = mx.sym.Dropout(mx.sym.var('data'), p=0.5, axes=tuple(axes))
    data = {'data': np.random.RandomState(0).uniform(1, 2, (4, 6, 4))}
    graph = Graph(symbol, {'data': (4, 6, 4)}, {'data': 'float64'})
    outputs, _, _ = four.run(symbol, data, {}, drawn_splits(drawn.draw, graph, 4))
    mask = outputs[0] / data['data']
    for axis in axes:
        np.testing.assert_allclose(mask, np.broadcast_to(mask.take([0], axis=axis), mask.shape))


@pytest.mark.parametrize('name', sorted(OPERATORS))
def test_operators(four, name):
    build, inputs, *axes = OPERATORS[name]
    names = ['data%d' % at for at in range(len(inputs))]
    rng = np.random.RandomState(0)
    data = {one: make(rng, shape) for one, (make, shape) in zip(names, inputs)}
    symbol = build(*[mx.sym.var(one) for one in names])
    axes = dict(zip(names, axes[0])) if axes else None
    weights = weights_of(symbol, data, 1)

    # MXNet computes learned slopes as float32.
    tolerance = 1e-6 if name == 'learned slopes' else 1e-10
    if any(make is SINGLE for make, _ in inputs) or name == 'attention of joint weights':
        tolerance = 1e-5  # the products of attention take float32 alone

    @settings(max_examples=12, suppress_health_check=list(HealthCheck), database=None)
    @given(drawn=st.data())
    def look(drawn):
        compare(four, symbol, data, weights, drawn.draw, tolerance, axes)
    look()
