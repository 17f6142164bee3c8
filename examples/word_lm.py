"""Word-level LSTM language model with sampled softmax over row_sparse tables.

The two big tables, input embedding and output softmax, have row_sparse weights: with ``kvstore='hybrid'`` they
live on parameter servers and a worker moves only the rows that its batch touches, while the LSTM is dense and
goes through Horovod's allreduce. Run it with any of ::

    python examples/word_lm.py                                              # one process, no servers
    horovodrun -np 2 --gloo python examples/word_lm.py                      # servers start by themselves
    scripts/launch.py -n 2 -s 1 --launcher local python examples/word_lm.py # MXNet's way

With several workers on one machine, set OMP_NUM_THREADS so that the threads of all workers fit its cores. See
docs/launching.md for jobs on several hosts, and docs/observing.md for the log of worker 0. To compare::

    python examples/word_lm.py --kvstore local
    scripts/launch.py -n 2 -s 1 --launcher local python examples/word_lm.py --kvstore dist_sync

``--batch-size`` counts the samples of all workers together: the text is cut into that many columns, each worker
trains on its own adjacent columns, and all draw the same negative candidates. N workers therefore compute the same
values as one process with the same flags, up to float rounding.

With ``--checkpoint DIR --resume`` it saves everything every ``--save-every`` steps, and after a crash goes on from
there as if nothing had happened, with the same or another number of workers. ``mxhybrid run`` starts it again by
itself; with ``--elastic`` it goes on from commits in memory, also on fewer hosts ::

    mxhybrid run -np 2 --reset-limit 3 python examples/word_lm.py --checkpoint run --resume
    mxhybrid run -np 2 --min-np 1 python examples/word_lm.py --elastic --save-every 10

The default takes 2 to 3 minutes on 2 cores. ``--corpus news --vocab 30000`` is larger. The first run downloads
the text, see ``_data.py``. The last line is ``final test perplexity X``; the unigram perplexity printed at the
start is the perplexity of a model that ignores the context.

Training loss is the sampled one, on rank 0's share; perplexities are exact, over the full vocabulary. Sampling
follows Jozefowicz et al., "Exploring the Limits of Language Modeling" (2016), section 3.1: distinct candidates from
a log-uniform distribution, logits corrected by the log of the expected counts, candidates that equal the label
masked out.
"""
import argparse
import math
import time

import mxnet as mx
import numpy as np
from _cli import Checkpoints, add_common_arguments, choose_device, divisor, make_store, make_trainer, positive, share
from _data import load_corpus
from mxnet import autograd, gluon, nd
from tqdm import tqdm

import mxhybrid  # noqa: F401 (makes kvstore='hybrid' known)

EVAL_COLUMNS = 16  # of held-out text, whatever the batch size
MASKED = -1e9  # added to the logit of a candidate that is the label itself


class LogUniformSampler:
    """Draw distinct word ids with probability p(k) = log((k + 2) / (k + 1)) / log(vocab + 1), k = 0, 1, ...

    Ids must be sorted by falling frequency. The generator depends on the seed only, so that all workers draw the
    same candidates.

    Parameters
    ----------
    vocab : int
        Number of ids.
    num : int
        Ids per draw, below `vocab`.
    seed : int
    """

    def __init__(self, vocab, num, seed):
        if not 0 < num < vocab:
            raise ValueError('--samples {} must be at least 1 and less than the vocabulary of {} words'.format(
                num, vocab))
        self.vocab, self.num = vocab, num
        self._random = np.random.RandomState(seed)

    @property
    def state(self):
        """The generator's state, as a JSON value."""
        return [value.tolist() if isinstance(value, np.ndarray) else value for value in self._random.get_state()]

    @state.setter
    def state(self, value):
        self._random.set_state(tuple(value))

    def probability(self, ids):
        """Return p(k) of each id, float64."""
        return np.log1p(1.0 / (np.asarray(ids, dtype=np.float64) + 1)) / math.log(self.vocab + 1)

    def draw(self):
        """Return `num` distinct ids (int32, sorted) and how many tries it took to find them."""
        drawn = np.empty(0, dtype=np.int64)
        while True:
            uniform = self._random.random_sample(2 * self.num)
            more = np.exp(uniform * math.log(self.vocab + 1)).astype(np.int64) - 1
            drawn = np.concatenate([drawn, np.minimum(more, self.vocab - 1)])  # exp may round up to vocab + 1
            ids, first = np.unique(drawn, return_index=True)
            if len(ids) >= self.num:
                earliest = np.argsort(first)[:self.num]
                return np.sort(ids[earliest]).astype(np.int32), int(first[earliest[-1]]) + 1

    def log_expected_count(self, ids, tries):
        """Return log(1 - (1 - p)^tries), the log of the chance that an id is among the candidates."""
        return np.log(-np.expm1(tries * np.log1p(-self.probability(ids)))).astype(np.float32)


class SampledSoftmax(gluon.Block):
    """Output layer over a large vocabulary, with row_sparse weight and bias tables.

    Parameters
    ----------
    vocab, units : int
        Number of classes; width of the input.
    table : type
        ``Embedding`` for dense tables.
    """

    def __init__(self, vocab, units, table=gluon.contrib.nn.SparseEmbedding, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = table(vocab, units, prefix='out_')
            self.bias = table(vocab, 1, prefix='out_bias_')
        self._vocab = vocab

    def forward(self, hidden, labels, candidates, label_log_count, candidate_log_count):
        """Return the sampled cross entropy per token.

        Parameters
        ----------
        hidden : NDArray, shape (tokens, units)
        labels : NDArray, shape (tokens,)
        candidates : NDArray, shape (samples,)
            Classes to contrast with.
        label_log_count, candidate_log_count : NDArray, shapes (tokens,) and (samples,)
            Log expected counts under the sampling distribution.

        Returns
        -------
        NDArray, shape (tokens,)
        """
        rows = nd.concat(candidates, labels, dim=0)  # one lookup, so one pull from the store
        num = candidates.shape[0]
        weight, bias = self.weight(rows), self.bias(rows).reshape((-1,))
        true = (hidden * weight[num:]).sum(axis=1) + bias[num:] - label_log_count
        negative = nd.FullyConnected(hidden, weight[:num], bias[:num] - candidate_log_count, num_hidden=num)
        hits = nd.broadcast_equal(labels.reshape((-1, 1)), candidates.reshape((1, -1))).astype('float32')
        logits = nd.concat(true.reshape((-1, 1)), negative + hits * MASKED, dim=1)
        return -nd.log_softmax(logits)[:, 0]

    def tables(self):
        """Pull the whole weight (vocab, units) and bias (vocab,) once, dense, for the full softmax."""
        every = nd.arange(self._vocab, dtype='int64')
        return self.weight(every), self.bias(every).reshape((-1,))


class WordLM(gluon.Block):
    """Embedding, LSTM, and the hidden states that :class:`SampledSoftmax` takes."""

    def __init__(self, table, vocab, embed, hidden, layers, dropout, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = table(vocab, embed, prefix='in_')
            self.lstm = gluon.rnn.LSTM(hidden, layers, dropout=dropout, input_size=embed, prefix='lstm_')
            self.dropout = gluon.nn.Dropout(dropout)
            self.softmax = SampledSoftmax(vocab, hidden, table, prefix='')

    def forward(self, words, state):
        """Map words (time, batch) to hidden states (time * batch, units) and the LSTM's next state."""
        output, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.dropout(output).reshape((-1, output.shape[-1])), state


def batchify(tokens, columns):
    """Cut a text into equal adjacent columns: (tokens,) to (time, columns). The rest is dropped."""
    rows = len(tokens) // columns
    return np.ascontiguousarray(tokens[:rows * columns].reshape(columns, rows).T)


def unigram_perplexity(counts, tokens):
    """Return the perplexity of word frequencies (add-one smoothed) on a text: the baseline without context."""
    log_p = np.log(counts + 1.0) - math.log(counts.sum() + len(counts))
    return math.exp(-log_p[tokens].mean())


def evaluate(model, tokens, bptt):
    """Return the exact perplexity of a text.

    Every worker evaluates the whole text: all then pull the same rows at the same time, and no sum over workers
    is needed, which differs from store to store.
    """
    data = batchify(tokens, EVAL_COLUMNS)
    weight, bias = model.softmax.tables()
    state = model.lstm.begin_state(batch_size=data.shape[1])
    total = nd.zeros(1)
    for start in range(0, len(data) - 1, bptt):
        words = nd.array(data[start:start + bptt + 1], dtype='int32')
        hidden, state = model(words[:-1], state)
        logits = nd.FullyConnected(hidden, weight, bias, num_hidden=weight.shape[0])
        total = total - nd.pick(nd.log_softmax(logits), words[1:].reshape((-1,))).sum()
        total.wait_to_read()  # bounds the memory of the logits in flight
    return math.exp(total.asscalar() / ((len(data) - 1) * data.shape[1]))


class Progress:
    """The progress of training, and the values that the next step takes from the last one.

    Attributes
    ----------
    step : int
        Steps done, over all epochs.
    state : list of NDArray
        The LSTM's state, of this worker's columns.
    total : NDArray, shape (1,)
        Sum of the losses of this epoch.
    """

    def __init__(self, model, columns):
        self.step = 0
        self.begin_epoch(model, columns)

    def begin_epoch(self, model, columns):
        """Forget the text before."""
        self.state, self.total = model.lstm.begin_state(batch_size=columns), nd.zeros(1)

    def save(self, checkpoints, sampler_state):
        """Write a checkpoint, with the LSTM's state of all workers' columns."""
        parts = checkpoints.allgather([array.asnumpy().tolist() for array in self.state])
        columns = [np.concatenate(arrays, axis=1).tolist() for arrays in zip(*parts)]
        checkpoints.save(self.step, {'state': columns, 'total': self.total.asscalar().item(),
                                     'sampler': sampler_state})

    def restore(self, checkpoints, sampler, mine):
        """Restore the saved progress; `mine` are this worker's columns."""
        self.step, extra = checkpoints.step, checkpoints.extra
        self.state = [nd.array(np.array(array, dtype=np.float32)[:, mine]) for array in extra['state']]
        self.total, sampler.state = nd.array([extra['total']]), extra['sampler']


def batches(sampler, data, args, first, end):
    """Yield words, labels, candidates and log expected counts of steps, and the sampler's state after them."""
    steps = (len(data) - 1) // args.bptt
    for step in range(first, end):
        begin = step % steps * args.bptt
        words, labels = data[begin:begin + args.bptt], data[begin + 1:begin + args.bptt + 1].reshape(-1)
        candidates, tries = sampler.draw()
        counts = [sampler.log_expected_count(ids, tries) for ids in (labels, candidates)]
        yield words, labels, candidates, counts, sampler.state


def rows_of(model, batch):
    """Return the rows that a batch needs, by parameter."""
    words, labels, candidates, _, _ = batch
    outputs = np.concatenate([candidates, labels])
    return {model.embedding.weight: words, model.softmax.weight.weight: outputs, model.softmax.bias.weight: outputs}


def train_epoch(model, trainer, sampler, data, args, bar, store, progress, checkpoints, end):
    """Train on this worker's columns (time, local batch) until `end` steps of all epochs are done."""
    steps = (len(data) - 1) // args.bptt
    source = batches(sampler, data, args, progress.step, end)
    if args.prefetch:
        source = mxhybrid.prefetching(source, lambda batch: rows_of(model, batch))
    for words, labels, candidates, counts, sampler_state in source:
        step = progress.step % steps
        if args.dropout:
            mx.random.seed(args.seed + progress.step)  # MXNet's random state cannot be saved
        counts = [nd.array(array) for array in counts]
        progress.state = [array.detach() for array in progress.state]
        with autograd.record():
            hidden, progress.state = model(nd.array(words, dtype='int32'), progress.state)
            loss = model.softmax(hidden, nd.array(labels, dtype='int32'), nd.array(candidates, dtype='int32'), *counts)
            loss = loss.sum() / (args.bptt * args.batch_size)  # this worker's part of the mean over all workers
        loss.backward()
        # Sums over workers; not batch_size, which dist_sync wants to know before the first pull.
        trainer.step(divisor(args, store))
        mean = loss * (args.batch_size / data.shape[1])
        progress.total = progress.total + mean
        progress.step += 1
        checkpoints.log_loss(store, progress.step, mean)
        if checkpoints.due(progress.step):
            progress.save(checkpoints, sampler_state)
        if step % 20 == 19:
            bar.set_postfix(loss='{:.3f}'.format(progress.total.asscalar() / (step + 1)), refresh=False)
        bar.update()


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_arguments(parser, epochs=3, batch_size=64, lr=0.05, stores=['horovod'])
    parser.add_argument('--corpus', choices=['shakespeare', 'news'], default='shakespeare')
    parser.add_argument('--vocab', type=positive, default=20000, help='words kept (default %(default)s)')
    parser.add_argument('--samples', type=positive, default=512, help='candidates per step (default %(default)s)')
    parser.add_argument('--bptt', type=positive, default=35, help='words per column and step (default %(default)s)')
    parser.add_argument('--embed', type=positive, default=128, help='width of the input table (default %(default)s)')
    parser.add_argument('--hidden', type=positive, default=128, help='width of LSTM and output table (%(default)s)')
    parser.add_argument('--layers', type=positive, default=1, help='of the LSTM (default %(default)s)')
    parser.add_argument('--dropout', type=float, default=0.0, help='default %(default)s: comparable between stores')
    parser.add_argument('--clip', type=float, default=None,
                        help='clip each element of the summed gradient to +-CLIP (default: no clipping)')
    parser.add_argument('--prefetch', action='store_true', help='request the rows of the next step early, hybrid only')
    parser.add_argument('--max-tokens', type=positive, default=None, help='use only the start of the text')
    args = parser.parse_args()
    if args.prefetch and args.kvstore != 'hybrid':
        parser.error('--prefetch needs --kvstore hybrid, got {}'.format(args.kvstore))
    return args


def main():
    """Train, and print the test perplexity."""
    args = parse_arguments()
    corpus = load_corpus(args.corpus, args.vocab, args.data_dir, args.max_tokens)
    store = make_store(args)
    with choose_device(args, store):
        run(args, corpus, store)


def run(args, corpus, store):
    """Train on the device that arrays are made on."""
    vocab = len(corpus.words)
    sampler = LogUniformSampler(vocab, args.samples, args.seed)
    data = batchify(corpus.train, args.batch_size)
    steps = (len(data) - 1) // args.bptt
    if steps < 1:
        raise SystemExit('{} training tokens are too few for --batch-size {} and --bptt {}'.format(
            len(corpus.train), args.batch_size, args.bptt))
    first = store.rank == 0
    mine = data[:, share(args.batch_size, store.rank, store.num_workers)]
    if first:
        print('{}: {:,} training tokens, {:,} words; {} worker(s), kvstore {}, {} steps per epoch'.format(
            args.corpus, len(corpus.train), vocab, store.num_workers, args.kvstore, steps))
        print('unigram test perplexity {:.1f}'.format(unigram_perplexity(corpus.counts, corpus.test)), flush=True)

    mx.random.seed(args.seed)
    table = gluon.nn.Embedding if args.kvstore == 'horovod' else gluon.contrib.nn.SparseEmbedding
    model = WordLM(table, vocab, args.embed, args.hidden, args.layers, args.dropout)
    model.initialize(mx.init.Uniform(0.05))
    options = {'learning_rate': args.lr}
    if args.clip is not None:
        options['clip_gradient'] = args.clip
    trainer = make_trainer(args, model.collect_params(), options, store)

    checkpoints = Checkpoints(args, model, trainer)
    progress = Progress(model, mine.shape[1])
    if checkpoints.step:
        progress.restore(checkpoints, sampler, share(args.batch_size, store.rank, store.num_workers))
        if first:
            print('resumed after {} steps'.format(progress.step), flush=True)

    # A checkpoint of an epoch's last step comes before its evaluation, which is made up for.
    for epoch in range(max(0, progress.step - 1) // steps, args.epochs):
        if progress.step == epoch * steps:
            progress.begin_epoch(model, mine.shape[1])
        started, done = time.time(), progress.step - epoch * steps
        with tqdm(total=steps, initial=done, desc='epoch {}'.format(epoch + 1), unit='step', leave=False,
                  disable=None if first else True) as bar:  # None: silent when not a terminal
            train_epoch(model, trainer, sampler, mine, args, bar, store, progress, checkpoints, (epoch + 1) * steps)
        loss = progress.total.asscalar() / steps
        speed = (steps - done) * args.bptt * args.batch_size / (time.time() - started)
        perplexity = evaluate(model, corpus.valid, args.bptt)
        if first:
            print('epoch {}: train loss {:.3f} (sampled), validation perplexity {:.1f}, {:,.0f} words/s'.format(
                epoch + 1, loss, perplexity, speed), flush=True)
    perplexity = evaluate(model, corpus.test, args.bptt)
    if first:
        print('final test perplexity {:.1f}'.format(perplexity), flush=True)


if __name__ == '__main__':
    main()
