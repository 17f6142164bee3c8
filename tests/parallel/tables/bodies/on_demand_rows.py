"""Train an ``nn.Embedding`` whose weight servers hold, and of which workers pull their own rows; as ``train.py`` does.

A case meddles with training after ``MIDDLE`` steps, when the weight has long been on the servers, and reports the
routes of the table then and at the end.
"""
import functools
import os
import pickle

import mxnet as mx
import numpy as np
from lab.reports import report
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxhybrid
from tests.helpers.outcomes import problem_of
from tests.parallel.training.bodies.train import (
    BATCH,
    ON_STORE,
    ROWS,
    STEPS,
    Model,
    Worker,
    backward,
    batches,
    filled,
    fit,
    parser_of,
    trainer_of,
    weights,
)

MIDDLE = 8
APART = 10  # rows of each worker where workers share none


class Case:
    """A model, its Trainer, and the report of a case."""

    held = None  # an array that one worker has read

    def __init__(self, worker, name='', optimizer='adam', net=None, settings=None, extra=None, **options):
        self.worker, self.name = worker, name
        # groupadagrad takes matrices only
        self.net = filled(net or Model('gradient', (4, 3), use_bias=optimizer != 'groupadagrad'))
        store = mxhybrid.create(partitions=worker.partitions, **settings or {}) if worker.hybrid else None
        self.trainer = trainer_of(worker, self.net, optimizer, extra, store, **options)
        self.table = [param for param in self.net.collect_params().values() if param._grad_stype == 'row_sparse'][0]

    @property
    def route(self):
        """Return the route of the first table; None without servers."""
        store = self.trainer._kvstore if self.worker.size > 1 else None
        return store and store.backend.routes.get(self.trainer._param2idx[self.table.name])

    def note_kind(self, when):
        """Report the table's route."""
        if self.route is not None:
            report(self.worker.rank, **{'kind/%s/%s' % (self.name, when): self.route.kind})

    def path(self, ending):
        """Return the path of a file of the case, other than those of other jobs."""
        return os.path.join(self.worker.directory, '%s%d%s' % (self.name, self.worker.size, ending))

    def run(self, meddle):
        """Train, call ``meddle(case)`` in the middle, train on."""
        fit(self.worker, self.net, self.trainer, steps=MIDDLE)
        self.note_kind('middle')
        outcome = meddle(self) or {}
        outcome.update(fit(self.worker, self.net, self.trainer, seed=6, steps=STEPS - MIDDLE))
        self.note_kind('end')
        return outcome


def evaluate(case):
    """A forward pass over all rows, by the net and by a hybridized copy of it, which loads the file that every worker
    saves.
    """
    ids = mx.nd.arange(ROWS).reshape((-1, 1)).tile((1, 3))[:ROWS // 2 * 2]
    outputs = {'forward': case.net(ids).asnumpy()}
    path = case.path('-%d.params' % case.worker.rank)
    case.net.save_parameters(path)
    copy = Model('gradient', (4, 3), use_bias=case.net.out.bias is not None)
    copy.load_parameters(path)
    copy.tables.hybridize()
    outputs['copy'] = copy(ids).asnumpy()
    with autograd.record():  # as a forward pass that no backward follows
        outputs['recorded'] = case.net(ids[:4]).asnumpy()
    return outputs


def read_on_one(case):
    """Let one worker read the value, keep the array and see it change with the next steps."""
    if case.worker.rank == case.worker.size - 1:
        case.held = case.table.data()


def write(case):
    """Write to the array on all workers."""
    array = case.table.data()
    array[:] = array * 0.5


def new_values(case):
    """New values for one table."""
    case.table.set_data(mx.nd.ones(case.table.shape) * 0.25)


def states(case):
    """Save parameters and states, train on, load both."""
    if case.worker.rank == 0:
        case.net.save_parameters(case.path('.params'))
    case.trainer.save_states(case.path('.states'))
    case.worker.barrier()
    with open(case.path('.states'), 'rb') as handle:
        saved, optimizer = pickle.load(handle)
    key = case.trainer._param2idx[case.table.name]
    arrays = [array for array in (saved[key] if isinstance(saved[key], tuple) else (saved[key],)) if array is not None]
    states_of_row = {'state-%d' % slot: array.asnumpy() for slot, array in enumerate(arrays)}
    states_of_row['dense'] = np.array([array.stype == 'default' for array in arrays])
    states_of_row['updates'] = np.array([optimizer._index_update_count[key]])
    fit(case.worker, case.net, case.trainer, seed=7, steps=6)
    case.net.load_parameters(case.path('.params'))
    case.trainer.load_states(case.path('.states'))
    return states_of_row


def states_of_the_store(case):
    """Save and load by the store's own calls, which leave the weights alone; the optimizer travels along or not."""
    store = case.trainer._kvstore
    for whole in (False, True):
        path = case.path('-%d.states' % whole)
        store.save_optimizer_states(path, dump_optimizer=whole)
        case.worker.barrier()
        fit(case.worker, case.net, case.trainer, seed=7 + whole, steps=5)
        case.note_kind('loading')
        store.load_optimizer_states(path)


def push_by_hand(case):
    """A push to a weight that servers update, and a pull of the sum of its gradients, of which nobody has it."""
    if case.route is None:
        return
    key, grad = case.trainer._param2idx[case.table.name], mx.nd.sparse.zeros('row_sparse', case.table.shape)
    for call in (case.trainer._kvstore.push, functools.partial(case.trainer._kvstore.pull, ignore_sparse=False)):
        problem = problem_of(lambda call=call: call(key, grad), [case.table.name, 'MXHYBRID_ON_DEMAND_ROWS=0'])
        assert not problem, problem


def by_hand(case):
    """Make a step by allreduce_grads and update, with clipping between."""
    ids, targets = batches(9)
    backward(case.worker, case.net, ids[0], targets[0])
    case.trainer.allreduce_grads()
    norm = gluon.utils.clip_global_norm([param.grad() for param in case.net.collect_params().values()], 0.5)
    case.trainer.update(1)
    return {'norm': np.array([norm])}


def schedule(case):
    """Give the table a rate of its own, in addition to the schedule."""
    case.table.lr_mult = 0.3


def lowered(case):
    """Train without momentum for some steps, and read the value: MXNet keeps the state that it has made."""
    case.trainer._optimizer.momentum = 0.0
    fit(case.worker, case.net, case.trainer, seed=8, steps=2)
    case.table.data()
    fit(case.worker, case.net, case.trainer, seed=9, steps=8)
    case.trainer._optimizer.momentum = 0.9


def repartition(case):
    """Change the number of partitions, where there are any."""
    if case.worker.hybrid:
        case.trainer._kvstore.repartition(case.trainer._param2idx[case.table.name], 3)


def other_optimizer(case, name, **arguments):
    """Give the store another optimizer, without state, past the Trainer."""
    case.trainer._kvstore.set_optimizer(mx.optimizer.create(name, rescale_grad=1 / BATCH, **arguments))


def other_and_read(case):
    """Let all workers go back before a step is made."""
    other_optimizer(case, 'adam', learning_rate=0.03)
    case.table.data()


class Outer(nn.HybridBlock):
    """An embedding in a block that is hybridized as a whole."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(ROWS, 4, sparse_grad=True)
            self.out = nn.Dense(2, in_units=12)

    def hybrid_forward(self, F, ids):
        return self.out(self.words(ids).reshape((0, -1)))


def hybridized(net):
    net.hybridize()
    return net


def hybridize(case):
    """Hide the ids of later batches."""
    case.net.hybridize()


class Requests:
    """Notes of each request for rows whether it was made in a forward pass."""

    def __init__(self, link):
        self.forward, self.in_forward = False, []
        link.request, link.deliver_tables = self._noting(link.request), self._noting(link.deliver_tables)

    def _noting(self, original):
        def request(*arguments):
            self.in_forward.append(self.forward)
            return original(*arguments)
        return request


def apart(worker, name, prefetch):
    """Report the rows that each worker pulls in a step, where workers share no rows, and the times of its requests."""
    size = worker.size
    net = nn.Sequential()
    net.add(nn.Embedding(APART * size, 4, sparse_grad=True), nn.Dense(1, in_units=4, flatten=False))
    case = Case(worker, name, 'adagrad', net)
    random = np.random.RandomState(3)
    joint = [np.stack([rank * APART + random.randint(0, APART, 6) for rank in range(size)]) for _ in range(STEPS)]
    feed = [(mx.nd.array(ids[worker.rank]),) for ids in joint]
    pulled, requests = [], None
    for step, (ids,) in enumerate(mxhybrid.prefetching(feed, net) if prefetch else feed):
        route = case.route
        if route is not None and step == MIDDLE:
            requests = Requests(route.server_table.servers.link)
        before = route.traffic.pulled if route is not None else 0
        if requests:
            requests.forward = True
        with autograd.record():
            loss = (net(ids) ** 2).sum()
        if requests:
            requests.forward = False
        loss.backward()
        case.trainer.step(1)
        pulled.append(case.route.traffic.pulled - before)
    case.note_kind('end')
    report(worker.rank, **{name: {
        'pulled': pulled, 'own': [len(np.unique(ids[worker.rank])) for ids in joint],
        'union': [len(np.unique(ids)) for ids in joint], 'asked': requests.in_forward}})


def local(worker, optimizer, settings):
    """Local SGD: between steps each worker updates by its own gradients, without an exchange."""
    case = Case(worker, optimizer=optimizer, settings=settings)
    fit(worker, case.net, case.trainer, steps=MIDDLE)
    outcome = {'route': case.route.kind}
    update_alone(case, 4)
    outcome['apart'] = weights(case.net)
    if worker.rank:  # others may do it more often, now that nobody else has to
        update_alone(case, 2)
    outcome['together'] = fit(worker, case.net, case.trainer, seed=6, steps=8)
    return dict(outcome, end=case.route.kind)


def update_alone(case, steps):
    """Steps of this worker, without the others."""
    for batch in list(zip(*batches(8)))[:steps]:
        backward(case.worker, case.net, *batch)
        case.trainer.update(8)


def go_on(case):
    """Train without any change."""


#: The optimizer, options of `Case`, and what happens in the middle.
CASES = {
    'evaluate-sgd-momentum': ('sgd-momentum', {}, evaluate), 'evaluate-adam': ('adam', {}, evaluate),
    'evaluate-groupadagrad': ('groupadagrad', {}, evaluate), 'evaluate-on-store': ('adam', ON_STORE, evaluate),
    'read': ('adam', {}, read_on_one), 'read-on-store': ('sgd-momentum', ON_STORE, read_on_one),
    'write': ('adagrad', {}, write), 'new': ('adagrad', {}, new_values), 'states': ('adam', {}, states),
    'states-on-store': ('sgd-momentum', ON_STORE, states),
    'states-of-the-store': ('adam', ON_STORE, states_of_the_store), 'push': ('adam', {}, push_by_hand),
    'hand': ('sgd-momentum', {'update_on_kvstore': False}, by_hand),
    'other': ('adam', ON_STORE, lambda case: other_optimizer(case, 'sgd', learning_rate=0.3, momentum=0.9)),
    'other-read': ('adam', ON_STORE, other_and_read),
    'other-refused': ('adam', ON_STORE, lambda case: other_optimizer(case, 'lamb', learning_rate=0.02)),
    'repartition': ('sgd-momentum', {}, repartition), 'lowered': ('sgd-momentum', {}, lowered),
    'schedule': ('adam', {'extra': {
        'lr_scheduler': mx.lr_scheduler.FactorScheduler(step=3, factor=0.7, base_lr=0.05)}}, schedule),
    'inner': ('sgd', {'net': Outer()}, go_on), 'outer': ('sgd', {'net': hybridized(Outer())}, go_on),
    'outer-later': ('adam', {'net': Outer()}, hybridize),
    'off': ('sgd', {'settings': {'on_demand_rows': False}}, go_on),
    'all-rows': ('rmsprop', {}, go_on),  # which rmsprop updates, touched or not
}


def run(worker, name):
    """Run a case."""
    optimizer, options, meddle = CASES[name]
    case = Case(worker, name, optimizer, **options)
    outcome = case.run(meddle)
    if case.held is not None and not np.array_equal(case.held.asnumpy(), case.table.data().asnumpy()):
        raise AssertionError('an array that was handed out is not the parameter any more')
    return outcome


def main():
    arguments = parser_of(CASES).parse_args()
    worker = Worker(arguments.kvstore, arguments.partitions, directory=arguments.directory)
    for name in arguments.cases:
        report(worker.rank, **{name: run(worker, name)})
    if worker.hybrid and worker.size > 1:
        apart(worker, 'apart', False)
        apart(worker, 'ahead', True)
        for optimizer in ('adam', 'sgd-momentum'):
            report(worker.rank, **{'local-' + optimizer: [local(worker, optimizer, {'on_demand_rows': own})
                                                          for own in (True, False)]})


if __name__ == '__main__':
    main()
