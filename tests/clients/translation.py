"""Models of translation, whose packages write the whole model as a Block: here it is one HybridBlock, with the same
layers.
"""
from typing import Any

from mxnet import gluon
from mxnet.gluon import nn

WORDS, UNITS, HIDDEN, HEADS, LENGTH = 50, 16, 32, 4, 8


class GluonNlpTransformer(gluon.HybridBlock):
    """NMTModel of GluonNLP with its Transformer, as TransformerDecoder.init_state_from_encoder joins encoder and
    decoder, and with tied weights of the output layer.
    """

    def __init__(self) -> None:
        super().__init__(prefix='nmt_')
        from gluonnlp.model.transformer import TransformerDecoder, TransformerEncoder
        with self.name_scope():
            sizes = {'num_layers': 2, 'units': UNITS, 'hidden_size': HIDDEN, 'max_length': LENGTH, 'num_heads': HEADS,
                     'dropout': 0.0}
            self.source_embed, self.target_embed = nn.Embedding(WORDS, UNITS), nn.Embedding(WORDS, UNITS)
            self.encoder = TransformerEncoder(prefix='encoder_', **sizes)
            self.decoder = TransformerDecoder(prefix='decoder_', **sizes)
        self.projection = nn.Dense(WORDS, flatten=False, params=self.target_embed.params, prefix='projection_')

    def hybrid_forward(self, F: Any, source: Any, target: Any, source_length: Any, target_length: Any) -> Any:
        """Return the scores of words."""
        encoded, _ = self.encoder(self.source_embed(source), None, source_length)
        mask = F.broadcast_lesser(F.contrib.arange_like(encoded, axis=1).reshape((1, -1)),
                                  source_length.reshape((-1, 1)))
        decoded, _, _ = self.decoder(self.target_embed(target), [encoded, mask], target_length)
        return self.projection(decoded)


class Sockeye(gluon.HybridBlock):
    """SockeyeModel with a Transformer, one table of words, and the loss of each sample."""

    def __init__(self) -> None:
        super().__init__(prefix='')
        from sockeye import layers, transformer
        from sockeye.decoder import get_decoder
        from sockeye.encoder import Embedding, EmbeddingConfig, get_transformer_encoder
        config = transformer.TransformerConfig(
            model_size=UNITS, attention_heads=HEADS, feed_forward_num_hidden=HIDDEN, act_type='relu', num_layers=2,
            dropout_attention=0, dropout_act=0, dropout_prepost=0, positional_embedding_type='fixed',
            preprocess_sequence='n', postprocess_sequence='dr', max_seq_len_source=LENGTH, max_seq_len_target=LENGTH,
            depth_key_value=UNITS)
        embedding = EmbeddingConfig(WORDS, UNITS, 0.0)
        with self.name_scope():
            self.words = self.params.get('source_target_embed_weight', shape=(WORDS, UNITS))
            self.embedding_source = Embedding(embedding, 'source_embed_', self.words)
            self.embedding_target = Embedding(embedding, 'target_embed_', self.words)
            self.encoder = get_transformer_encoder(config, '', 'float32')
            self.decoder = get_decoder(config)
            self.output_layer = layers.OutputLayer(UNITS, WORDS, self.words)
            self.length_ratio = layers.LengthRatio(UNITS, 1)
            self.loss = gluon.loss.SoftmaxCELoss()

    def hybrid_forward(self, F: Any, source: Any, source_length: Any, target: Any, labels: Any, words: Any) -> Any:
        """Return the loss of each sample, and its predicted ratio of lengths."""
        source, source_length = self.embedding_source(source, source_length)
        target, _ = self.embedding_target(target, source_length)  # lengths of targets are in the labels alone
        encoded, encoded_length = self.encoder(source, source_length)
        steps = F.expand_dims(F.contrib.arange_like(target, axis=1), axis=0)
        # The decoder's own states have one time, which attention leaves out.
        state = F.zeros_like(F.slice_axis(F.transpose(F.concat(target, target, dim=2), axes=(1, 0, 2)), axis=0,
                                          begin=0, end=1))
        states = [steps, F.transpose(encoded, axes=(1, 0, 2)), encoded_length] + [state] * 2
        scores = self.output_layer(self.decoder(target, states)[0], None)
        return self.loss(scores, labels), self.length_ratio(encoded, encoded_length)
