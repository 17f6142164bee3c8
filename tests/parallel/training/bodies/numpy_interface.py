"""Nets of MXNet's NumPy interface, each case by itself, as in ``train.py``."""
import argparse
import os

import mxnet as mx
import numpy as onp
from lab.reports import report
from mxnet import autograd, gluon, np, npx

import mxhybrid

BATCH, STEPS = 12, 10


class Case:
    """A net, its Trainer, and this worker's share of the batches."""

    def __init__(self, kvstore, devices=1, update_on_kvstore=False):
        self.store = mxhybrid.create() if kvstore == 'hybrid' else None
        self.rank, self.size = (self.store.rank, self.store.num_workers) if self.store else (0, 1)
        self.devices = [mx.cpu(device) for device in range(devices)]
        self.net = gluon.nn.HybridSequential()
        self.net.add(gluon.nn.Embedding(10, 4), gluon.nn.Dense(8, activation='tanh'), gluon.nn.Dense(2))
        mx.random.seed(3 + self.rank)
        self.net.initialize(mx.init.Uniform(0.5), ctx=self.devices)
        # MXNet alone makes no store for one device; in one process the hybrid one is a store of MXNet's.
        store = self.store or ('hybrid' if update_on_kvstore else 'device')
        self.trainer = gluon.Trainer(self.net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9},
                                     kvstore=store, update_on_kvstore=update_on_kvstore)
        self._start()

    def _start(self):
        """The first step ever is of gradients of a worker's own values: it gives them no weight."""
        rate = self.trainer.learning_rate
        self.trainer.set_learning_rate(0)
        self.fit(1, seed=9)
        self.trainer.set_learning_rate(rate)

    def backward(self, ids, targets):
        """A forward and a backward pass on all devices."""
        loss = gluon.loss.L2Loss()
        count = len(self.devices)
        with autograd.record():
            losses = [loss(self.net(np.array(ids[self.rank::self.size][number::count], ctx=device)),
                           np.array(targets[self.rank::self.size][number::count], ctx=device))
                      for number, device in enumerate(self.devices)]
        autograd.backward(losses)

    def batches(self, steps, seed):
        """Ids and targets of the joint batches."""
        random = onp.random.RandomState(seed)
        return [(random.randint(0, 10, (BATCH, 3)), random.rand(BATCH, 2)) for _ in range(steps)]

    def fit(self, steps=STEPS, seed=2, **options):
        """Make steps; the weights then."""
        for ids, targets in self.batches(steps, seed):
            self.backward(ids, targets)
            self.trainer.step(BATCH, **options)
        return self.weights()

    def weights(self):
        """All parameters."""
        return {'%02d' % index: param._reduce().asnumpy()
                for index, param in enumerate(self.net.collect_params().values())}

    def wait(self):
        """Wait for the other workers."""
        if self.store:
            self.store._barrier()


def plain(kvstore, directory, hybridize=False, **options):
    """Steps."""
    case = Case(kvstore, **options)
    if hybridize:
        case.net.hybridize()
    return case.fit()


def clip(kvstore, directory):
    """Clipping by the global norm."""
    case, norms = Case(kvstore), []
    for ids, targets in case.batches(STEPS, 2):
        case.backward(ids, targets)
        case.trainer.allreduce_grads()
        norms.append(gluon.utils.clip_global_norm(
            [param.grad().as_nd_ndarray() for param in case.net.collect_params().values()], 0.5))
        case.trainer.update(1)
    return dict(case.weights(), norms=onp.array(norms))


def files(kvstore, directory, **options):
    """Parameters and states saved in the middle, and loaded again after more steps."""
    case = Case(kvstore, **options)
    case.fit(3)
    path = os.path.join(directory, 'np%d' % len(options))
    if case.rank == 0:
        case.net.save_parameters(path + '.params')
    case.trainer.save_states(path + '.states')
    case.wait()
    case.fit(2, seed=4)
    case.net.load_parameters(path + '.params', ctx=case.devices)
    case.trainer.load_states(path + '.states')
    return case.fit(4, seed=5)


def checkpoint(kvstore, directory, **options):
    """Save and load by a checkpoint."""
    case = Case(kvstore, **options)
    case.fit(3)
    path = os.path.join(directory, 'checkpoint%d' % len(options))
    mxhybrid.checkpoint.save(path, case.net, case.trainer, 3)
    case.fit(2, seed=4)
    case = Case(kvstore, **options)
    assert mxhybrid.checkpoint.load(path, case.net, case.trainer).step == 3
    return case.fit(4, seed=5)


def anew(kvstore, directory):
    """Drawn again in the middle."""
    case = Case(kvstore)
    case.fit(3)
    mx.random.seed(8 + case.rank)
    case.net.initialize(mx.init.Uniform(0.4), force_reinit=True, ctx=case.devices)
    case._start()
    return case.fit(4, seed=5)


def stale(kvstore, directory, **options):
    """A layer that takes no part in most steps."""
    case = Case(kvstore)
    beside, loss = gluon.nn.Dense(1, in_units=3), gluon.loss.L2Loss()
    beside.initialize(mx.init.Constant(0.2))
    both = gluon.ParameterDict()
    both.update(case.net.collect_params())
    both.update(beside.collect_params())
    # MXNet leaves stale gradients out only where workers update; the steps are the same.
    trainer = gluon.Trainer(both, 'sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'wd': 0.1}, kvstore=kvstore,
                            **options if case.store else {'update_on_kvstore': False})
    for step, (ids, targets) in enumerate(case.batches(STEPS, 2)):
        x, y = (np.array(part[case.rank::case.size]) for part in (ids, targets))
        with autograd.record():
            losses = [loss(case.net(x), y).sum()]
            if step in (0, 5):
                losses.append((beside(x.astype('float32')) ** 2).sum())
        autograd.backward(losses)
        trainer.step(BATCH, ignore_stale_grad=True)
    return dict(case.weights(), beside=beside.weight.data().asnumpy())


def direct(kvstore, directory):
    """The store's own calls."""
    store = mx.kv.create(kvstore)
    store.init('a', np.ones((2, 3)))
    value, out = np.full((2, 3), 12.0 / store.num_workers), np.zeros((2, 3))
    store.push('a', value)
    store.pull('a', out=out)
    other = np.full((2, 3), 24.0 / store.num_workers)
    store.pushpull('a', other, out=other)
    return {'pulled': out.asnumpy(), 'both': other.asnumpy()}


CASES = {
    'plain': plain, 'hybridized': lambda *where: plain(*where, hybridize=True),
    'devices': lambda *where: plain(*where, devices=2), 'clip': clip,
    'on-store': lambda *where: plain(*where, update_on_kvstore=True),
    'files': files, 'files-on-store': lambda *where: files(*where, update_on_kvstore=True),
    'checkpoint': checkpoint, 'checkpoint-on-store': lambda *where: checkpoint(*where, update_on_kvstore=True),
    'anew': anew, 'stale': stale, 'stale-on-store': lambda *where: stale(*where, update_on_kvstore=True),
    'direct': direct,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--kvstore', default='hybrid')
    parser.add_argument('--directory', required=True)
    parser.add_argument('--cases', default=','.join(CASES))
    arguments = parser.parse_args()
    npx.set_np()
    rank = mxhybrid.create().rank if arguments.kvstore == 'hybrid' else 0
    for name in arguments.cases.split(','):
        report(rank, **{name: CASES[name](arguments.kvstore, arguments.directory)})


if __name__ == '__main__':
    main()
