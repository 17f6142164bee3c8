"""Steps of a Trainer with dense weights: the time that the store adds to a step."""
import contextlib
from typing import Any, Callable, ContextManager, Dict, NamedTuple, Optional

import mxnet as mx
from mxnet import autograd, gluon

from ...kvstore.hybrid import Hybrid
from ...kvstore.weight_shards import set_shard
from ...parallel.plans.strategies import data_parallel
from ...parallel.redistribution.worker_group import WorkerGroup
from ...parallel.runtime.builder import split_network
from ...parallel.runtime.sharded_parameters import ShardedWeight
from ...parallel.sharding.box import Box
from ..task_graph.gradient_buckets import BUCKET_BYTES

#: Bytes of weights from which on neither they nor their gradients are in a cache when they are summed and updated,
#: because a network has more of them and computes in between; and bytes of an array that is read to get that effect.
COLD_BYTES, EVICTING_BYTES = 1 << 20, 1 << 26

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
    """Steps of a Trainer (collective); `around` is entered for each.

    With a `workers`, each worker has weights of its own, as in a split network, and nothing is summed.
    """

    def __init__(self, weights: DenseWeights, around: Callable[[], ContextManager[None]] = contextlib.nullcontext,
                 workers: Optional[WorkerGroup] = None):
        self._around = around
        self._params = [gluon.Parameter('calibration%d' % number, shape=(weights.values,))
                        for number in range(weights.number)]
        for param in self._params:
            param.initialize(mx.init.Zero(), ctx=mx.cpu())
            if workers is not None:
                boxes: Dict[int, Box] = {rank: ((rank * weights.values, (rank + 1) * weights.values),)
                                         for rank in range(workers.size)}
                set_shard(param,
                          ShardedWeight(workers, (workers.size * weights.values,), 'write', boxes,
                                        workers.reserve_numbers(2)))
        self._evicting: Any = None
        if weights.size >= COLD_BYTES:
            self._evicting = mx.nd.zeros(EVICTING_BYTES // 4, ctx=mx.cpu())
        self._trainer = gluon.Trainer(self._params, OPTIMIZER, dict(SETTINGS), kvstore=Hybrid(),
                                      update_on_kvstore=False)

    def compute(self) -> None:
        """Compute gradients to sum; large ones are in no cache afterwards."""
        with autograd.record():
            heads = [param.data() * 1 for param in self._params]
        autograd.backward(heads)
        if self._evicting is not None:
            mx.nd.waitall()
            self._evicting += 1

    def step(self, updates: bool) -> None:
        """Sum the gradients, and update the weights if `updates` is true."""
        with self._around():
            if updates:
                self._trainer.step(1)
            else:
                self._trainer.allreduce_grads()


class _Passes(gluon.HybridBlock):
    """Makes some passes over all values, and returns the first value of each sample."""

    def __init__(self, passes: int):
        super().__init__()
        self._passes = passes

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        """Return the first value of each sample."""
        for _ in range(self._passes):
            data = F.relu(data)
        return F.slice_axis(data, axis=1, begin=0, end=1)


class ScriptSteps:
    """Steps of a script: a split network that computes next to nothing, and a Trainer with two weights of its own.

    With `passes`, the network reads and writes 4 MB this number of times, as a real one does: then the data that the
    script needs are in no cache.
    """

    def __init__(self, workers: WorkerGroup, weights: DenseWeights, passes: int = 0):
        values = 1 << 20 if passes else 1
        net = gluon.nn.HybridSequential()
        net.add(_Passes(passes), gluon.nn.Dense(weights.values, in_units=1))
        net.initialize(mx.init.Zero(), ctx=mx.cpu())
        self._net = split_network(net, data_parallel(), (workers.size, values), 0, 'float32', False, 'joint',
                                  tell=False)
        self._trainer = gluon.Trainer(self._net.collect_params(), OPTIMIZER, dict(SETTINGS), kvstore=Hybrid(),
                                      update_on_kvstore=False)
        self._data: Any = mx.nd.ones((1, values), ctx=mx.cpu())

    def step(self) -> None:
        """Run forward and backward, and update."""
        with autograd.record():
            output = self._net(self._data)
        output.backward()
        self._trainer.step(1)
        output.wait_to_read()
