"""A language model like GPT, whose attention is split over heads: no worker has all weights of a layer.

Projections of attention and feed-forward layers are split as Megatron-LM has it (Shoeybi et al. 2019), embedding and
output layer over the words, all other operators over the times of the text (Korthikanti et al. 2022). The softmax over
the words is a part of the network, so that no worker has all logits. Run it with any of ::

    horovodrun -np 4 --gloo python examples/transformer_lm.py                           # heads, words and times
    horovodrun -np 4 --gloo python examples/transformer_lm.py --plan megatron           # heads and words
    horovodrun -np 4 --gloo python examples/transformer_lm.py --plan sequence:model=2,batch=2
    horovodrun -np 4 --gloo python examples/transformer_lm.py --plan pipeline           # stages of layers
    horovodrun -np 4 --gloo python examples/transformer_lm.py --recompute 'layer*'     # with fewer activations
    horovodrun -np 4 --gloo python examples/transformer_lm.py --plan data_parallel
    scripts/launch.py -n 2 -s 1 --launcher local python examples/transformer_lm.py      # MXNet's way
    python examples/transformer_lm.py                                                   # one process

With several workers on one machine set OMP_NUM_THREADS so that they do not fight for its cores. ``--plan auto
--cluster cluster.json`` searches for a plan, see docs/planner.md. The first run downloads the text, see ``_data.py``.

At the same time, worker 0 alone trains the same network on joint batches, and prints both losses: they
are the same up to rounding. There is no Dropout, whose masks would differ between plans.
"""
import argparse

import mxnet as mx
import numpy as np
from _cli import positive
from _data import load_corpus
from _plans import OneProcess, add_plan_arguments, split
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from mxhybrid.parallel import megatron, pipeline


class Attention(gluon.HybridBlock):
    """Attention of each time to itself and to earlier times, over several heads."""

    def __init__(self, units, heads, times, **kwargs):
        super().__init__(**kwargs)
        self._heads, self._times, self._scale = heads, times, (units // heads) ** -0.5
        with self.name_scope():
            self.query, self.key, self.value, self.out = (
                nn.Dense(units, flatten=False, in_units=units, prefix=name) for name in
                ('query_', 'key_', 'value_', 'out_'))

    def hybrid_forward(self, F, x):
        """Compute (samples, times, units) from the same."""
        query, key, value = (F.transpose(F.reshape(dense(x), shape=(0, 0, self._heads, -1)), axes=(0, 2, 1, 3))
                             for dense in (self.query, self.key, self.value))
        scores = F.linalg.gemm2(query, key, transpose_b=True, alpha=self._scale)
        times = F.arange(self._times)
        past = F.broadcast_greater_equal(F.reshape(times, shape=(-1, 1)), F.reshape(times, shape=(1, -1)))
        scores = F.broadcast_add(scores, F.reshape((past - 1) * 1e9, shape=(1, 1, self._times, self._times)))
        context = F.transpose(F.linalg.gemm2(F.softmax(scores), value), axes=(0, 2, 1, 3))
        return self.out(F.reshape(context, shape=(0, 0, -1)))


class Layer(gluon.HybridBlock):
    """Attention and a feed-forward network, each after a LayerNorm and added to its input."""

    def __init__(self, units, heads, times, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.attention = Attention(units, heads, times, prefix='attention_')
            self.first_norm = nn.LayerNorm(in_channels=units, prefix='norm1_')
            self.second_norm = nn.LayerNorm(in_channels=units, prefix='norm2_')
            self.wide = nn.Dense(4 * units, flatten=False, in_units=units, prefix='ffn1_')
            self.activation = nn.GELU()
            self.narrow = nn.Dense(units, flatten=False, in_units=4 * units, prefix='ffn2_')

    def hybrid_forward(self, F, x):
        """Compute (samples, times, units) from the same."""
        x = x + self.attention(self.first_norm(x))
        return x + self.narrow(self.activation(self.wide(self.second_norm(x))))


class LanguageModel(gluon.HybridBlock):
    """The loss of predicting each word of a text; the output layer has the weight of the embedding.

    Parameters
    ----------
    words, layers, units, heads : int
    times : int
        The number of words that are predicted for each sample.
    """

    def __init__(self, words, layers, units, heads, times, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.embedding = nn.Embedding(words, units, prefix='words_')
            self.positions = self.params.get('positions', shape=(1, times, units), init=mx.init.Normal(0.02))
            self.layers = nn.HybridSequential(prefix='')
            for number in range(layers):
                self.layers.add(Layer(units, heads, times, prefix='layer%d_' % number))
            self.norm = nn.LayerNorm(in_channels=units, prefix='norm_')
            self.output = nn.Dense(words, flatten=False, use_bias=False, in_units=units, prefix='words_',
                                   params=self.embedding.params)

    def hybrid_forward(self, F, text, positions):
        """Compute the loss of each sample of (samples, times + 1) word ids."""
        x = self.embedding(F.slice_axis(text, axis=1, begin=0, end=-1))
        x = self.norm(self.layers(F.broadcast_add(x, positions)))
        labels = F.slice_axis(text, axis=1, begin=1, end=None)
        return F.mean(-F.pick(F.log_softmax(self.output(x)), labels), axis=1)


class Text:
    """Random pieces of a text as word ids; batches are the same on all workers."""

    def __init__(self, ids, times, seed):
        self._ids, self._times, self._random = ids, times, np.random.RandomState(seed)

    def batch(self, count):
        """Word ids of shape (count, times + 1) of a joint batch, as an NDArray."""
        starts = self._random.randint(0, len(self._ids) - self._times, count)
        return mx.nd.array(self._ids[starts[:, None] + np.arange(self._times + 1)])


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_plan_arguments(parser, 'sequence, over all workers', steps=100, batch_size=16, lr=0.003, optimizer='adam')
    parser.add_argument('--layers', type=positive, default=2, help='default %(default)s')
    parser.add_argument('--units', type=positive, default=128, help='width of layers (default %(default)s)')
    parser.add_argument('--heads', type=positive, default=4, help='of attention (default %(default)s)')
    parser.add_argument('--times', type=positive, default=64, help='words of a sample (default %(default)s)')
    parser.add_argument('--vocab', type=positive, default=4000, help='words at most (default %(default)s)')
    parser.add_argument('--max-tokens', type=positive, default=None, help='of the text (default: all)')
    parser.add_argument('--recompute', metavar='PATTERN', default=None,
                        help="blocks whose activations are computed again in the backward pass, for example 'layer*'")
    parser.add_argument('--data-dir', default=None,
                        help='where the text is kept (default: $MXHYBRID_DATA, else ~/.cache/mxhybrid)')
    args = parser.parse_args()
    if args.units % args.heads:
        parser.error('--heads %d: give a divisor of the %d units' % (args.heads, args.units))
    return args


def main():
    """Train, and print the loss and the loss of one process."""
    args = parse_arguments()
    store = mxhybrid.create()
    mx.random.seed(args.seed)
    corpus = load_corpus('shakespeare', args.vocab, args.data_dir, args.max_tokens)
    text = Text(corpus.train, args.times, args.seed)

    def make_net():
        return LanguageModel(len(corpus.words), args.layers, args.units, args.heads, args.times, prefix='gpt_')
    net = make_net()
    net.initialize(mx.init.Normal(0.02))
    settings = {'learning_rate': args.lr}
    alone = OneProcess(net, make_net(), 'adam', settings, store, loss_of=lambda loss, _: loss)

    workers = store.num_workers
    plans = {'megatron': megatron(workers), 'sequence': megatron(workers, sequence=True),
             'pipeline': pipeline(workers, micro_batches=2 * workers)}
    net = split(args, net, plans['sequence'], (args.batch_size, args.times + 1), plans)
    trainer = gluon.Trainer(net.collect_params(), 'adam', settings, kvstore=store)
    for step in range(1, args.steps + 1):
        data = text.batch(args.batch_size)
        with autograd.record():
            loss = net(data[net.samples])
        loss.backward()
        trainer.step(args.batch_size)
        loss_alone = alone.step(data, None)
        if step % 10 == 0 or step == args.steps:
            losses = alone.joint(trainer, net, loss, loss_alone)
            if store.rank == 0:
                print('step %d: loss %.4f, in one process %.4f' % ((step,) + losses), flush=True)
    if args.save is not None:
        net.save_parameters(args.save)


if __name__ == '__main__':
    main()
