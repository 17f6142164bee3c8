"""Measure the time and CPU time of a Trainer's step by the way in which dense weights are updated.

``horovodrun -np 2 python -m lab.update_cost`` in ``scripts/`` compares the ways in turn, in a job of two workers;
without horovodrun, in one process.  A step sums constant gradients and updates the weights; nothing else is computed.

The ways: MXNet's operators in the workers (``mxnet``), compiled kernels in the workers, in a step (``worker``) and by
calls of ``allreduce_grads`` and ``update`` (``by hand``), the store (``store``), and sharded updates (``sharded``).
"""
import argparse
import resource
import statistics
import time
from typing import Any, Callable, Dict, List, Tuple

import mxnet as mx
from mxnet import autograd, gluon

import mxhybrid

#: Weights of five dense layers, and of ResNet-50 as in Gluon.
NETWORKS = ('mlp', 'resnet50')
OPTIMIZERS = ('sgd', 'adam')
WARM_UP = 4


class _OwnSGD(mx.optimizer.SGD):
    """An optimizer that is left to MXNet's operators, since it is a class of its own."""


class _OwnAdam(mx.optimizer.Adam):
    """An optimizer that is left to MXNet's operators, since it is a class of its own."""


def network(name: str) -> Any:
    """Return an initialised network."""
    if name == 'mlp':
        net = gluon.nn.HybridSequential()
        net.add(*[gluon.nn.Dense(1086, in_units=1086) for _ in range(5)])
    else:
        net = gluon.model_zoo.vision.resnet50_v1()
    net.initialize(mx.init.Normal(0.01))
    if name == 'resnet50':
        net(mx.nd.zeros((1, 3, 32, 32)))
    return net


def own_cpu_s() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Way:
    """A network and a Trainer that updates it in one way."""

    def __init__(self, name: str, net: Any, optimizer: Any, settings: Dict[str, Any]):
        self.name = name
        self._arrays = [param for param in net.collect_params().values() if param.grad_req != 'null']
        store = mxhybrid.create(shard_updates=1) if name == 'sharded' else 'hybrid'
        self._trainer = gluon.Trainer(net.collect_params(), optimizer, settings, kvstore=store,
                                      update_on_kvstore=name == 'store')
        with autograd.record():
            total = mx.nd.add_n(*[param.data().sum() for param in self._arrays])
        total.backward()
        self.steps: List[Tuple[float, float]] = []
        self._run(WARM_UP)

    def _run(self, steps: int) -> Tuple[float, float]:
        mx.nd.waitall()
        start_s, start_cpu_s = time.perf_counter(), own_cpu_s()
        for _ in range(steps):
            for param in self._arrays:
                param.data()._fresh_grad = True
            if self.name == 'by hand':
                self._trainer.allreduce_grads()
                self._trainer.update(1)
            else:
                self._trainer.step(1)
            mx.nd.waitall()
        return (time.perf_counter() - start_s) / steps, (own_cpu_s() - start_cpu_s) / steps

    def measure(self, steps: int) -> None:
        """Make steps and keep their mean time and CPU time."""
        self.steps.append(self._run(steps))


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--weights', choices=NETWORKS, default='mlp')
    parser.add_argument('--optimizer', choices=OPTIMIZERS, default='sgd')
    parser.add_argument('--clip', type=float, help='clip_gradient of the optimizer')
    parser.add_argument('--ways', default='mxnet,worker,by hand,store,sharded')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=20)
    options = parser.parse_args()
    classes: Dict[str, Callable[..., Any]] = {'sgd': _OwnSGD, 'adam': _OwnAdam}
    ways = []
    for name in options.ways.split(','):
        settings: Dict[str, Any]
        own, settings = name == 'mxnet', {'learning_rate': 1e-6, 'clip_gradient': options.clip}
        if options.optimizer == 'sgd':
            settings['momentum'] = 0.9
        optimizer: Any = classes[options.optimizer](**settings) if own else options.optimizer
        ways.append(Way(name, network(options.weights), optimizer, {} if own else settings))
    for _ in range(options.rounds):
        for way in ways:
            way.measure(options.steps)
    if mxhybrid.create().rank == 0:
        for way in ways:
            seconds, cpu_s = [statistics.median(values) for values in zip(*way.steps)]
            print('%-8s %7.2f ms, %7.2f ms of CPU time (least %.2f)' % (
                way.name, seconds * 1e3, cpu_s * 1e3, min(used for _, used in way.steps) * 1e3), flush=True)


if __name__ == '__main__':
    main()
