"""Convolutions on large images, split by height: more workers than images can train together.

Each worker has a strip of every image. Before a convolution neighbours give each other the rows that its kernel reads
across the border, and BatchNorm takes the statistics of all strips ("domain parallelism" of Gholami et al., "Integrated
Model, Batch, and Domain Parallelism in Training Neural Networks", SPAA 2018). A worker's activations shrink with the
number of workers, whatever the batch is. Run it with any of ::

    horovodrun -np 4 --gloo python examples/large_images.py                      # four strips of each image
    horovodrun -np 4 --gloo python examples/large_images.py --plan grid:domain=2x2
    scripts/launch.py -n 2 -s 1 --launcher local python examples/large_images.py # MXNet's way
    python examples/large_images.py                                              # one process

With several workers on one machine set OMP_NUM_THREADS so that they do not fight for its cores. ``--plan auto
--cluster cluster.json`` searches for a plan, see docs/planner.md.

At the same time, worker 0 alone trains the same network on whole images, and prints both losses: they are
the same up to rounding, which BatchNorm over few samples makes grow from step to step. Images are made, not
photographed: stripes with noise on them, whose direction is the class.
"""
import argparse

import mxnet as mx
import numpy as np
from _cli import positive
from _plans import OneProcess, add_plan_arguments, split
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid

CLASSES = 4
NOISE, WAVE = 0.5, 24  # the noise, where stripes have amplitude 1; the distance of stripes in pixels


def make_net():
    """Convolutions with BatchNorm, an average of the whole image, and a dense layer."""
    net = nn.HybridSequential(prefix='large_')
    with net.name_scope():
        for channels, kernel, stride in [(16, 7, 2), (32, 3, 2), (32, 3, 1), (64, 3, 2), (64, 3, 1)]:
            net.add(nn.Conv2D(channels, kernel, stride, kernel // 2, use_bias=False), nn.BatchNorm(),
                    nn.Activation('relu'))
        net.add(nn.GlobalAvgPool2D(), nn.Dense(CLASSES))
    return net


class Images:
    """Stripes of four directions; batches are the same on all workers."""

    def __init__(self, seed, side):
        self._random = np.random.RandomState(seed)
        self._side = side
        self._down, self._right = np.mgrid[:side, :side] * (2 * np.pi / WAVE)

    def batch(self, count):
        """Images of shape (count, 3, side, side) and labels of a joint batch, as NDArrays."""
        labels = self._random.randint(0, CLASSES, count)
        angles, phases = np.pi * labels / CLASSES, self._random.uniform(0, 2 * np.pi, count)
        waves = [np.sin(np.cos(angle) * self._down + np.sin(angle) * self._right + phase)
                 for angle, phase in zip(angles, phases)]
        noise = NOISE * self._random.normal(size=(count, 3, self._side, self._side))
        return mx.nd.array(np.stack(waves)[:, None] + noise), mx.nd.array(labels)


def parse_arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_plan_arguments(parser, 'height, over all workers', steps=40, batch_size=4, lr=0.005)
    parser.add_argument('--side', type=positive, default=256, help='pixels of an image (default %(default)s)')
    return parser.parse_args()


def main():
    """Train, and print the loss and the loss of one process."""
    args = parse_arguments()
    store = mxhybrid.create()
    mx.random.seed(args.seed)
    net, images = make_net(), Images(args.seed, args.side)
    net.initialize(mx.init.Xavier())
    net(images.batch(1)[0])  # settles shapes
    settings = {'learning_rate': args.lr, 'momentum': 0.9}
    reference = OneProcess(net, make_net(), 'sgd', settings, store)

    net = split(args, net, mxhybrid.parallel.grid(domain=(store.num_workers,)),
                (args.batch_size, 3, args.side, args.side))
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
            if store.rank == 0:
                print('step %d: loss %.4f, in one process %.4f' % ((step,) + losses), flush=True)
    if args.save is not None:
        net.save_parameters(args.save)


if __name__ == '__main__':
    main()
