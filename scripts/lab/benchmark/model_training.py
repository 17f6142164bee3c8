"""A worker of the training workloads by MXNet: the same network and batches with each contender's own Trainer."""
import sys
from typing import Any, Dict, List

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import mxhybrid
from lab.launchers import SCRIPTS

from .contenders import CLASSES
from .layers_training import WithLoss
from .model_steps import Task, batches, initial, task_of
from .transformers import Gpt

sys.path.insert(0, str(SCRIPTS.parent / 'examples'))


class _Language(gluon.Block):
    """The model of examples/word_lm.py, which keeps the state of the LSTM between steps."""

    def __init__(self, task: Task, table: Any):
        from word_lm import WordLM

        super().__init__(prefix='')
        self.model = WordLM(table, task.words, task.width, task.width, 1, 0.0)
        self._state = self.model.lstm.begin_state(batch_size=task.samples)

    def forward(self, words: Any, labels: Any, candidates: Any, *counts: Any) -> Any:
        hidden, state = self.model(words, self._state)
        self._state = [array.detach() for array in state]
        return self.model.softmax(hidden, labels, candidates, *counts)


def _perceptron(*widths: int) -> Any:
    layers = nn.HybridSequential(prefix='')
    for inputs, outputs in zip(widths, widths[1:]):
        layers.add(nn.Dense(outputs, in_units=inputs, activation='relu'))
    return layers


class _Dlrm(gluon.Block):
    """DLRM: tables, a perceptron for numbers, products of all pairs, a perceptron."""

    def __init__(self, task: Task, table: Any):
        super().__init__(prefix='')
        self._tables = [table(rows, width) for _, rows, width in task.tables]
        for layer in self._tables:
            self.register_child(layer)
        vectors = len(self._tables) + 1
        self._pairs = nd.array([row * vectors + column for row in range(vectors) for column in range(row)])
        self.bottom = _perceptron(13, 512, 256, 64, task.width)
        self.top = _perceptron(task.width + len(self._pairs), 512, 256)
        self.last, self.loss = nn.Dense(1, in_units=256), gluon.loss.SigmoidBinaryCrossEntropyLoss()
        for layer in (self.bottom, self.top):
            layer.hybridize(static_alloc=True)

    def forward(self, numbers: Any, keys: Any, clicks: Any) -> Any:
        dense = self.bottom(numbers)
        columns = keys.split(len(self._tables), axis=1, squeeze_axis=True)
        vectors = nd.stack(dense, *[table(column) for table, column in zip(self._tables, columns)], axis=1)
        products = nd.batch_dot(vectors, vectors, transpose_b=True).reshape((0, -1))
        return self.loss(self.last(self.top(nd.concat(dense, products.take(self._pairs, axis=1), dim=1))), clicks)


def _network(task: Task, table: Any) -> Any:
    """Return a network that returns the loss of each word, sample or image."""
    if task.kind == 'gpt':
        return Gpt(words=task.words, units=task.width, times=task.times)
    if task.kind == 'resnet50':
        return WithLoss(gluon.model_zoo.vision.resnet50_v1(classes=task.words))
    return {'lm': _Language, 'dlrm': _Dlrm}[task.kind](task, table)


def _gather_trainer() -> Any:
    """Return the class of Horovod's Trainer for row_sparse gradients, which an allgather sends to all workers."""
    import horovod.mxnet as hvd

    class GatherTrainer(hvd.DistributedTrainer):
        def _allreduce_grads(self) -> None:
            for number, param in enumerate(self._params):
                if param.grad_req == 'null':
                    continue
                gradient, = param.list_grad()
                if gradient.stype == 'default':
                    hvd.allreduce_(gradient, average=False, name=str(number), priority=-number)
                    continue
                ids = hvd.allgather(gradient.indices.astype('int32'), name='%d.ids' % number).asnumpy()
                rows = hvd.allgather(gradient.data, name='%d.rows' % number).asnumpy()
                order = np.argsort(ids, kind='stable')
                unique, starts = np.unique(ids[order], return_index=True)
                nd.sparse.row_sparse_array((np.add.reduceat(rows[order], starts), unique),
                                           shape=gradient.shape).copyto(gradient)
    return GatherTrainer


class Trained:
    """A worker with the task of its job; the methods are those of `contenders.Contender`."""

    def __init__(self, spec: Dict[str, Any], rank: int, size: int):
        self._spec, self._task, self._rank, self._size = spec, task_of(spec), rank, size
        self.phases: Dict[str, float] = {}
        self._losses: List[Any] = []

    def start(self) -> None:
        """Join the other workers, and make the network and its Trainer."""
        contender, task = self._spec['contender'], self._task
        self._batches = batches(task, np.load(self._spec['data']) if self._spec['data'] else None, self._rank,
                                self._size, self._spec['warmup'] + self._spec['steps'] + 1)
        self._hvd, self._divisor = None, 1.0
        if contender.startswith('horovod'):
            import horovod.mxnet as hvd

            hvd.init()
            self._hvd = hvd
            self._divisor = 1 / hvd.size()  # Horovod averages over workers, stores add them up
            table: Any = lambda *args, **names: nn.Embedding(  # noqa: E731
                *args, sparse_grad=contender == 'horovod_gather', **names)
        else:
            self._store = (mx.kv.create(contender) if contender == 'dist_sync' else
                           mxhybrid.create(**CLASSES[contender].settings))
            table = gluon.contrib.nn.SparseEmbedding
        net = _network(task, table)
        net.initialize(mx.init.Zero())
        if task.kind in ('resnet50', 'gpt'):
            net.hybridize(static_alloc=True, static_shape=True)
            net(*self._arrays(0))  # finds the shapes
        params = net.collect_params()
        trained = [param for param in params.values() if param.grad_req != 'null']
        for number, param in enumerate(trained):
            if len(param.shape) > 1:
                param.set_data(nd.array(initial(number, param.shape)))
        settings = dict(task.settings)
        if self._hvd:
            self._hvd.broadcast_parameters(params)
            trainer = _gather_trainer() if contender == 'horovod_gather' else self._hvd.DistributedTrainer
            self._trainer = trainer(params, task.optimizer, settings)
        else:
            self._trainer = gluon.Trainer(params, task.optimizer, settings, kvstore=self._store)
        self._net = net

    def _arrays(self, number: int) -> List[Any]:
        return [nd.array(array, dtype=array.dtype) for array in self._batches[number]]

    def step(self, batch: int) -> None:
        """Forward, backward and update; wait for the loss of the step before, as a log of losses does."""
        arrays = self._arrays(len(self._losses))
        with autograd.record():
            loss = self._net(*arrays)
            share = loss.sum() / (loss.size * self._size)  # this worker's part of the mean over all workers
        share.backward()
        self._trainer.step(self._divisor)
        self._losses.append(share)
        if len(self._losses) > 1:
            self._losses[-2].wait_to_read()

    def flush(self) -> None:
        nd.waitall()

    def barrier(self) -> None:
        if self._hvd:
            self._hvd.allreduce_(nd.zeros(1), name='barrier')
            nd.waitall()
        else:
            self._store._barrier()

    def verify(self, batch: int) -> Dict[str, List[float]]:
        """Return this worker's parts of the losses of all steps."""
        return {'losses': [float(loss.asscalar()) for loss in self._losses]}
