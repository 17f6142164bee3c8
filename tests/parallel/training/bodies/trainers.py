"""Make one Trainer after the other: the memory of each on servers and in shared memory is freed.

Memory of servers and workers is read after every Trainer; weights are compared with one process by the test.
"""
import gc

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import SparseEmbedding
from train import Worker, parser_of

import mxhybrid
from mxhybrid.job.join import current
from tests.helpers.job_memory import resident_mb, servers_of_this_job
from tests.helpers.training_steps import make_step, sum_of_squares, weights_of

ROWS, WIDTH, BATCH, STEPS = 24000, 64, 8, 6
TABLE_MB = ROWS * WIDTH * 4 / 1e6
#: Trainers, stores or nets in each case.
COUNT = 10


class Net(gluon.Block):
    """A large table below a dense layer."""

    def __init__(self, weight):
        super().__init__()
        with self.name_scope():
            self.table = SparseEmbedding(ROWS, WIDTH) if weight else nn.Embedding(ROWS, WIDTH, sparse_grad=True)
            self.out = nn.Dense(300, in_units=WIDTH)

    def forward(self, ids):
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


def weights(net):
    """Return the weights of the net, of the table every seventh row."""
    return {str(place): array[::7] for place, array in enumerate(weights_of(net).values())}


class Cases:
    """Trainers in turn, with MXNet's own stores or with ours."""

    def __init__(self, kvstore):
        self.worker = Worker(kvstore)
        self.servers = servers_of_this_job() if self.worker.hybrid and self.worker.rank == 0 else []
        self.seen = {}

    def note(self, case):
        """Remember how much memory is in use."""
        job = current()
        if not self.worker.hybrid or not job.distributed:
            return
        reduction, placement = job.collective.reduction, job.servers.keys.placement
        self.seen.setdefault(case, []).append({
            'servers': resident_mb(self.servers), 'worker': resident_mb(),
            'keys': placement.keys_left(), 'load': sum(placement.bytes_on) / 1e6,
            'sums': len(reduction._buffers) if reduction is not None else 0})

    def trainer(self, net, momentum=0.9, **settings):
        """Make a new Trainer; with settings, of a store made by hand."""
        store = mxhybrid.create(**settings) if settings and self.worker.hybrid else self.worker.store()
        return gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01, 'momentum': momentum}, kvstore=store)

    def fit(self, net, trainer, seed):
        """Make some steps with this worker's share of a batch; other rows with every seed."""
        random = np.random.RandomState(seed)
        for _ in range(STEPS):
            ids = random.randint(0, ROWS, (BATCH, 5))[self.worker.rank::self.worker.size]
            make_step(trainer, BATCH, net, mx.nd.array(ids), loss_of=sum_of_squares)
        mx.nd.waitall()

    def same_net(self, case, count, **settings):
        """Give a net one Trainer after the other."""
        net = filled(False)
        for seed in range(count):
            trainer = self.trainer(net, **settings)
            self.fit(net, trainer, seed)
            self.note(case)
        route = None if not self.worker.hybrid or self.worker.size == 1 else trainer._kvstore.backend.routes[
            trainer._param2idx[net.table.weight.name]].kind
        report(self.worker.rank, **{'kind/' + case: route})
        return weights(net)

    def fresh_nets(self, case):
        """Drop a net and its Trainer, and make others."""
        for seed in range(COUNT):
            net = filled(True)
            self.fit(net, self.trainer(net), seed)
            self.note(case)
        return weights(net)

    def used_again(self):
        """Train with old Trainers again: values pass from one Trainer to the other."""
        net = filled(False)
        trainers = []
        for seed in range(3):
            trainers.append(self.trainer(net, 0.0, routes='servers'))
            self.fit(net, trainers[-1], seed)
        for seed, trainer in enumerate(trainers, 10):
            self.fit(net, trainer, seed)
        return weights(net)

    def stores(self, case):
        """Make stores by hand, which each worker drops at a time of its own."""
        rank, size = self.worker.rank, self.worker.size
        ids = np.arange(rank, ROWS, 100)
        rows = mx.nd.sparse.row_sparse_array((np.ones((len(ids), WIDTH), 'f4'), ids), shape=(ROWS, WIDTH))
        held = []
        for step in range(COUNT):
            store = mxhybrid.create()
            store.init('table', mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH)))
            store.push('table', rows)
            out = mx.nd.sparse.zeros('row_sparse', (ROWS, WIDTH))
            store.row_sparse_pull('table', out=out, row_ids=mx.nd.array([0, 1, 7, 100]))
            found = out.tostype('default').asnumpy()[[0, 1, 7, 100], 0]
            np.testing.assert_array_equal(found, [float(row % 100 < size) for row in (0, 1, 7, 100)])
            held = [store] if (step + rank) % 3 == 0 else []  # a worker keeps one longer than others
            self.note(case)
        del store, held


cases = Cases(parser_of([]).parse_args().kvstore)
if cases.worker.hybrid:
    gc.disable()  # nobody can rely on when it runs
report(cases.worker.rank, own=cases.same_net('own', 2 * COUNT, routes='servers'),
       gradients=cases.same_net('gradients', COUNT, on_demand_rows=False),
       sums=cases.same_net('sums', COUNT, routes='allreduce'), weights=cases.fresh_nets('weights'),
       again=cases.used_again())
if cases.worker.hybrid:
    cases.stores('stores')
    report(cases.worker.rank, seen=cases.seen, servers=len(cases.servers), table=TABLE_MB)
