"""Train gluonnlp's BigRNN, as its ``large_word_language_model.py`` does, on this worker's columns of a joint batch.

The tables of the input embedding and of the sampled softmax have row_sparse weights and gradients; the projected
LSTM, with deferred shapes, and the softmax bias are dense. Every worker reports all final parameters and the route
table; rank 0 then saves the parameters, as users do, and evaluates gluonnlp's BigRNN for evaluation on held-out words.

With ``--kvstore device`` in one process it gives the reference: MXNet alone on the joint batch.
"""
import argparse
import tempfile
from pathlib import Path

import gluonnlp as nlp
import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon

import mxhybrid

VOCABULARY, EMBED, HIDDEN, LAYERS, PROJECTION, SAMPLES = 200, 8, 8, 1, 6, 20
BATCH, BPTT, STEPS = 12, 6, 20  # BATCH columns of text over all workers
# No worker may have fewer tokens than SAMPLES + 1: MXNet 1.9.1 alone, on the CPU, then crashes in the loss of a
# hybridized sampled softmax (MKLDNNLogSoftmaxForward). 3 workers have 4 x 6.
CLIP = 10.0  # on the gradient's norm in each worker by itself: must stay unreached to be comparable


def probability(ids):
    """Log-uniform probability of word ids sorted by falling frequency."""
    return np.log1p(1.0 / (np.asarray(ids) + 1.0)) / np.log(VOCABULARY + 1)


def expected_count(ids):
    """Expected number of times that words are among the candidates."""
    return -np.expm1(SAMPLES * np.log1p(-probability(ids)))


class Data:
    """A random text in columns, masks, and candidates, all the same in every process."""

    def __init__(self, seed=7):
        random = np.random.RandomState(seed)
        everything = probability(np.arange(VOCABULARY))
        self.text = random.choice(VOCABULARY, ((STEPS + 1) * BPTT + 1, BATCH), p=everything).astype('f4')
        self.mask = (random.rand(STEPS, BPTT, BATCH) < 0.9).astype('f4')
        self.candidates = [random.choice(VOCABULARY, SAMPLES, replace=False, p=everything).astype('f4')
                           for _ in range(STEPS)]

    def words(self, step, columns=slice(None)):
        """Inputs and labels of a step, each (BPTT, columns); step STEPS is held out."""
        begin = step * BPTT
        return self.text[begin:begin + BPTT, columns], self.text[begin + 1:begin + 1 + BPTT, columns]

    def sampled(self, step, labels):
        """The three arrays that BigRNN takes: candidates, their expected counts, those of the labels."""
        candidates = self.candidates[step]
        return [mx.nd.array(values) for values in (candidates, expected_count(candidates), expected_count(labels))]


def train(model, trainer, data, columns):
    """Make all steps on some columns, hidden states kept from step to step."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    embedding = list(model.embedding.collect_params().values())[0]
    encoder = list(model.encoder.collect_params().values())
    hidden = model.begin_state(batch_size=len(range(BATCH)[columns]), func=mx.nd.zeros)
    for step in range(STEPS):
        inputs, labels = data.words(step, columns)
        hidden = [state.detach() for state in hidden]
        with autograd.record():
            output, hidden, target = model(mx.nd.array(inputs), mx.nd.array(labels), hidden, data.sampled(step, labels))
            losses = loss(output.reshape((-3, -1)), target.reshape((-1,)))
            losses = losses * mx.nd.array(data.mask[step][:, columns]).reshape((-1,)) / BATCH
        losses.backward()
        embedding_grad = embedding.grad()
        embedding_grad[:] *= BATCH  # gluonnlp undoes the normalisation for this table
        norm = gluon.utils.clip_global_norm([param.grad() for param in encoder], CLIP)
        assert norm < CLIP, 'clipped at step %d: %g' % (step, norm)
        trainer.step(1)  # losses are divided by the joint batch already, and gradients are summed over workers


def evaluate(model, data):
    """Exact loss on held-out words, by the other BigRNN from a saved file."""
    full = nlp.model.BigRNN(VOCABULARY, EMBED, HIDDEN, LAYERS, PROJECTION)
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / 'model.params')
        model.save_parameters(path)
        full.load_parameters(path)
    inputs, labels = data.words(STEPS)
    output, _ = full(mx.nd.array(inputs), full.begin_state(batch_size=BATCH, func=mx.nd.zeros))
    return gluon.loss.SoftmaxCrossEntropyLoss()(output.reshape((-3, -1)), mx.nd.array(labels).reshape((-1,))).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--kvstore', default='hybrid')
    arguments = parser.parse_args()
    store = mx.kv.create(arguments.kvstore)
    data = Data()
    model = nlp.model.train.BigRNN(VOCABULARY, EMBED, HIDDEN, LAYERS, PROJECTION, SAMPLES)
    mx.random.seed(1)
    model.initialize(mx.init.Xavier(factor_type='out'))
    model.hybridize(static_alloc=True, static_shape=True)
    params = model.collect_params()
    trainer = gluon.Trainer(params, 'adagrad', {'learning_rate': 0.2, 'wd': 0, 'eps': 1}, kvstore=store)
    train(model, trainer, data, slice(store.rank, None, store.num_workers))
    report(store.rank, stypes={name: param._stype for name, param in params.items()},
           weights={name: param._reduce().tostype('default') for name, param in params.items()})
    if isinstance(store, mxhybrid.Hybrid):
        report(store.rank, table=store.report(), seen=(store.rank, store.num_workers))
    if store.rank == 0:
        report(store.rank, held_out=evaluate(model, data))


if __name__ == '__main__':
    main()
