"""The part of a worker that benchmarks of split networks share."""
from typing import Any, Dict, List

import mxnet as mx
from mxnet import autograd


class SplitTraining:
    """A worker that trains a network; the methods are those of `contenders.Contender`.

    `start` of a class below sets the store, the network, the arrays of this worker, the Trainer, and the number of
    samples of the joint batch.
    """

    _store: Any
    _net: Any
    _inputs: List[Any]
    _trainer: Any
    _batch_size: int

    def __init__(self, spec: Dict[str, Any], rank: int, size: int):
        self._spec, self._rank, self._size = spec, rank, size
        self._losses: List[Any] = []
        self.phases: Dict[str, float] = {}

    def step(self, batch: int) -> None:
        with autograd.record():
            self._loss = self._net(*self._inputs)
        self._loss.backward()
        self._trainer.step(self._batch_size)
        self._loss.wait_to_read()
        if len(self._losses) < 2:
            self._losses.append(self._loss)

    def flush(self) -> None:
        mx.nd.waitall()

    def barrier(self) -> None:
        self._store.backend.barrier()

    def verify(self, batch: int) -> Dict[str, float]:
        """The loss of this worker's samples after one update: later losses differ because rounding errors grow."""
        self.step(batch)
        return {'loss': float(self._losses[1].mean().asscalar())}
