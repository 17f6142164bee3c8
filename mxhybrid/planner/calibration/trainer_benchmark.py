"""Steps of a Trainer with dense weights: the time that the store adds to a step.

A step begins with cold caches, see :mod:`mxhybrid.planner.calibration.cpu_meter`.
"""
from typing import Any, Dict, NamedTuple, Optional

import mxnet as mx
from mxnet import autograd, gluon

from ...kvstore.hybrid import Hybrid
from ...kvstore.weight_shards import set_shard
from ...parallel.plans.strategies import data_parallel
from ...parallel.redistribution.worker_group import WorkerGroup
from ...parallel.runtime.builder import SplitArguments, split_network
from ...parallel.runtime.sharded_parameters import ShardedWeight
from ...parallel.sharding.box import Box
from ..task_graph.gradient_buckets import BUCKET_BYTES
from .cpu_meter import CacheEviction

#: Units of the dense layers of a script's network; samples of each worker, and shape of a sample: a step takes several
#: times as long as the script, which always shares its core with the network.
_UNITS, _SAMPLES, _IMAGE = 16, 32, (3, 48, 48)

#: The optimizer whose updates are timed.
OPTIMIZER, SETTINGS = 'sgd', {'learning_rate': 0.0, 'momentum': 0.9}


class DenseWeights(NamedTuple):
    """A number of weights, and the number of values of each."""

    number: int
    values: int

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return 4 * self.number * self.values

    @property
    def sums(self) -> int:
        """The number of sums in a step, see :mod:`mxhybrid.routes.dense_buckets`."""
        return -(-self.number // max(1, BUCKET_BYTES // (4 * self.values)))


class TrainerSteps:
    """Steps of a Trainer (collective).

    With `workers`, each worker has weights of its own, as in a split network, and nothing is summed.
    """

    def __init__(self, weights: DenseWeights, workers: Optional[WorkerGroup] = None):
        self._params = [gluon.Parameter('calibration%d' % number, shape=(weights.values,))
                        for number in range(weights.number)]
        for param in self._params:
            param.initialize(mx.init.Zero(), ctx=mx.cpu())
            if workers is not None:
                boxes: Dict[int, Box] = {rank: ((rank * weights.values, (rank + 1) * weights.values),)
                                         for rank in range(workers.size)}
                set_shard(param,
                          ShardedWeight(workers, (workers.size * weights.values,), boxes,
                                        workers.reserve_numbers(2)))
        self._eviction = CacheEviction()
        self._trainer = gluon.Trainer(self._params, OPTIMIZER, dict(SETTINGS), kvstore=Hybrid(),
                                      update_on_kvstore=False)

    def compute(self) -> None:
        """Compute gradients to sum; they are in no cache afterwards."""
        with autograd.record():
            heads = [param.data() * 1 for param in self._params]
        autograd.backward(heads)
        self._eviction.run()

    def step(self, updates: bool) -> None:
        """Sum the gradients, and update the weights if `updates` is true."""
        if updates:
            self._trainer.step(1)
        else:
            self._trainer.allreduce_grads()


class ScriptSteps:
    """Steps of a script: a split network, which computes while the script runs, and its Trainer (collective).

    The script's thread and the operators take the core and its caches from each other: the script takes up to three
    times as long as behind a network that computes nothing.

    - `layers`: the number of layers, each of which has two weights; at least :attr:`LEAST_LAYERS`.
    """

    #: The layers that compute.
    LEAST_LAYERS = 2

    def __init__(self, workers: WorkerGroup, layers: int):
        net = gluon.nn.HybridSequential()
        channels, height, width = _IMAGE
        for _ in range(self.LEAST_LAYERS):
            net.add(gluon.nn.Conv2D(2 * _UNITS, 3, padding=1, in_channels=channels, activation='relu'),
                    gluon.nn.MaxPool2D(2, 2))
            channels, height, width = 2 * _UNITS, height // 2, width // 2
        for number in range(layers - self.LEAST_LAYERS):
            net.add(gluon.nn.Dense(_UNITS, in_units=_UNITS if number else channels * height * width))
        net.initialize(mx.init.Zero(), ctx=mx.cpu())
        self._net = split_network(SplitArguments(net, (workers.size * _SAMPLES, *_IMAGE)), data_parallel(), tell=False)
        self._trainer = gluon.Trainer(self._net.collect_params(), OPTIMIZER, dict(SETTINGS), kvstore=Hybrid(),
                                      update_on_kvstore=False)
        self._data: Any = mx.nd.ones((_SAMPLES, *_IMAGE), ctx=mx.cpu())

    def run(self, count: int) -> None:
        """Make `count` steps: forward, backward and update."""
        for _ in range(count):
            with autograd.record():
                output = self._net(self._data)
            output.backward()
            self._trainer.step(1)
            output.wait_to_read()
