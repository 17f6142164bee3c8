"""Train small models, each case by itself, on this worker's share of a joint batch; report all final weights.

With ``--kvstore device`` in one process it gives the reference: MXNet alone on the joint batch.  ``--device`` says
where arrays are; a worker takes the GPU of its number on its host.  With ``--numpy`` nets have MXNet's NumPy interface,
which lacks sparse arrays.
"""
import argparse
import functools

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from tests.helpers.outcomes import problem_of
from tests.helpers.training_steps import weights_of

ROWS, BATCH, STEPS = 40, 12, 20
LOSS = gluon.loss.L2Loss()
ON_STORE = {'update_on_kvstore': True}

OPTIMIZERS = {
    'sgd': {'learning_rate': 0.5}, 'sgd-momentum': {'learning_rate': 0.3, 'momentum': 0.9, 'wd': 0.01},
    'sgd-notlazy': {'learning_rate': 0.3, 'momentum': 0.9, 'wd': 0.01, 'lazy_update': False},
    'adam': {'learning_rate': 0.02}, 'adam-wd': {'learning_rate': 0.02, 'wd': 0.1, 'clip_gradient': 0.2},
    'adagrad': {'learning_rate': 0.1, 'clip_gradient': 0.2}, 'rmsprop': {'learning_rate': 0.01, 'wd': 0.1},
    'rmsprop-centered': {'learning_rate': 0.01, 'centered': True, 'wd': 0.1, 'clip_gradient': 0.2, 'clip_weights': 1.0},
    'ftrl': {'learning_rate': 0.1, 'wd': 0.1, 'clip_gradient': 0.2}, 'nag': {'learning_rate': 0.2, 'wd': 0.1},
    'nag-momentum': {'learning_rate': 0.2, 'momentum': 0.9}, 'nag-wd': {
        'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.1, 'clip_gradient': 0.2},
    'adadelta': {'rho': 0.9, 'wd': 0.01, 'clip_gradient': 0.2}, 'groupadagrad': {'learning_rate': 0.1},
    'lamb': {'learning_rate': 0.01},
}


def batches(seed=5, width=3):
    """Token ids, frequent ones small, and targets, for all steps."""
    random = np.random.RandomState(seed)
    ids = np.minimum(random.zipf(1.3, (STEPS, BATCH, width)) - 1, ROWS - 1)
    return ids.astype('f4'), random.rand(STEPS, BATCH, 2).astype('f4')


def array_of(values):
    """Return an array of the interface that is in use."""
    return (mx.np if npx.is_np_array() else mx.nd).array(values, dtype=values.dtype)


def filled(net, dtype='float32'):
    """Give every parameter values that depend only on its position, so that all processes start with the same values;
    return the net.
    """
    for index, param in enumerate(net.collect_params().values()):
        random = np.random.RandomState(100 + index)
        values = random.normal(scale=0.3, size=param.shape).astype(dtype)
        if param.shape[0] == ROWS:
            values[3] = 0  # an all-zero row of a table must survive
        param.initialize(force_reinit=True, ctx=param.list_ctx() if param._data else None, init=mx.init.Constant(0))
        if param._stype == 'row_sparse':
            param.set_data(mx.nd.sparse.row_sparse_array((values, np.arange(len(values))), shape=param.shape))
        else:
            param.set_data(array_of(values))
    return net


class Model(gluon.Block):
    """Embeddings of one kind, concatenated, below a dense layer."""

    def __init__(self, kind, widths=(4,), use_bias=True):
        super().__init__()
        with self.name_scope():
            self.tables = nn.HybridSequential() if kind != 'weight' else nn.Sequential()
            for width in widths:
                self.tables.add(SparseEmbedding(ROWS, width) if kind == 'weight' else
                                nn.Embedding(ROWS, width, sparse_grad=kind == 'gradient'))
            self.out = nn.Dense(2, in_units=3 * sum(widths), use_bias=use_bias)

    def forward(self, ids):
        parts = [table(ids).reshape((ids.shape[0], -1)) for table in self.tables]
        return self.out(mx.np.concatenate(parts, axis=1) if npx.is_np_array() else mx.nd.concat(*parts, dim=1))


class Worker:
    """A worker: its rank, its share of a batch, its stores, and the directory of its files."""

    def __init__(self, kvstore, partitions=None, device='cpu', directory='.'):
        self._device = device
        self.hybrid = kvstore == 'hybrid'
        self.partitions, self.directory = partitions, directory
        store = self._first = mxhybrid.create() if self.hybrid else None
        self.rank, self.size = (store.rank, store.num_workers) if self.hybrid else (0, 1)

    def store(self, **options):
        """A store, or its name, for a Trainer with `options`."""
        if self.hybrid:
            return mxhybrid.create(partitions=self.partitions) if self.partitions else 'hybrid'
        # MXNet alone makes no store for one device; the hybrid one hands a single process an MXNet store.
        return 'hybrid' if options.get('update_on_kvstore') else 'device'

    def device(self, number=0):
        """Return one of this worker's devices."""
        if self._device != 'gpu':
            return mx.Context(self._device, number)
        local_rank = 0
        if self.size > 1:
            import horovod.mxnet as hvd
            local_rank = hvd.local_rank()
        return mx.gpu((local_rank + number) % mx.context.num_gpus())

    def barrier(self):
        """Wait for the other workers."""
        if self.hybrid:
            self._first._barrier()

    def share(self, batch):
        """Rows of a joint batch that are this worker's."""
        return array_of(batch[self.rank::self.size])


def weights(net):
    """All parameters as NumPy arrays by position."""
    return {'%02d' % index: array for index, array in enumerate(weights_of(net).values())}


def backward(worker, net, ids, targets):
    """A forward and a backward pass over this worker's share of a joint batch."""
    with autograd.record():
        loss = LOSS(net(worker.share(ids)), worker.share(targets))
    loss.backward()


def backward_of_some(worker, batch, *branches):
    """A pass through several nets, each over those of its samples of a joint batch that are this worker's."""
    mine, losses = np.arange(BATCH) % worker.size == worker.rank, []
    with autograd.record():
        for net, samples in branches:
            if (mine & samples).any():
                ids, targets = (array_of(array[mine & samples]) for array in batch)
                losses.append(LOSS(net(ids), targets).sum())
    autograd.backward(losses)


def fit(worker, net, trainer, seed=5, steps=STEPS, before=None):
    """Make `steps` steps; ``before(step, trainer)`` may meddle."""
    for step, batch in zip(range(steps), zip(*batches(seed))):
        if before is not None:
            before(step, trainer)
        backward(worker, net, *batch)
        trainer.step(BATCH)
    return weights(net)


def trainer_of(worker, net, optimizer, extra=None, store=None, **options):
    """A Trainer with one of the OPTIMIZERS, and `extra` settings of it."""
    return gluon.Trainer(net.collect_params(), optimizer.split('-')[0], dict(OPTIMIZERS[optimizer], **extra or {}),
                         kvstore=store or worker.store(**options), **options)


def make(worker, kind, optimizer='sgd-momentum', widths=(4, 3), hybridize=None, **options):
    """A filled model and its Trainer."""
    net = filled(Model(kind, widths, use_bias=optimizer != 'groupadagrad'))  # which takes matrices only
    if hybridize is not None:
        net.tables.hybridize(**hybridize)
    return net, trainer_of(worker, net, optimizer, **options)


def embedding(worker, kind, optimizer, widths=(4,), **options):
    """Train a model with tables of one kind."""
    return fit(worker, *make(worker, kind, optimizer, widths, **options))


def changing(worker, optimizer):
    """Train a table and a layer with multipliers; settings change in mid-run, momentum goes and returns."""
    net, trainer = make(worker, 'weight', optimizer, (4,))
    net.tables[0].weight.lr_mult, net.tables[0].weight.wd_mult = 0.5, 2.0

    def before(step, trainer):
        settings = {4: {'clip_gradient': 0.1}, 6: {'momentum': 0.0}, 9: {'wd': 0.05}, 12: {'momentum': 0.8},
                    14: {'clip_gradient': None}}.get(step, {})
        trainer._optimizer.__dict__.update(settings)
        if step == 8:
            trainer.set_learning_rate(0.1)
            net.tables[0].weight.wd_mult = 0.5

    return fit(worker, net, trainer, before=before)


def refused(worker, name, good, bad):
    """Settings for which tables have no state are refused before anything is updated; then training goes on."""
    net = filled(Model('weight'))
    trainer = gluon.Trainer(net.collect_params(), name, {'learning_rate': 0.1}, kvstore=worker.store())
    for step, batch in enumerate(zip(*batches())):
        backward(worker, net, *batch)
        if step in (5, 9) and worker.size > 1:
            trainer._optimizer.__dict__.update(bad)
            problem = problem_of(lambda: trainer.step(BATCH), ['embedding0_weight', repr(name), *bad])
            assert not problem, problem
            trainer._optimizer.__dict__.update(good)
        trainer.step(BATCH)
    return weights(net)


def dense(worker, optimizer='adam', **options):
    """Dense layers only, with deferred shapes."""
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation='tanh'), nn.Dense(2))
    net.initialize(mx.init.Constant(0.1))
    return fit(worker, net, trainer_of(worker, net, optimizer, **options))


def contexts(worker, kind, **options):
    """Two devices in every worker."""
    net = Model(kind) if kind else nn.Dense(2, in_units=3)
    devices = [worker.device(0), worker.device(1)]
    net.initialize(mx.init.Constant(0), ctx=devices)
    trainer = trainer_of(worker, filled(net), 'adagrad', **options)
    for batch in zip(*batches()):
        parts = [gluon.utils.split_and_load(worker.share(array), devices, even_split=False) for array in batch]
        with autograd.record():
            losses = [LOSS(net(ids), targets) for ids, targets in zip(*parts)]
        autograd.backward(losses)
        trainer.step(BATCH)
    return weights(net)


class Half(gluon.Block):
    """float16 parameters; arithmetic in float32, since MXNet has no float16 layers on the CPU."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get('weight', shape=(2, 3), dtype='float16')

    def forward(self, ids):
        return mx.nd.dot(ids / ROWS, self.weight.data().astype('float32'), transpose_b=True)


def half(worker):
    """float16 dense parameters with a float32 copy in the optimizer."""
    net = filled(Half(), 'float16')
    return fit(worker, net, trainer_of(worker, net, 'sgd-momentum', {'learning_rate': 0.1, 'multi_precision': True}))


def double(worker):
    """A table of float64; MXNet's own copy of it, which the reference reports, is float32."""
    net = nn.Sequential()
    net.add(SparseEmbedding(ROWS, 2, dtype='float64'), nn.Lambda(lambda rows: rows.sum(axis=1).astype('float32')))
    filled(net, 'float64')
    weights = fit(worker, net, trainer_of(worker, net, 'sgd', {'learning_rate': 0.1}))
    if worker.hybrid and {array.dtype for array in weights.values()} != {np.dtype('float64')}:
        raise AssertionError('a float64 table would be saved as another type')
    return {name: array.astype('float32') for name, array in weights.items()}


def shared(worker):
    """Train a sparse table used twice in a model, and a dense embedding tied to an output layer."""
    class Twice(gluon.Block):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.left = nn.Embedding(ROWS, 4, sparse_grad=True)
                self.right = nn.Embedding(ROWS, 4, sparse_grad=True, params=self.left.params)
                self.word = nn.Embedding(ROWS, 4)
                self.back = nn.Dense(ROWS, use_bias=False, in_units=4, flatten=False, params=self.word.params)
                self.out = nn.Dense(2, in_units=3)

        def forward(self, ids):
            pair = self.left(ids) * self.right((ids + 1) % ROWS) + self.back(self.word(ids)).slice_axis(
                axis=2, begin=0, end=4)
            return self.out(pair.sum(axis=2))

    net = filled(Twice())
    return fit(worker, net, trainer_of(worker, net, 'sgd', {'learning_rate': 0.1}))


def frozen(worker, kind):
    """A table and a bias that do not train."""
    net = filled(Model(kind, (4, 3)))
    net.tables[1].weight.grad_req = net.out.bias.grad_req = 'null'
    return fit(worker, net, trainer_of(worker, net, 'adagrad'))


def accumulate(worker, update_on_kvstore):
    """grad_req='add': two backwards a step."""
    net = filled(Model('dense'))
    net.collect_params().setattr('grad_req', 'add')
    trainer = trainer_of(worker, net, 'adam', update_on_kvstore=update_on_kvstore)
    for step, batch in enumerate(zip(*batches())):
        backward(worker, net, *batch)
        if step % 2:
            trainer.step(2 * BATCH)
            net.collect_params().zero_grad()
    return weights(net)


def side_by_side(*models):
    """Return one filled net of several models, each with its own inputs."""
    net = nn.Sequential()
    net.add(*models)
    return filled(net)


def stale(worker, kind):
    """Two branches; rank 0's rows take one, or the other, or both: some gradients are stale on some workers."""
    if not worker.hybrid and kind == 'weight':
        # An update on a store of MXNet's would apply stale gradients again.  With adagrad, which leaves untouched rows
        # alone, a dense weight takes the same steps.
        kind = 'gradient'
    left, right = Model(kind), Model(kind)
    both = side_by_side(left, right)
    trainer = trainer_of(worker, both, 'adagrad', **({} if kind == 'weight' else {'update_on_kvstore': False}))
    for step, batch in enumerate(zip(*batches())):
        # Sample i of the joint batch belongs to worker i % size, so choose by sample: half the workers go right.
        goes_right = (np.arange(BATCH) % 2 == 0) & (step % 3 > 0)
        backward_of_some(worker, batch, (left, ~goes_right), (right, goes_right))
        trainer.step(BATCH, ignore_stale_grad=True)
    return weights(both)


def trainers(worker):
    """Two Trainers with other optimizers in one process, steps interleaved."""
    nets = [filled(Model('weight', (4, 2))), filled(Model('gradient', (3,)))]
    trainer_list = [trainer_of(worker, net, optimizer, {'learning_rate': 0.05})
                    for net, optimizer in zip(nets, ('adagrad', 'adam'))]
    for step in range(STEPS):
        for seed, (net, trainer) in enumerate(zip(nets, trainer_list)):
            ids, targets = batches(seed)
            backward(worker, net, ids[step], targets[step])
            trainer.step(BATCH)
    return {'%d-%s' % (index, name): value for index, net in enumerate(nets) for name, value in weights(net).items()}


CASES = {
    'dense': dense, 'dense-on-store': functools.partial(dense, **ON_STORE),
    'dense-momentum': functools.partial(dense, optimizer='sgd-momentum', update_on_kvstore=False),
    'half': half, 'double': double, 'shared': shared, 'trainers': trainers,
    'contexts-dense': functools.partial(contexts, kind=''),
    'contexts-dense-on-store': functools.partial(contexts, kind='', **ON_STORE),
    'contexts-gradient': functools.partial(contexts, kind='gradient'),
    'add': functools.partial(accumulate, update_on_kvstore=False),
    'add-on-store': functools.partial(accumulate, update_on_kvstore=True),
    'widths': functools.partial(embedding, kind='weight', optimizer='adagrad', widths=(1, 5, 16)),
    'dense-hybrid': functools.partial(embedding, kind='dense', optimizer='sgd-momentum', hybridize={}),
    'gradient-hybrid': functools.partial(embedding, kind='gradient', optimizer='adagrad', hybridize={}),
    'gradient-static': functools.partial(embedding, kind='gradient', optimizer='adagrad',
                                         hybridize={'static_alloc': True, 'static_shape': True}),
    'gradient-on-store': functools.partial(embedding, kind='gradient', optimizer='adam', **ON_STORE),
    'changing-nag': functools.partial(changing, optimizer='nag-wd'),
    'changing-sgd': functools.partial(changing, optimizer='sgd-momentum'),
    'refused-nag': functools.partial(refused, name='nag', good={'momentum': 0.0}, bad={'momentum': 0.9}),
    'refused-rmsprop': functools.partial(refused, name='rmsprop', good={'centered': False}, bad={'centered': True}),
    'refused-adagrad': functools.partial(refused, name='adagrad', good={'wd': 0.0}, bad={'wd': 0.1}),
    **{'frozen-' + kind: functools.partial(frozen, kind=kind) for kind in ('weight', 'gradient')},
    **{'stale-' + kind: functools.partial(stale, kind=kind) for kind in ('weight', 'gradient', 'dense')},
    **{'%s-%s' % (kind, optimizer): functools.partial(embedding, kind=kind, optimizer=optimizer)
       for kind in ('weight', 'gradient') for optimizer in OPTIMIZERS if (kind, optimizer) != ('weight', 'lamb')},
}


def parser_of(cases):
    """Return a parser of the options that all bodies with cases have."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--kvstore', default='hybrid')
    parser.add_argument('--partitions', type=int)
    parser.add_argument('--cases', type=lambda text: text.split(','), default=list(cases))
    parser.add_argument('--directory', default='.')
    parser.add_argument('--numpy', action='store_true')
    return parser


def main():
    parser = parser_of(CASES)
    parser.add_argument('--device', choices=['cpu', 'cpu_pinned', 'gpu'], default='cpu')
    arguments = parser.parse_args()
    if arguments.numpy:
        npx.set_np()
    worker = Worker(arguments.kvstore, arguments.partitions, arguments.device)
    for case in arguments.cases:
        with worker.device():
            report(worker.rank, **{case: CASES[case](worker)})
    seen = (worker.rank, worker.size)
    if worker.size > 1:
        import horovod.mxnet as hvd
        assert seen == (hvd.rank(), hvd.size())
    report(worker.rank, seen=seen)


if __name__ == '__main__':
    main()
