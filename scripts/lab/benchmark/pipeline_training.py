"""A worker's part in the training of a GPT in the stages of a pipeline, or of its stage alone."""
from typing import Any, Dict, List

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid import parallel

from .pipeline import ALONE
from .split_training import SplitTraining
from .transformers import Gpt

WORDS, TIMES, UNITS = 1000, 128, 512


class _Stage(gluon.HybridBlock):
    """A layer of a GPT, with the embedding before the first layer or the output layer after the last one."""

    def __init__(self, whole: Gpt, stage: int, stages: int):
        super().__init__(prefix='')
        self.layer, self._is_first, self._is_last = whole.layers[stage], stage == 0, stage == stages - 1
        self.mask = whole.mask
        if self._is_first:
            self.embedding, self.position = whole.embedding, whole.position
        if self._is_last:
            self.norm, self.words, self.loss = whole.norm, whole.words, whole.loss
        self.params.update({param.name: param for param in [whole.mask] + [whole.position] * self._is_first})

    def hybrid_forward(self, F: Any, data: Any, labels: Any, mask: Any, position: Any = None) -> Any:
        """Return the data of the next stage, or the loss of each sample; only the last stage reads labels."""
        if self._is_first:
            data = F.broadcast_add(self.embedding(data), position)
        data = self.layer(data, mask)
        return self.loss(self.words(self.norm(data)), labels) if self._is_last else data


class PipelineTrained(SplitTraining):
    """A worker that trains a stage, as part of the pipeline or alone."""

    def start(self) -> None:
        """Join the other workers, and cut the network."""
        self._store = mxhybrid.create()
        samples, contender = self._spec['samples'], self._spec['contender']
        self._batch_size = samples
        draw = np.random.RandomState(0)
        arrays = [draw.randint(0, WORDS, (samples, TIMES)) for _ in range(2)]
        mx.random.seed(1)
        net = Gpt(layers=self._size, units=UNITS, words=WORDS, times=TIMES)
        net.initialize(mx.init.Xavier())
        if contender == ALONE:
            self._start_alone(net, arrays)
            return
        # All other operators are in the first stage that reads them, or in the last stage of their inputs.
        stages = ['*gptlayer%d_*' % stage for stage in range(self._size)]
        plan = parallel.pipeline(stages, self._spec['micro_batches'], contender)
        self._net = mxhybrid.parallelize(net, plan, [array.shape for array in arrays])
        self._inputs = [mx.nd.array(array[self._net.samples], dtype='float32') for array in arrays]
        self._trainer = gluon.Trainer(self._net.collect_params(), 'sgd', {'learning_rate': 0.01}, kvstore=self._store)

    def _start_alone(self, net: Gpt, arrays: List[Any]) -> None:
        self._net = _Stage(net, self._rank, self._size)
        self._net.hybridize(static_alloc=True, static_shape=True)
        self._net.collect_params().setattr('grad_req', 'add')
        each = self._spec['samples'] // self._spec['micro_batches']
        data, labels = (mx.nd.array(array[:each], dtype='float32') for array in arrays)
        if self._rank:
            data = mx.nd.random.normal(shape=(each, TIMES, UNITS))
            data.attach_grad()
        self._inputs = [data, labels]
        self._output_gradient = None if self._rank == self._size - 1 else mx.nd.random.normal(
            shape=(each, TIMES, UNITS))
        self._trainer = gluon.Trainer(self._net.collect_params(), 'sgd', {'learning_rate': 1e-6}, kvstore=None)

    def step(self, batch: int) -> None:
        """Make the forward and backward passes of all micro-batches, and update."""
        if self._spec['contender'] == ALONE:
            self._step_alone()
        else:
            super().step(batch)

    def _step_alone(self) -> None:
        for _ in range(self._spec['micro_batches']):
            with autograd.record():
                output = self._net(*self._inputs)
            output.backward(self._output_gradient)
        self._trainer.step(self._batch_size)
        for param in self._net.collect_params().values():
            if param.grad_req != 'null':
                param.zero_grad()
        mx.nd.waitall()

    def verify(self, batch: int) -> Dict[str, float]:
        """Return the loss of this worker's samples after one update."""
        return {} if self._spec['contender'] == ALONE else super().verify(batch)
