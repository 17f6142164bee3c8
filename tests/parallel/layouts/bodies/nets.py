"""Networks of tests of layouts, and data for them."""
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision

from tests.helpers.gluon_nets import Net, in_turn

WORDS, TIMES = 41, 5
#: The height and width of images of the networks that read images.
_SIDES = {'cnn': 16, 'plain': 12, 'unruly': 3, 'dense': 2, 'pooled': 7, 'averaged': 7, 'alexnet': 67, 'resnet': 32,
          'inception': 299, 'densenet': 224}


def cnn():
    """Convolutions, joint statistics, pooling, dense layers."""
    return Net(lambda: [
        nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.Activation('relu'), nn.MaxPool2D(3, 2, 1),
        nn.Conv2D(16, 5, padding=2, activation='relu'), nn.AvgPool2D(3, 2, 1), nn.Flatten(),
        nn.Dense(32, activation='relu'), nn.Dense(24, activation='relu'), nn.Dense(10)])


def plain():
    """A small one without joint statistics."""
    return Net(lambda: [nn.Conv2D(8, 3, padding=1, activation='relu'), nn.MaxPool2D(2, 2),
                        nn.Dense(32, activation='tanh'), nn.Dense(10)])


def _averages(make_pooling):
    return Net(lambda: [nn.Conv2D(16, 3, padding=1, activation='relu'), make_pooling(), nn.Flatten(), nn.Dense(10)])


def pooled():
    """Whole images are averaged."""
    return _averages(nn.GlobalAvgPool2D)


def averaged():
    """Average whole images, by a window as large as the image."""
    return _averages(lambda: nn.AvgPool2D(_SIDES['averaged']))


def unruly():
    """Operators without a rule, after which samples are known from the arrays that are added; others mix samples."""
    return Net(lambda: [
        nn.Dense(12, activation='tanh'),
        nn.HybridLambda(lambda F, x: x + F.linalg_extractdiag(F.linalg_makediag(F.tanh(x)))),
        nn.HybridLambda(lambda F, x: F.cumsum(F.L2Normalization(x), axis=1)),
        nn.Dense(10), nn.HybridLambda(lambda F, x: F.contrib.div_sqrt_dim(x))])


def dense():
    """Layers of which all weights can be split."""
    return Net(lambda: [nn.Dense(16), nn.Dense(10)])


def _language_model(make_recurrent, call_recurrent):
    def call(F, words, labels, embed, norm, recurrent, out, loss):
        return loss(out(call_recurrent(F, norm(embed(words)), recurrent)), labels)
    return Net(lambda: [nn.Embedding(WORDS, 16), nn.LayerNorm(), make_recurrent(), nn.Dense(WORDS, flatten=False),
                        gluon.loss.SoftmaxCrossEntropyLoss()], call, 'lm_')


def language_model():
    """A language model with the fused recurrent layer."""
    return _language_model(lambda: rnn.LSTM(16, 2, layout='NTC', input_size=16), lambda F, inputs, lstm: lstm(inputs))


def cells():
    """The same language model, cell by cell."""
    def unrolled(F, inputs, cell):
        # Gluon would make the first states as float32.
        first = F.zeros_like(F.slice_axis(inputs, axis=1, begin=0, end=1).reshape((0, -1)))
        return cell.unroll(TIMES, inputs, begin_state=[first, first], layout='NTC', merge_outputs=True)[0]
    return _language_model(lambda: rnn.LSTMCell(16, input_size=16), unrolled)


def _attention(units):
    """Attention of 4 heads to former times; one projection makes queries, keys and values."""
    def call(F, x, projection, out):
        joint = F.transpose(F.reshape(projection(x), shape=(0, 0, 3, 4, -1)), axes=(2, 0, 3, 1, 4))
        query, key, value = F.split(joint, num_outputs=3, axis=0, squeeze_axis=True)
        scores = F.linalg.gemm2(query, key, transpose_b=True)
        times = F.arange(TIMES)
        later = F.broadcast_lesser(F.reshape(times, shape=(-1, 1)), F.reshape(times, shape=(1, -1)))
        mask = F.cast(F.reshape(later, shape=(1, 1, TIMES, TIMES)), 'float64') * -1e9
        context = F.linalg.gemm2(F.softmax(F.broadcast_add(scores, mask)), value)
        return out(F.reshape(F.transpose(context, axes=(0, 2, 1, 3)), shape=(0, 0, -1)))
    return Net(lambda: [nn.Dense(count, flatten=False, in_units=units) for count in (3 * units, units)], call,
               'attention_')


def _two_dense_layers(units):
    return [nn.Dense(40, flatten=False, in_units=units, activation='tanh'),
            nn.Dense(units, flatten=False, in_units=40)]


def _gpt(attention, feed_forward, units=16):
    """Attention and other layers; embedding and output have one weight, and nothing reads the last positions."""
    def make():
        words = nn.Embedding(WORDS, units)
        output = nn.Dense(WORDS, flatten=False, in_units=units, use_bias=False, params=words.params)
        return [words, output, attention(units), nn.LayerNorm(in_channels=units), nn.LayerNorm(in_channels=units),
                *feed_forward(units)]

    def call(F, ids, labels, words, output, attend, first_norm, second_norm, *others, positions):
        x = F.broadcast_add(words(ids), F.expand_dims(F.slice_axis(positions, axis=0, begin=0, end=TIMES), axis=0))
        x = x + attend(first_norm(x))
        x = x + in_turn(F, second_norm(x), *others)
        return F.mean(-F.pick(F.log_softmax(output(x)), labels), axis=1)
    return Net(make, call, 'gpt_', positions={'shape': (TIMES + 3, units)})


def gpt():
    """A language model with attention."""
    return _gpt(_attention, _two_dense_layers)


def _shared_keys(units):
    """Attention of 4 heads of queries, of which each two share one of keys and values."""
    def call(F, x, queries, keys_and_values, out):
        query = F.transpose(F.reshape(queries(x), shape=(0, 0, 4, -1)), axes=(0, 2, 1, 3))
        both = F.reshape(keys_and_values(x), shape=(0, 0, 2, 2, -1))  # keys and values, groups
        key, value = (F.repeat(F.transpose(part, axes=(0, 2, 1, 3)), repeats=2, axis=1)
                      for part in F.split(both, num_outputs=2, axis=2, squeeze_axis=True))
        merged = [F.reshape(part, shape=(-3, 0, 0)) for part in (query, key, value)]
        context = F.batch_dot(F.softmax(F.batch_dot(merged[0], merged[1], transpose_b=True)), merged[2])
        context = F.reshape(context, shape=(-4, -1, 4, 0, 0))
        return out(F.reshape(F.transpose(context, axes=(0, 2, 1, 3)), shape=(0, 0, -1)))
    return Net(lambda: [nn.Dense(units, flatten=False, in_units=units, use_bias=use_bias)
                        for use_bias in (True, False, True)], call, 'shared_')


def _experts(units):
    """A mixture of 4 experts with gates for all of them, of which the highest two count."""
    def call(F, x, router, up, up_bias, down):
        rows = F.reshape(x, shape=(-3, 0))
        gates = F.softmax(router(rows))
        gates = gates * F.topk(gates, k=2, ret_typ='mask')
        spread = F.broadcast_axis(F.expand_dims(rows, axis=0), axis=0, size=4)
        hidden = F.tanh(F.broadcast_add(F.batch_dot(spread, up), up_bias))
        outputs = F.batch_dot(hidden, down, transpose_b=True)
        weighted = F.broadcast_mul(outputs, F.expand_dims(F.transpose(gates), axis=2))
        return F.reshape_like(F.sum(weighted, axis=0), x)
    return [Net(lambda: [nn.Dense(4, in_units=units)], call, 'experts_', up={'shape': (4, units, 40)},
                up_bias={'shape': (4, 1, 40), 'init': 'normal'}, down={'shape': (4, units, 40)})]


def mixture():
    """A language model whose heads share keys, and with experts in place of dense layers."""
    return _gpt(_shared_keys, _experts)


def _of_the_zoo(name):
    net = vision.get_model(name, classes=10, prefix='zoo_')

    def no_dropout(block):
        if isinstance(block, nn.Dropout):
            block._rate = 0
        for child in block._children.values():
            no_dropout(child)
    no_dropout(net)
    return net


def alexnet():
    return _of_the_zoo('alexnet')


def resnet():
    """The 18 layers of resnet18_v1 with an eighth of its channels, which have the same splits in less time."""
    return vision.ResNetV1(vision.BasicBlockV1, [2, 2, 2, 2], [8, 8, 16, 32, 64], classes=10, prefix='zoo_')


def inception():
    return _of_the_zoo('inceptionv3')


def densenet():
    return _of_the_zoo('densenet121')


def has_loss(name):
    """Return whether a network takes labels, too, and returns losses."""
    return name not in _SIDES


def data_of(net, steps, batch):
    """Inputs and labels, of all steps."""
    rng = np.random.RandomState(0)
    if not has_loss(net):
        return rng.uniform(-1, 1, (steps, batch, 3, _SIDES[net], _SIDES[net])), rng.randint(0, 10, (steps, batch))
    return list(rng.randint(0, WORDS, (2, steps, batch, TIMES)))
