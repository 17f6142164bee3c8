"""A worker's part in the training of a network whose layers are split by a plan."""
from typing import Any, List, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

import mxhybrid
from mxhybrid import parallel

from .split_training import SplitTraining
from .transformers import Bert

WORDS, WIDTH = 30000, 512


class WithLoss(gluon.HybridBlock):
    """A network that returns the loss of each sample."""

    def __init__(self, body: Any):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.body, self.loss = body, gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, data: Any, labels: Any) -> Any:
        return self.loss(self.body(data), labels)


def convolutions_and_dense(*widths: int) -> Any:
    """Return a network for images of 64 x 64, like AlexNet, with dense layers of these widths."""
    net = nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(nn.Conv2D(32, 5, strides=2, padding=2, in_channels=3, activation='relu'), nn.MaxPool2D(2, 2),
                nn.Conv2D(64, 3, padding=1, in_channels=32, activation='relu'), nn.MaxPool2D(2, 2), nn.Flatten())
        for inputs, width in zip((4096,) + widths, widths[:-1]):
            net.add(nn.Dense(width, in_units=inputs, activation='relu'))
        net.add(nn.Dense(widths[-1], in_units=widths[-2]))
    return net


def network(workload: str) -> Any:
    """Return the network of a case, the shape of a sample, and the number of classes."""
    if workload == 'layers_softmax':
        return WithLoss(nn.Dense(WORDS, in_units=WIDTH)), (WIDTH,), WORDS
    if workload == 'layers_dense':
        return WithLoss(convolutions_and_dense(4096, 1000)), (3, 64, 64), 1000
    side = 64 if workload == 'layers_plain' else 224
    return WithLoss(vision.resnet18_v1(classes=100)), (3, side, side), 100


def batch_of(workload: str, batch: int) -> Tuple[Any, List[Any]]:
    """Return the network of a case, and arrays of the joint batch for its inputs."""
    draw = np.random.RandomState(0)
    if workload == 'layers_bert':
        words, times = 1000, 64
        return Bert(words=words, times=times), [
            draw.randint(0, words, (batch, times)), draw.randint(0, 2, (batch, times)),
            draw.randint(times // 2, times + 1, batch), draw.randint(0, 2, batch)]
    net, sample, classes = network(workload)
    return net, [draw.uniform(-1, 1, (batch,) + sample), draw.randint(0, classes, batch)]


def plan_of(name: str, size: int) -> Any:
    """Return the plan of a name, for a number of workers."""
    return {'data': parallel.data_parallel, 'trick': parallel.one_weird_trick,
            'grid': lambda: parallel.grid(model=size), 'height': lambda: parallel.grid(domain=(size,)),
            'vocabulary': lambda: parallel.by_name({'*dense*': {'channels': size}, '*log_softmax*': {'channels': size},
                                                   '*pick*': {'partials': size}})}[name]()


class Trained(SplitTraining):
    """A worker that trains by a plan, or without one."""

    def start(self) -> None:
        """Join the other workers, and split the network."""
        contender, _, sharded = self._spec['contender'].partition('_')
        self._store = mxhybrid.create(shard_updates=bool(sharded))
        batch = self._batch_size = self._spec['batch']
        net, arrays = batch_of(self._spec['workload'], batch)
        mx.random.seed(1)
        net.initialize(mx.init.Xavier())
        if contender in ('plain', 'alone'):
            net.hybridize(static_alloc=True, static_shape=True)
            rank, size = (self._rank, self._size) if contender == 'plain' else (0, 1)
            mine = slice(rank * batch // size, (rank + 1) * batch // size)
        else:
            # Statistics as without a plan, if training without a plan is in the comparison.
            batch_norm = 'local' if self._spec['workload'] == 'layers_plain' else 'joint'
            net = mxhybrid.parallelize(net, plan_of(contender, self._size),
                                       [array.shape for array in arrays], batch_norm=batch_norm)
            mine = net.samples
        self._net, self._inputs = net, [mx.nd.array(array[mine], dtype='float32') for array in arrays]
        self._trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01},
                                      kvstore=None if contender == 'alone' else self._store)
