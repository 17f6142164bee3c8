"""A network like AlexNet, on a grid of model x batch: dense layers are split, convolutions take samples.

Nearly all weights are in the dense layers, and nearly all computing in the convolutions. On the grid (Gholami et al.,
"Integrated Model, Batch, and Domain Parallelism in Training Neural Networks", SPAA 2018) no worker holds all weights of
a dense layer, so that their gradients need not be summed among all; activations move instead. Run it with any of ::

    horovodrun -np 4 --gloo python examples/alexnet.py                           # a grid of model 2 x batch 2
    horovodrun -np 4 --gloo python examples/alexnet.py --plan one_weird_trick
    scripts/launch.py -n 2 -s 1 --launcher local python examples/alexnet.py      # MXNet's way
    python examples/alexnet.py                                                   # one process

With several workers on one machine set OMP_NUM_THREADS so that they do not fight for its cores. ``--plan auto
--cluster cluster.json`` searches for a plan, see docs/planner.md.

At the same time, worker 0 alone trains the same network on joint batches, and prints both losses: they
are the same up to rounding. Images are made, not photographed: each class is a fixed pattern of colours, shifted at
random and with noise on it. The network is smaller than AlexNet and has no Dropout, whose masks would differ between
plans.
"""
import argparse

import mxnet as mx
import numpy as np
from _cli import positive
from _plans import OneProcess, add_plan_arguments, split
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid

CLASSES, SIDE = 10, 32
NOISE, SHIFT = 1.0, 4


def make_net(hidden):
    """Convolutions, then three dense layers."""
    net = nn.HybridSequential(prefix='alexnet_')
    with net.name_scope():
        net.add(nn.Conv2D(32, 5, padding=2, activation='relu'), nn.MaxPool2D(2, 2),
                nn.Conv2D(64, 3, padding=1, activation='relu'), nn.MaxPool2D(2, 2),
                nn.Conv2D(64, 3, padding=1, activation='relu'), nn.MaxPool2D(2, 2), nn.Flatten(),
                nn.Dense(hidden, activation='relu'), nn.Dense(hidden, activation='relu'), nn.Dense(CLASSES))
    return net


class Images:
    """Patterns of few pixels, made larger; batches are the same on all workers."""

    def __init__(self, seed):
        self._random = np.random.RandomState(seed)
        self._patterns = self._random.normal(size=(CLASSES, 3, 4, 4)).repeat(SIDE // 4, 2).repeat(SIDE // 4, 3)

    def batch(self, count):
        """Images of shape (count, 3, 32, 32) and labels of a joint batch, as NDArrays."""
        labels = self._random.randint(0, CLASSES, count)
        shifts = self._random.randint(-SHIFT, SHIFT + 1, (count, 2))
        images = [np.roll(self._patterns[label], shift, (1, 2)) for label, shift in zip(labels, shifts)]
        return mx.nd.array(images + NOISE * self._random.normal(size=(count, 3, SIDE, SIDE))), mx.nd.array(labels)


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_plan_arguments(parser, 'a grid with a model degree of 2, or of all workers where they are odd', steps=50,
                       batch_size=32, lr=0.003)
    parser.add_argument('--hidden', type=positive, default=1024, help='width of dense layers (default %(default)s)')
    return parser.parse_args()


def main():
    """Train, and print the loss and the loss of one process."""
    args = parse_arguments()
    store = mxhybrid.create()
    workers, first = store.num_workers, store.rank == 0
    mx.random.seed(args.seed)
    net, images = make_net(args.hidden), Images(args.seed)
    net.initialize(mx.init.Xavier())
    net(images.batch(1)[0])  # settles shapes
    settings = {'learning_rate': args.lr, 'momentum': 0.9}
    reference = OneProcess(net, make_net(args.hidden), 'sgd', settings, store)

    model = 2 if workers % 2 == 0 else workers
    net = split(args, net, mxhybrid.parallel.grid(model=model, batch=workers // model),
                (args.batch_size, 3, SIDE, SIDE))
    trainer = gluon.Trainer(net.collect_params(), 'sgd', settings, kvstore=store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(1, args.steps + 1):
        data, labels = images.batch(args.batch_size)
        with autograd.record():
            loss = loss_of(net(data[net.samples]), labels[net.samples])
        loss.backward()
        trainer.step(args.batch_size)
        alone = reference.step(data, labels)
        if step % 10 == 0 or step == args.steps:
            losses = reference.joint(trainer, net, loss, alone)
            if first:
                print('step %d: loss %.4f, in one process %.4f' % ((step,) + losses), flush=True)
    if args.save is not None:
        net.save_parameters(args.save)


if __name__ == '__main__':
    main()
