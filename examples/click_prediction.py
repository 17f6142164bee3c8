"""Click prediction with DeepFM: 26 categorical features, whose rows only the servers hold.

Each value of each feature is a 64-bit key of one ``mxhybrid.nn.HashEmbedding``, a table that grows as keys appear:
there is no dictionary of values, and no process holds the table. A row has the weight of the value and its factors; the
network over the factors is dense (Guo et al., "DeepFM", IJCAI 2017). Run it with any of ::

    python examples/click_prediction.py                                              # one process, no servers
    horovodrun -np 2 --gloo python examples/click_prediction.py                      # servers start by themselves
    scripts/launch.py -n 2 -s 1 --launcher local python examples/click_prediction.py # MXNet's way

The data is MovieLens-100k: its raw fields and pairs of them, as text. A rating of 4 or 5 stars counts as a click. With
``--drawn`` it is drawn, in the shape of Criteo's logs: the features have 10^9 possible keys, whose frequencies follow a
power law, and each key has a hidden weight, from which the clicks are drawn.

With ``--checkpoint DIR`` the first checkpoint is whole, and each later checkpoint has only the rows that changed.
In the end worker 0 reads the newest one, without MXNet and without servers, and prints the metrics again;
``--evaluate`` does only that. ``mxhybrid checkpoint compact DIR`` merges the files. With ``--export PREFIX`` worker 0
writes the network for examples/serve.py, which serves the newest checkpoint during the training.

``--batch-size`` counts the samples of all workers together, and each worker trains on its own part of every batch: N
workers compute the same values as one process with the same flags, up to float rounding. The last line is ``final test
AUC X, log loss Y``.
"""
import argparse
import time
from dataclasses import dataclass

import mxnet as mx
import numpy as np
from _cli import Checkpoints, add_common_arguments, choose_device, make_store, make_trainer, positive, share
from _data import crossed_fields
from mxnet import autograd, gluon, nd
from tqdm import tqdm

import mxhybrid

SPLIT_SEED = 0  # fixed, so that metrics of different runs are comparable
EVAL_BATCH = 4096
FEATURES = 26
DRAWN_KEYS = 10 ** 9  # of all features together
POWER = 1.1  # exponent of the power law of drawn keys


@dataclass(frozen=True)
class Samples:
    """Samples of both data sets.

    Attributes
    ----------
    keys : numpy.ndarray of int64, shape (samples, FEATURES)
    clicks : numpy.ndarray of float32, shape (samples,)
        1 for a click, else 0.
    """

    keys: np.ndarray
    clicks: np.ndarray


# -------------------------------------------------------------------------------------------- data


def movielens(data_dir):
    """Return MovieLens-100k as samples, with its fields as text."""
    texts, stars = crossed_fields(data_dir)
    assert len(texts) == FEATURES
    columns = []
    for name, column in texts.items():
        values, places = np.unique(column, return_inverse=True)
        columns.append(np.array([mxhybrid.nn.hash_key(name, str(value)) for value in values])[places.reshape(-1)])
    return Samples(np.stack(columns, axis=1), (stars >= 4).astype(np.float32))


def drawn(count, seed=SPLIT_SEED):
    """Return `count` drawn samples, in the shape of Criteo's logs."""
    random = np.random.RandomState(seed)
    # Features have a few keys to hundreds of millions, as in Criteo's logs, DRAWN_KEYS together.
    sizes = np.geomspace(3, DRAWN_KEYS, FEATURES)
    sizes = np.maximum(3, sizes * (DRAWN_KEYS / sizes.sum())).astype(np.int64)
    # Ranks of a power law with this exponent, by the inverse of its continuous distribution function.
    uniform = random.rand(count, FEATURES)
    ranks = ((1 + uniform * (sizes ** (1 - POWER) - 1)) ** (1 / (1 - POWER))).astype(np.int64)
    keys = mixed(ranks * FEATURES + np.arange(FEATURES))
    weights = mixed(keys).astype(np.float64) / 2 ** 63  # of each key, from -1 to 1
    chance = 1 / (1 + np.exp(-(weights.sum(axis=1) - 1)))
    return Samples(keys, (random.rand(count) < chance).astype(np.float32))


def mixed(numbers):
    """Return 64-bit numbers that look random, by the finalizer of splitmix64."""
    bits = numbers.astype(np.int64).view(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)


def split(num, seed=SPLIT_SEED):
    """Return the shuffled indices of the training (80 %), validation (10 %) and test (10 %) samples."""
    order = np.random.RandomState(seed).permutation(num)
    return np.split(order, [num * 8 // 10, num * 9 // 10])


# ------------------------------------------------------------------------------------------- model


class DeepFM(gluon.Block):
    """A factorization machine and a network, which share the rows of the features.

    Parameters
    ----------
    width : int
        Number of factors of a feature's value.
    hidden : int
        Width of both hidden layers.
    """

    def __init__(self, width, hidden, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = mxhybrid.nn.HashEmbedding(1 + width, weight_initializer=mx.init.Normal(0.01))
            self.network = gluon.nn.HybridSequential(prefix='network_')
            with self.network.name_scope():
                self.network.add(gluon.nn.Dense(hidden, activation='relu'),
                                 gluon.nn.Dense(hidden, activation='relu'), gluon.nn.Dense(1))

    def forward(self, keys):
        """Return the logits of clicks, of shape (samples,); `keys` has the shape (samples, FEATURES)."""
        rows = self.features(keys)
        weights, factors = rows.slice_axis(2, 0, 1).flatten(), rows.slice_axis(2, 1, None)
        pairs = (factors.sum(axis=1) ** 2 - (factors ** 2).sum(axis=1)).sum(axis=1) / 2
        return weights.sum(axis=1) + pairs + nd.reshape(self.network(factors.flatten()), (-1,))


def logits_of(tables, keys):
    """Return the result of :class:`DeepFM`, from the tables of a checkpoint and by NumPy alone."""
    rows = tables['features'].rows(keys)
    weights, factors = rows[:, :, 0], rows[:, :, 1:]
    pairs = (factors.sum(axis=1) ** 2 - (factors ** 2).sum(axis=1)).sum(axis=1) / 2
    hidden = factors.reshape(len(keys), -1)
    for layer in range(3):
        hidden = hidden @ tables['network.%d.weight' % layer].numpy().T + tables['network.%d.bias' % layer].numpy()
        if layer < 2:
            hidden = np.maximum(hidden, 0)
    return weights.sum(axis=1) + pairs + hidden[:, 0]


def metrics(logits, clicks):
    """Return the area under the ROC curve, and the log loss."""
    ordered, places, counts = np.unique(logits, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places.reshape(-1)]  # from 1; equal logits share their mean rank
    clicked = clicks.sum()
    auc = (ranks[clicks == 1].sum() - clicked * (clicked + 1) / 2) / (clicked * (len(clicks) - clicked))
    return auc, float(np.mean(np.logaddexp(0, logits) - clicks * logits))


def evaluate(model, samples, indices):
    """Return AUC and log loss of some samples; `model` returns logits. Every worker evaluates all of them."""
    parts = [indices[start:start + EVAL_BATCH] for start in range(0, len(indices), EVAL_BATCH)]
    logits = [model(samples.keys[part]) for part in parts]
    return metrics(np.concatenate(logits).astype(np.float64), samples.clicks[indices])


def evaluate_checkpoint(directory, samples, indices):
    """Print AUC and log loss of the newest checkpoint."""
    with mxhybrid.checkpoint.open(directory) as tables:
        measures = evaluate(lambda keys: logits_of(tables, keys), samples, indices)
        print('checkpoint of step {}: {:,} rows, test AUC {:.4f}, log loss {:.4f}'.format(
            tables.step, len(tables['features']), *measures), flush=True)


# ---------------------------------------------------------------------------------------- training


def train_epoch(model, trainer, samples, batches, mine, args, bar, store, checkpoints, before):
    """Train on this worker's slice of each batch; return its mean loss.

    `before` steps were done in earlier epochs; those of this one that a checkpoint has are left out.
    """
    loss_of = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    done = max(0, checkpoints.step - before)
    total = checkpoints.extra['total'] if done else 0.0
    for step, batch in list(enumerate(batches))[done:]:
        batch = batch[mine]
        with autograd.record():
            loss = loss_of(model(samples.keys[batch]), nd.array(samples.clicks[batch]))
        loss.backward()
        trainer.step(args.batch_size)
        mean = loss.mean()
        total += mean.asscalar().item()
        checkpoints.log_loss(store, before + step + 1, mean)
        if checkpoints.due(before + step + 1):
            checkpoints.save(before + step + 1, {'total': total}, delta=True)
        bar.set_postfix(loss='{:.4f}'.format(total / (step + 1)), refresh=False)
        bar.update()
    return total / len(batches)


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_arguments(parser, epochs=2, batch_size=512, lr=0.03)
    parser.add_argument('--width', type=positive, default=8, help='factors of a value (default %(default)s)')
    parser.add_argument('--hidden', type=positive, default=64, help='width of the network (default %(default)s)')
    parser.add_argument('--drawn', action='store_true', help="draw samples in the shape of Criteo's logs")
    parser.add_argument('--max-samples', type=positive, default=None,
                        help='use only that many samples (default: all of MovieLens, 200,000 drawn ones)')
    parser.add_argument('--export', metavar='PREFIX', default=None,
                        help='worker 0 writes the network for examples/serve.py to PREFIX-symbol.json')
    parser.add_argument('--evaluate', action='store_true', help='only evaluate the newest checkpoint')
    return parser.parse_args()


def main():
    """Train, and print the metrics of the test samples."""
    args = parse_arguments()
    if args.evaluate and args.checkpoint is None:
        raise SystemExit('--evaluate needs --checkpoint, the directory to read from')
    samples = drawn(args.max_samples or 200_000) if args.drawn else movielens(args.data_dir)
    train, valid, test = split(min(len(samples.clicks), args.max_samples or len(samples.clicks)))
    if args.evaluate:
        evaluate_checkpoint(args.checkpoint, samples, test)
        return
    store = make_store(args)
    with choose_device(args, store):
        run(args, samples, train, valid, test, store)


def run(args, samples, train, valid, test, store):
    """Train on the device that arrays are made on."""
    steps = len(train) // args.batch_size
    if steps < 1:
        raise SystemExit('{} training samples are too few for --batch-size {}'.format(len(train), args.batch_size))
    first = store.rank == 0
    mine = share(args.batch_size, store.rank, store.num_workers)
    if first:
        print('{}: {:,} training samples, {:.1%} clicks, {:,} keys; {} worker(s), kvstore {}, {} steps per '
              'epoch'.format('drawn' if args.drawn else 'MovieLens', len(train), samples.clicks[train].mean(),
                             len(np.unique(samples.keys[train])), store.num_workers, args.kvstore, steps), flush=True)

    mx.random.seed(args.seed)
    random = np.random.RandomState(args.seed)  # the same order on every worker
    model = DeepFM(args.width, args.hidden)
    model.initialize(mx.init.Xavier())
    model(samples.keys[:1])  # finds the shapes
    if args.export is not None and first:
        mxhybrid.nn.export(model, args.export, samples.keys[:2])
    trainer = make_trainer(args, model.collect_params(), {'learning_rate': args.lr}, store)

    checkpoints = Checkpoints(args, model, trainer)
    if checkpoints.step and first:
        print('resumed after {} steps'.format(checkpoints.step), flush=True)

    for epoch in range(args.epochs):
        started, done = time.time(), min(steps, max(0, checkpoints.step - epoch * steps))
        batches = random.permutation(train)[:steps * args.batch_size].reshape(steps, args.batch_size)
        if checkpoints.step > (epoch + 1) * steps:
            continue  # its order was drawn, as it was then
        with tqdm(total=steps, initial=done, desc='epoch {}'.format(epoch + 1), unit='step', leave=False,
                  disable=None if first else True) as bar:  # None: silent when not a terminal
            loss = train_epoch(model, trainer, samples, batches, mine, args, bar, store, checkpoints, epoch * steps)
        speed = (steps - done) * args.batch_size / (time.time() - started)
        auc, log_loss = evaluate(lambda keys: model(keys).asnumpy(), samples, valid)
        if first:
            print('epoch {}: train loss {:.4f}, validation AUC {:.4f}, log loss {:.4f}, {:,.0f} samples/s'.format(
                epoch + 1, loss, auc, log_loss, speed), flush=True)
    if args.checkpoint is not None:
        checkpoints.save(args.epochs * steps, {'total': 0.0}, delta=True)
    auc, log_loss = evaluate(lambda keys: model(keys).asnumpy(), samples, test)
    if first:
        if args.checkpoint is not None:
            evaluate_checkpoint(args.checkpoint, samples, test)
        print('final test AUC {:.4f}, log loss {:.4f}'.format(auc, log_loss), flush=True)


if __name__ == '__main__':
    main()
