"""Times steps of two small networks on one core, and on several cores at the same time.

One network is mostly bound by arithmetic: convolutions of many channels, and a dense layer for many samples.  The other
one is mostly bound by memory, as far as caches are memory: normalization, pooling, and dense layers for few samples.
Kernels of their own do not show how much cores slow each other down: the data of one kernel stays in caches that the
operators of a step take from each other.
"""
import statistics
import time
from typing import Any, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn

from ..profiling.timer import clock

#: Minimal seconds of a run, and minimal number of steps in it; the median of the steps counts.
RUN_S, _MIN_STEPS = 0.2, 5


class StepTimes(NamedTuple):
    """Seconds of a core for a step, forward and backward, of each network."""

    arithmetic: float
    memory: float


class StepBenchmark:
    """The networks with their data, warmed up."""

    def __init__(self) -> None:
        self._networks = [_network(blocks, shape) for blocks, shape in (
            ([nn.Conv2D(64, 3, padding=1, in_channels=64), nn.Conv2D(64, 3, padding=1, in_channels=64)],
             (8, 64, 16, 16)),
            ([nn.Dense(1024, in_units=1024)], (64, 1024)),
            ([nn.BatchNorm(in_channels=32), nn.Activation('relu'), nn.MaxPool2D(2, 2)], (8, 32, 48, 48)),
            ([nn.Dense(1024, in_units=1024), nn.Activation('relu'), nn.Dense(1024, in_units=1024)], (8, 1024)))]
        for _ in range(3):
            self._step_times()

    def run(self) -> StepTimes:
        """Make steps of both networks in turn for :data:`RUN_S` seconds, and return the median of each."""
        steps: List[StepTimes] = []
        end = time.perf_counter() + RUN_S
        while len(steps) < _MIN_STEPS or time.perf_counter() < end:
            steps.append(self._step_times())
        return StepTimes(*map(statistics.median, zip(*steps)))

    def _step_times(self) -> StepTimes:
        seconds = [_step_seconds(*network) for network in self._networks]
        return StepTimes(sum(seconds[:2]), sum(seconds[2:]))


def slowdowns(busy: Sequence[StepTimes], alone: Sequence[StepTimes]) -> StepTimes:
    """Return how many times as long steps took while several cores were busy, given repeats with and without other busy
    cores that were made in turn.
    """
    return StepTimes(*(statistics.median(these / those for these, those in zip(*of_kind))
                       for of_kind in zip(zip(*busy), zip(*alone))))


def _network(blocks: Sequence[Any], shape: Tuple[int, ...]) -> Tuple[Any, Any]:
    net = nn.HybridSequential()
    net.add(*blocks)
    net.initialize(mx.init.Xavier(), ctx=mx.cpu())
    net.hybridize(static_alloc=True, static_shape=True)
    data = mx.nd.ones(shape, ctx=mx.cpu())
    data.attach_grad()
    return net, data


def _step_seconds(net: Any, data: Any) -> float:
    now = clock()
    mx.nd.waitall()
    before = now()
    with autograd.record():
        output = net(data)
    output.backward()
    mx.nd.waitall()
    return now() - before
