"""Trainers, one after the other: the memory of each on servers and in shared memory is freed, and values stay right.

Memory of servers and workers is read after every Trainer; weights are compared with one process by the test.
"""
import argparse
import gc

import mxnet as mx
import numpy as np
import psutil
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding

import mxhybrid
from mxhybrid.job.join import current

ROWS, WIDTH, BATCH, STEPS = 24000, 64, 8, 6
TABLE_MB = ROWS * WIDTH * 4 / 1e6


def resident_mb(processes):
    """Resident memory of each process, including shared memory."""
    return [process.memory_info().rss / 1e6 for process in processes]


def servers_of_this_job():
    """Return the parameter servers, of all launchers."""
    mine = psutil.Process()
    relatives = mine.children() + (mine.parent().children(recursive=True) if mine.parent() else [])
    servers = {}
    for process in relatives:
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        if environ.get('MXHYBRID_ROLE', environ.get('DMLC_ROLE')) == 'server' and 'python' in process.name():
            servers[process.pid] = process
    return [servers[pid] for pid in sorted(servers)]


class Net(gluon.Block):
    """A large table below a dense layer."""

    def __init__(self, weight):
        super().__init__()
        with self.name_scope():
            self.table = SparseEmbedding(ROWS, WIDTH) if weight else nn.Embedding(ROWS, WIDTH, sparse_grad=True)
            self.out = nn.Dense(300, in_units=WIDTH)

    def forward(self, ids):
        """A number for each of the outputs."""
        return self.out(self.table(ids).mean(axis=1))


def filled(weight):
    """A net whose values depend on their places only."""
    net = Net(weight)
    net.initialize(mx.init.Constant(0.01))
    random = np.random.RandomState(2)
    for param in net.collect_params().values():
        values = mx.nd.array(random.normal(scale=0.1, size=param.shape))
        param.set_data(values.tostype('row_sparse') if param._stype == 'row_sparse' else values)
    return net


def fit(net, trainer, rank, size, seed):
    """Some steps with this worker's share of a batch; other rows with every seed."""
    random = np.random.RandomState(seed)
    for _ in range(STEPS):
        ids = random.randint(0, ROWS, (BATCH, 5))[rank::size]
        with autograd.record():
            loss = (net(mx.nd.array(ids)) ** 2).sum()
        loss.backward()
        trainer.step(BATCH)
    mx.nd.waitall()


def weights(net, rows=slice(None, None, 7)):
    """Return weights of the net, of the table every seventh row."""
    found = [param._reduce().tostype('default').asnumpy() for param in net.collect_params().values()]
    return {str(place): array[rows] for place, array in enumerate(found)}


class Cases:
    """Trainers in turn, with MXNet's own stores or with ours."""

    def __init__(self, kvstore):
        store = mxhybrid.create() if kvstore == 'hybrid' else None
        self.kvstore, self.hybrid = kvstore, store is not None
        self.rank, self.size = (store.rank, store.num_workers) if store else (0, 1)
        self.servers = servers_of_this_job() if self.hybrid and self.rank == 0 else []
        self.seen = {}

    def note(self, case):
        """Remember how much memory is in use."""
        job = current()
        if not self.hybrid or not job.distributed:
            return
        reduction = job.collective.reduction
        self.seen.setdefault(case, []).append({
            'servers': sum(resident_mb(self.servers)), 'worker': resident_mb([psutil.Process()])[0],
            'keys': job.servers.keys.placement.keys_left(), 'load': sum(job.servers.keys.placement.bytes_on) / 1e6,
            'sums': len(reduction._buffers) if reduction is not None else 0})

    def trainer(self, net, momentum=0.9, **settings):
        """A new Trainer; with settings, of a store made by hand."""
        store = mxhybrid.create(**settings) if settings and self.hybrid else self.kvstore
        return gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01, 'momentum': momentum}, kvstore=store)

    def same_net(self, case, count, **settings):
        """A net gets one Trainer after the other."""
        net = filled(False)
        for seed in range(count):
            trainer = self.trainer(net, **settings)
            fit(net, trainer, self.rank, self.size, seed)
            self.note(case)
        route = None if not self.hybrid or self.size == 1 else trainer._kvstore.backend.routes[
            trainer._param2idx[net.table.weight.name]].kind
        report(self.rank, **{'kind/' + case: route})
        return weights(net)

    def fresh_nets(self, case, count):
        """A net and a Trainer go, others come."""
        for seed in range(count):
            net = filled(True)
            trainer = self.trainer(net)
            fit(net, trainer, self.rank, self.size, seed)
            self.note(case)
        return weights(net)

    def kept(self, case, count):
        """Train with old Trainers again: values pass from one Trainer to the other."""
        net, trainers = filled(False), []
        for turn in range(2):
            for at in range(count):
                if not turn:
                    trainers.append(self.trainer(net, 0.0, routes='servers'))
                fit(net, trainers[at], self.rank, self.size, 10 * turn + at)
        return weights(net)

    def stores(self, case, count):
        """Stores made by hand, of which each worker drops its own at a time of its own."""
        if not self.hybrid:
            return {'0': np.full((2, 2), 3.0, 'f4')}
        ids = np.arange(self.rank, ROWS, 100)
        rows = mx.nd.sparse.row_sparse_array((np.ones((len(ids), WIDTH), 'f4'), ids), shape=(ROWS, WIDTH))
        held = []
        for step in range(count):
            store = mxhybrid.create()
            store.init('table', mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)))
            store.push('table', rows)
            out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
            store.row_sparse_pull('table', out=out, row_ids=mx.nd.array([0, 1, 7, 100]))
            found = out.tostype('default').asnumpy()[[0, 1, 7, 100], 0]
            expected = [float(row % 100 < self.size) for row in (0, 1, 7, 100)]
            np.testing.assert_array_equal(found, expected)
            held = [store] if (step + self.rank) % 3 == 0 else []  # a worker keeps one longer than others
            self.note(case)
        del store, held
        return {'0': np.full((2, 2), 3.0, 'f4')}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--kvstore', default='hybrid')
    parser.add_argument('--count', type=int, default=10)
    arguments = parser.parse_args()
    cases = Cases(arguments.kvstore)
    count = arguments.count
    if cases.hybrid:
        gc.disable()  # nobody can rely on when it runs
    results = {'own': cases.same_net('own', 2 * count, routes='servers'),
             'gradients': cases.same_net('gradients', count, on_demand_rows=False),
             'sums': cases.same_net('sums', count, routes='allreduce'),
             'weights': cases.fresh_nets('weights', count), 'kept': cases.kept('kept', 3),
             'stores': cases.stores('stores', count)}
    report(cases.rank, **results)
    if cases.hybrid:
        report(cases.rank, seen=cases.seen, servers=len(cases.servers), table=TABLE_MB)


if __name__ == '__main__':
    main()
