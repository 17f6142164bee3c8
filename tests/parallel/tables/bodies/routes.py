"""Train tables of which a step touches most rows and one of which it touches few; routes are up to the store.

As ``train.py``, ``--kvstore device`` in one process gives the reference.  The costs of the network can
be given, so that no decision depends on how busy the machine is.
"""
import os

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from mxhybrid.routes.chooser import MEASURED_STEPS
from mxhybrid.routes.costs import Network, Speed
from tests.helpers.training_steps import weights_of
from tests.parallel.training.bodies.train import LOSS, Worker, parser_of

ROWS, WIDTH, TOUCHED, TIMES = 4096, 64, 4000, 8
BATCH = TOUCHED * TIMES
SWITCH = MEASURED_STEPS  # the step that decides
OPTIMIZERS = {'sgd': {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 1e-3}, 'adagrad': {'learning_rate': 0.1},
              # A large epsilon keeps divisions by small roots from magnifying rounding.
              'adam': {'learning_rate': 0.01, 'epsilon': 1e-2}, 'rmsprop': {'learning_rate': 0.01, 'epsilon': 1e-2}}


class Model(gluon.Block):
    """Two tables that a step touches nearly whole, one of them dense with row_sparse gradients, and a rare one."""

    def __init__(self):
        super().__init__(prefix='net_')
        with self.name_scope():
            self.near = SparseEmbedding(ROWS, WIDTH, prefix='near_')
            self.bins = nn.Embedding(ROWS, WIDTH, sparse_grad=True, prefix='bins_')
            self.rare = SparseEmbedding(ROWS, WIDTH, prefix='rare_')
            self.out = nn.Dense(1, in_units=WIDTH, prefix='out_')

    def tables(self):
        """Names and parameters of the tables."""
        return {'near': self.near.weight, 'bins': self.bins.weight, 'rare': self.rare.weight}

    def forward(self, ids):
        return self.out(self.near(ids) + self.bins(ids) + self.rare(ids % 7))


def make(worker, optimizer):
    """A filled model and its Trainer."""
    net = Model()
    net.initialize(mx.init.Constant(0))
    if worker.rank == 0:  # whose values count
        for index, table in enumerate(net.tables().values()):
            values = np.random.RandomState(index).normal(scale=0.1, size=table.shape).astype('f4')
            table.set_data(mx.nd.array(values).tostype(table._stype))
        net.out.weight.set_data(mx.nd.array(np.random.RandomState(9).normal(size=(1, WIDTH))))
    return net, gluon.Trainer(net.collect_params(), optimizer, OPTIMIZERS[optimizer], kvstore=worker.store())


def fit(worker, net, trainer, steps):
    """Train on this worker's share of the joint batches; return the weights."""
    for step in steps:
        random = np.random.RandomState(step)
        # Every row several times, so that each worker's share has most of them.
        ids = random.permutation(np.tile(random.permutation(ROWS)[:TOUCHED], TIMES))[worker.rank::worker.size]
        with autograd.record():
            loss = LOSS(net(mx.nd.array(ids)), mx.nd.array(np.cos(ids * 0.1)))
        loss.backward()
        trainer.step(BATCH / 100.0)
    return weights_of(net)


def run(worker, optimizer):
    """Train through the decision, save, load with a new learning rate, and continue."""
    net, trainer = make(worker, optimizer)
    values = fit(worker, net, trainer, range(SWITCH + 3))
    values_by_name = {'first/' + name: value for name, value in values.items()}
    path = os.path.join(worker.directory, optimizer)
    if worker.rank == 0:
        net.save_parameters(path + '.params')
    trainer.save_states(path + '.states')
    worker.barrier()
    trainer.set_learning_rate(trainer.learning_rate * 0.5)
    values = fit(worker, net, trainer, range(50, 53))
    values_by_name.update({'slower/' + name: value for name, value in values.items()})
    net.load_parameters(path + '.params')
    trainer.load_states(path + '.states')
    return dict(values_by_name, **fit(worker, net, trainer, range(60, 63))), trainer


def resume(worker, optimizer):
    """Go on from the files of `run` elsewhere."""
    net, trainer = make(worker, optimizer)
    net.load_parameters(os.path.join(worker.directory, optimizer + '.params'))
    trainer.load_states(os.path.join(worker.directory, optimizer + '.states'))
    return fit(worker, net, trainer, range(60, 63))


parser = parser_of(OPTIMIZERS)  # a case an optimizer
parser.add_argument('--resume', action='store_true')
parser.add_argument('--rates', help='bytes per second by servers and by allreduce; measured by default')
arguments = parser.parse_args()
worker = Worker(arguments.kvstore, directory=arguments.directory)
if arguments.rates:
    mxhybrid.create()._job.measured['network'] = Network(
        *(Speed(0.001, float(rate)) for rate in arguments.rates.split(',')))
choices = {}
for optimizer in arguments.cases:
    if arguments.resume:
        report(worker.rank, **{optimizer: resume(worker, optimizer)})
        continue
    values, trainer = run(worker, optimizer)
    report(worker.rank, **{optimizer: values})
    if worker.hybrid:
        for route in trainer._kvstore.backend.routes.values():
            choice = route.choice
            if choice is not None:
                numbers = vars(choice.estimate) if choice.estimate else {}
                choices[optimizer + '/' + route.name] = dict(
                    numbers, way=choice.route, because=choice.because, kind=route.kind, touched=choice.touched,
                    union=choice.union)
        report(worker.rank, table=trainer._kvstore.report(), choices=choices)
