"""Transformers that are trained by the benchmark: BERT as GluonNLP 0.10 writes it, and a GPT of batch_dot."""
from typing import Any

import numpy as np
from mxnet import gluon
from mxnet.gluon import nn


class _BertLayer(gluon.HybridBlock):
    """A layer with the interleaved products of self-attention; arrays are of shape (times, samples, units)."""

    def __init__(self, units: int, heads: int):
        super().__init__()
        self._units, self._heads = units, heads
        with self.name_scope():
            for name in ('query', 'key', 'value'):
                setattr(self, name + '_weight', self.params.get(name + '_weight', shape=(units, units)))
                setattr(self, name + '_bias', self.params.get(name + '_bias', shape=(units,), init='zeros'))
            self.projection = nn.Dense(units, flatten=False, in_units=units)
            self.norm, self.wide_norm = nn.LayerNorm(in_channels=units), nn.LayerNorm(in_channels=units)
            self.wide = nn.Dense(4 * units, flatten=False, in_units=units)
            self.gelu = nn.GELU()
            self.narrow = nn.Dense(units, flatten=False, in_units=4 * units)

    def hybrid_forward(self, F: Any, data: Any, valid: Any, query_weight: Any, key_weight: Any, value_weight: Any,
                       query_bias: Any, key_bias: Any, value_bias: Any) -> Any:
        heads = self._heads
        weight = F.concat(*[F.reshape(array, shape=(heads, -1, 0), reverse=True)
                            for array in (query_weight, key_weight, value_weight)], dim=-2)
        bias = F.stack(*[F.reshape(array, shape=(heads, -1), reverse=True)
                         for array in (query_bias, key_bias, value_bias)], axis=1)
        projected = F.FullyConnected(data, F.reshape(weight, shape=(-1, 0), reverse=True), F.reshape(bias, shape=(-1,)),
                                     num_hidden=3 * self._units, flatten=False)
        scores = F.contrib.interleaved_matmul_selfatt_qk(projected, heads=heads)
        lengths = F.broadcast_axis(F.expand_dims(valid, axis=1), axis=1, size=heads)
        weights = F.softmax(scores, F.reshape(lengths, shape=(-1, 0), reverse=True), use_length=True, axis=-1)
        attended = F.contrib.interleaved_matmul_selfatt_valatt(projected, weights, heads=heads)
        data = self.norm(self.projection(attended) + data)
        return self.wide_norm(self.narrow(self.gelu(self.wide(data))) + data)


class Bert(gluon.HybridBlock):
    """BERT with a classifier of sentences: it reads ids, types of segments, counts of valid words, and labels."""

    def __init__(self, layers: int = 2, units: int = 128, heads: int = 8, words: int = 1000, times: int = 64):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.words, self.segments = nn.Embedding(words, units), nn.Embedding(2, units)
            self.positions = nn.Embedding(times, units)
            self.norm = nn.LayerNorm(in_channels=units)
            self.layers = nn.HybridSequential()
            with self.layers.name_scope():
                for _ in range(layers):
                    self.layers.add(_BertLayer(units, heads))
            self.pooler = nn.Dense(units, activation='tanh', flatten=False, in_units=units)
            self.classes, self.loss = nn.Dense(2, in_units=units), gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, ids: Any, segments: Any, counts: Any, labels: Any) -> Any:
        """Return the loss of each sample."""
        data = F.transpose(self.words(ids) + self.segments(segments), axes=(1, 0, 2))
        steps = F.contrib.arange_like(data, axis=0)
        valid = F.cast(F.broadcast_add(F.reshape(counts, shape=(-1, 1)), F.reshape(F.zeros_like(steps), shape=(1, -1))),
                       dtype='int32')
        data = self.norm(F.broadcast_add(data, F.expand_dims(self.positions(steps), axis=1)))
        for layer in self.layers._children.values():
            data = layer(data, valid)
        data = F.SequenceMask(data, sequence_length=counts, use_sequence_length=True, axis=0)
        first = F.slice(F.transpose(data, axes=(1, 0, 2)), begin=(0, 0, 0), end=(None, 1, None))
        return self.loss(self.classes(self.pooler(F.reshape(first, shape=(0, -1)))), labels)


class _GptLayer(gluon.HybridBlock):
    """A layer with a batch_dot for all heads; arrays are of shape (samples, times, units)."""

    def __init__(self, units: int, heads: int):
        super().__init__()
        self._heads, self._scale = heads, (units // heads) ** -0.5
        with self.name_scope():
            self.norm, self.wide_norm = nn.LayerNorm(in_channels=units), nn.LayerNorm(in_channels=units)
            self.query, self.key, self.value, self.projection = (
                nn.Dense(units, flatten=False, in_units=units) for _ in range(4))
            self.wide = nn.Dense(4 * units, flatten=False, in_units=units)
            self.gelu = nn.GELU()
            self.narrow = nn.Dense(units, flatten=False, in_units=4 * units)

    def _apart(self, F: Any, data: Any) -> Any:
        heads = F.transpose(F.reshape(data, shape=(0, 0, self._heads, -1)), axes=(0, 2, 1, 3))
        return F.reshape(heads, shape=(-3, -2))

    def hybrid_forward(self, F: Any, data: Any, mask: Any) -> Any:
        normed = self.norm(data)
        query, key, value = (self._apart(F, layer(normed)) for layer in (self.query, self.key, self.value))
        scores = F.batch_dot(query, key, transpose_b=True) * self._scale
        attended = F.batch_dot(F.softmax(F.broadcast_add(scores, mask), axis=-1), value)
        together = F.transpose(F.reshape(attended, shape=(-4, -1, self._heads, -2)), axes=(0, 2, 1, 3))
        data = data + self.projection(F.reshape(together, shape=(0, 0, -3)))
        return data + self.narrow(self.gelu(self.wide(self.wide_norm(data))))


class Gpt(gluon.HybridBlock):
    """A language model: words in, the loss of each sample out."""

    def __init__(self, layers: int = 4, units: int = 512, heads: int = 8, words: int = 14000, times: int = 128):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.embedding = nn.Embedding(words, units)
            self.position = self.params.get('position', shape=(1, times, units))
            self.mask = self.params.get_constant('mask', 1e9 * (np.tri(times, dtype='float32')[None] - 1))
            self.layers = nn.HybridSequential()
            with self.layers.name_scope():
                for _ in range(layers):
                    self.layers.add(_GptLayer(units, heads))
            self.norm = nn.LayerNorm(in_channels=units)
            self.words = nn.Dense(words, flatten=False, in_units=units)
            self.loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, ids: Any, labels: Any, position: Any, mask: Any) -> Any:
        """Return the loss of each sample."""
        data = F.broadcast_add(self.embedding(ids), position)
        for layer in self.layers._children.values():
            data = layer(data, mask)
        return self.loss(self.words(self.norm(data)), labels)
