"""Movie recommender on MovieLens-100k: matrix factorisation and a small dense network.

Users and movies have embedding and bias tables with row_sparse weights (``kvstore='hybrid'``: on parameter
servers, a worker moves only the rows of its batch), the network over both embeddings and the movie's genres is
dense (Horovod's allreduce). Run it with any of ::

    python examples/recommender.py                                              # one process, no servers
    horovodrun -np 2 --gloo python examples/recommender.py                      # servers start by themselves
    scripts/launch.py -n 2 -s 1 --launcher local python examples/recommender.py # MXNet's way

With several workers on one machine, set OMP_NUM_THREADS so that the threads of all workers fit its cores. See
docs/launching.md for jobs on several hosts, and docs/observing.md for the log of worker 0. To compare::

    python examples/recommender.py --kvstore local
    scripts/launch.py -n 2 -s 1 --launcher local python examples/recommender.py --kvstore dist_sync

``--batch-size`` counts the samples of all workers together, and each worker trains on its own part of every
batch: N workers compute the same values as one process with the same flags, up to float rounding.

The ratings are split 80/10/10 by a fixed random order into training, validation and test, whatever ``--seed``
says. The last line is ``final test RMSE X``, in stars; the RMSE of a model that knows only the mean rating is
printed at the start. Training errors are computed from rank 0's share. The first run downloads the ratings, see
``_data.py``. The default takes well under a minute.

The L2 penalty is part of the loss, on the rows of the batch only: weight decay in the optimizer would touch every
row of a table in every step, and MXNet's sparse adagrad rejects it.
"""
import argparse
import math
import time

import mxnet as mx
import numpy as np
from _cli import Checkpoints, add_common_arguments, choose_device, make_store, make_trainer, positive, share
from _data import load_ratings
from mxnet import autograd, gluon, nd
from tqdm import tqdm

import mxhybrid  # noqa: F401 (makes kvstore='hybrid' known)

SPLIT_SEED = 0  # fixed, so that test errors of different runs are comparable
EVAL_BATCH = 5000


class Recommender(gluon.Block):
    """Rating = mean + user bias + movie bias + <user, movie> + network(user, movie, genres).

    Parameters
    ----------
    num_users, num_items : int
    embed : int
        Width of the embedding tables.
    hidden : int
        Width of the network's hidden layer.
    mean : float
        Mean rating of the training set.
    """

    def __init__(self, num_users, num_items, embed, hidden, mean, **kwargs):
        super().__init__(**kwargs)
        self._mean = mean
        table = gluon.contrib.nn.SparseEmbedding
        with self.name_scope():
            self.user = table(num_users, embed, prefix='user_')
            self.item = table(num_items, embed, prefix='item_')
            self.user_bias = table(num_users, 1, prefix='user_bias_')
            self.item_bias = table(num_items, 1, prefix='item_bias_')
            self.network = gluon.nn.HybridSequential(prefix='network_')
            with self.network.name_scope():
                self.network.add(gluon.nn.Dense(hidden, activation='relu'), gluon.nn.Dense(1))

    def forward(self, users, items, genres):
        """Return the predicted stars and the squared norm of the rows used, both of shape (batch,)."""
        user, item = self.user(users), self.item(items)
        user_bias, item_bias = self.user_bias(users).reshape((-1,)), self.item_bias(items).reshape((-1,))
        deep = self.network(nd.concat(user, item, genres, dim=1)).reshape((-1,))
        norm = (user ** 2).sum(axis=1) + (item ** 2).sum(axis=1) + user_bias ** 2 + item_bias ** 2
        return self._mean + user_bias + item_bias + (user * item).sum(axis=1) + deep, norm


def split(num, seed=SPLIT_SEED):
    """Return the shuffled indices of the training (80 %), validation (10 %) and test (10 %) samples."""
    order = np.random.RandomState(seed).permutation(num)
    return np.split(order, [num * 8 // 10, num * 9 // 10])


def global_batches(samples, batch_size, random):
    """Return one epoch's batches, shape (steps, batch_size): shuffled, an incomplete last one dropped."""
    steps = len(samples) // batch_size
    return random.permutation(samples)[:steps * batch_size].reshape(steps, batch_size)


def as_input(ratings, samples):
    """Return users, items and genres of some ratings as NDArrays."""
    items = ratings.items[samples]
    return (nd.array(ratings.users[samples], dtype='int32'), nd.array(items, dtype='int32'),
            nd.array(ratings.genres[items]))


def evaluate(model, ratings, samples):
    """Return the RMSE in stars. Every worker evaluates all samples, so that no sum over workers is needed."""
    squared = 0.0
    for start in range(0, len(samples), EVAL_BATCH):
        batch = samples[start:start + EVAL_BATCH]
        predicted, _ = model(*as_input(ratings, batch))
        error = predicted.clip(1, 5).asnumpy() - ratings.stars[batch]
        squared += float((error ** 2).sum())
    return math.sqrt(squared / len(samples))


def train_epoch(model, trainer, ratings, batches, mine, args, bar, store, checkpoints, before):
    """Train on this worker's slice of each batch and return its mean squared error, without the penalty.

    `before` steps were done in earlier epochs; those of this one that a checkpoint has are left out.
    """
    done = max(0, checkpoints.step - before)
    total = nd.array([checkpoints.extra['total'] if done else 0.0])
    for step, batch in list(enumerate(batches))[done:]:
        batch = batch[mine]
        stars = nd.array(ratings.stars[batch])
        with autograd.record():
            predicted, norm = model(*as_input(ratings, batch))
            error = (predicted - stars) ** 2
            loss = (error + args.l2 * norm).sum() / args.batch_size  # this worker's part of the mean over all
        loss.backward()
        trainer.step(1)  # sums over workers; not batch_size, which dist_sync wants to know before the first pull
        total = total + error.mean()
        checkpoints.log_loss(store, before + step + 1, error.mean())
        if checkpoints.due(before + step + 1):
            checkpoints.save(before + step + 1, {'total': total.asscalar().item()})
        if step % 20 == 19:
            bar.set_postfix(mse='{:.3f}'.format(total.asscalar() / (step + 1)), refresh=False)
        bar.update()
    return total.asscalar() / len(batches)


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_arguments(parser, epochs=6, batch_size=500, lr=0.05)
    parser.add_argument('--embed', type=positive, default=32, help='width of the tables (default %(default)s)')
    parser.add_argument('--hidden', type=positive, default=64, help='width of the network (default %(default)s)')
    parser.add_argument('--l2', type=float, default=0.1, help='penalty on the rows used (default %(default)s)')
    parser.add_argument('--max-samples', type=positive, default=None, help='use only that many ratings')
    return parser.parse_args()


def main():
    """Train, and print the test RMSE."""
    args = parse_arguments()
    ratings = load_ratings(args.data_dir)
    store = make_store(args)
    with choose_device(args, store):
        run(args, ratings, store)


def run(args, ratings, store):
    """Train on the device that arrays are made on."""
    train, valid, test = split(min(len(ratings.stars), args.max_samples or len(ratings.stars)))
    mean = float(ratings.stars[train].mean())
    steps = len(train) // args.batch_size
    if steps < 1:
        raise SystemExit('{} training ratings are too few for --batch-size {}'.format(len(train), args.batch_size))
    first = store.rank == 0
    mine = share(args.batch_size, store.rank, store.num_workers)
    if first:
        print('MovieLens: {:,} training ratings, {:,} users, {:,} movies; {} worker(s), kvstore {}, {} steps per '
              'epoch'.format(len(train), ratings.num_users, ratings.num_items, store.num_workers, args.kvstore, steps))
        print('mean rating test RMSE {:.4f}'.format(np.std(ratings.stars[test] - mean)), flush=True)

    mx.random.seed(args.seed)
    random = np.random.RandomState(args.seed)  # the same order on every worker
    model = Recommender(ratings.num_users, ratings.num_items, args.embed, args.hidden, mean)
    model.initialize(mx.init.Uniform(0.05))
    trainer = make_trainer(args, model.collect_params(), {'learning_rate': args.lr}, store)

    checkpoints = Checkpoints(args, model, trainer)
    if checkpoints.step and first:
        print('resumed after {} steps'.format(checkpoints.step), flush=True)

    for epoch in range(args.epochs):
        started, done = time.time(), min(steps, max(0, checkpoints.step - epoch * steps))
        batches = global_batches(train, args.batch_size, random)
        if checkpoints.step > (epoch + 1) * steps:
            continue  # its order was drawn, as it was then
        with tqdm(total=steps, initial=done, desc='epoch {}'.format(epoch + 1), unit='step', leave=False,
                  disable=None if first else True) as bar:  # None: silent when not a terminal
            error = train_epoch(model, trainer, ratings, batches, mine, args, bar, store, checkpoints, epoch * steps)
        speed = (steps - done) * args.batch_size / (time.time() - started)
        rmse = evaluate(model, ratings, valid)
        if first:
            print('epoch {}: train RMSE {:.4f}, validation RMSE {:.4f}, {:,.0f} ratings/s'.format(
                epoch + 1, math.sqrt(error), rmse, speed), flush=True)
    rmse = evaluate(model, ratings, test)
    if first:
        print('final test RMSE {:.4f}'.format(rmse), flush=True)


if __name__ == '__main__':
    main()
