"""The pieces of training programs with dynamic tables; scripts are made of them, :mod:`.model` and the plain pieces."""
import contextlib
import os
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.checkpoint import importing, layers
from mxhybrid.kvstore.local_table import LocalTable
from mxhybrid.servers import dynamic_table

#: Elements of a row; most ids that a sample has for a feature.
WIDTH, MOST_IDS = 3, 3


class TableNet(gluon.Block):
    """Tables, features of a sample that look their rows up, and a dense layer on the sums of the rows."""

    def __init__(self, program):
        super().__init__(prefix='net_')
        self.features, dtype = program['features'], program['dtype']
        self.tables = []
        with self.name_scope():
            for number, table in enumerate(program['tables']):
                self.tables.append(make_table(table, dtype, 'table%d_' % number))
                self.register_child(self.tables[-1])
            dynamic = {str(number): self.tables[feature['table']] for number, feature in enumerate(self.features)
                       if program['tables'][feature['table']]['kind'] != 'sparse'}
            self.collection = (mxhybrid.nn.EmbeddingCollection(dynamic, prefix='all_')
                               if program['collection'] and dynamic else None)
            self.out = gluon.nn.Dense(1, use_bias=False, in_units=WIDTH, prefix='out_')
            self.out.cast(dtype)

    def forward(self, arguments):
        """Return a prediction for each sample; `arguments` are those of each feature."""
        rows, total = {}, 0
        if self.collection is not None:
            rows = self.collection({name: arguments[int(name)] for name in self.collection._tables})
        for number, (feature, own_arguments) in enumerate(zip(self.features, arguments)):
            table = self.tables[feature['table']]
            if str(number) in rows:
                total = total + rows[str(number)]
            elif isinstance(table, gluon.nn.Embedding):
                total = total + table(mx.nd.array(own_arguments['ids'], dtype='int64'))
            else:
                total = total + table(**own_arguments)
        return self.out(total)


def make_table(table, dtype, prefix):
    """Return the Block of a table."""
    name, value = table['initializer']
    initializer = getattr(mx.init, name)(value)
    if table['kind'] == 'sparse':
        return gluon.nn.Embedding(table['count'], WIDTH, dtype, mx.init.Constant(0.2), True, prefix=prefix)
    if table['kind'] == 'rows':
        return mxhybrid.nn.Embedding(1 << 40, WIDTH, dtype, initializer, prefix=prefix)
    return mxhybrid.nn.HashEmbedding(WIDTH, dtype, initializer, prefix=prefix, **table['options'])


def keys_of(table, numbers):
    """Return the keys of a table with these numbers; batches have those below its count."""
    factor = {'sparse': 1, 'rows': (1 << 40) // 512, 'keys': 1 << 53}[table['kind']]
    return np.asarray(numbers, np.int64) * factor - (1 if table['kind'] == 'keys' else 0)


def known_keys(table):
    """Return the keys that batches and imports may have."""
    return keys_of(table, np.arange(table['count'] + (0 if table['kind'] == 'sparse' else 100)))


def table_batch(program, seed, samples, empty=False):
    """Return ids and weights of each sample for each feature, and targets; `empty`: even samples have empty bags."""
    random, ids = np.random.RandomState(seed), []
    for feature in program['features']:
        table = program['tables'][feature['table']]
        has_bags = feature['combine'] is not None and table['kind'] != 'sparse'
        counts = random.randint(0, MOST_IDS + 1, samples) if has_bags else np.ones(samples, int)
        if empty and has_bags:
            counts[::2] = 0
        ids.append([keys_of(table, random.randint(0, table['count'], count)) for count in counts])
    weights = [[random.uniform(0.5, 2, len(bag)) for bag in bags] for bags in ids]
    return ids, weights, random.standard_normal(samples)


def arguments_of(program, feature, ids, weights):
    """Return the arguments of a Block for the samples with these ids and weights."""
    if feature['combine'] is None or program['tables'][feature['table']]['kind'] == 'sparse':
        return {'ids': np.concatenate(ids)}
    arguments = {'combine': feature['combine']}
    if feature['by_offsets']:
        arguments['ids'] = np.concatenate(ids + [np.empty(0, np.int64)])
        arguments['offsets'] = np.cumsum([0] + [len(bag) for bag in ids])[:-1]
    else:
        arguments['padding'] = 7  # no id of a table by keys or by large numbers
        arguments['ids'] = np.array([list(bag) + [7] * (MOST_IDS - len(bag)) for bag in ids], np.int64)
        weights = [np.append(bag, np.zeros(MOST_IDS - len(bag))) for bag in weights]
    if feature['weighted']:
        arguments['weights'] = np.concatenate(weights).reshape(arguments['ids'].shape).astype(program['dtype'])
    return arguments


def imported(table, dtype, seed, count, among):
    """Return keys, of which some come twice, and rows."""
    random, known = np.random.RandomState(seed), table['count']
    first, last = {'known': (0, known), 'new': (known, known + 100), 'both': (0, known + 100)}[among]
    return keys_of(table, random.randint(first, last, count)), random.standard_normal((count, WIDTH)).astype(dtype)


class Training:
    """A net and its Trainer, whose methods are the events of programs."""

    def __init__(self, program, job, record, directory):
        self.program, self.job, self.record, self.directory = program, job, record, directory
        self.frozen, self.saves = set(), 0
        self.begin(program['seed'])

    def begin(self, seed):
        """Make net and Trainer."""
        mx.random.seed(seed + self.job.rank)
        self.net = TableNet(dict(self.program, collection=self.program['collection'] and not self.job.alone))
        self.net.initialize(mx.init.Constant(0.4))
        name, options = self.program['optimizer']
        self.trainer = self._trainer(name, dict(options))
        self._request()

    def _trainer(self, name, options):
        program = self.program
        partitions = program['partitions'][min(self.job.part, len(program['partitions']) - 1)]
        storage = {'storage': '*=' + os.path.dirname(self.directory)} if program['files'] else {}
        if program['files'] == 'cached':
            storage['storage_memory'] = '8M'
        return gluon.Trainer(self.net.collect_params(), name, options, update_on_kvstore=program['on_store'],
                             kvstore=mxhybrid.create(partitions=partitions, **storage))

    def _request(self):
        self.net.out.weight.grad_req = self.program['grad_req']
        for number, table in enumerate(self.net.tables):
            # MXNet adds no row_sparse gradients.
            request = 'write' if isinstance(table, gluon.nn.Embedding) else self.program['grad_req']
            table.weight.grad_req = 'null' if number in self.frozen else request

    def is_dynamic(self, number):
        """Return whether a table is dynamic."""
        return self.program['tables'][number]['kind'] != 'sparse'

    # -- events ----------------------------------------------------------------------------------------------------

    def evaluate(self):
        """Do nothing: values are compared after the event."""

    def rate(self, value):
        """Set the learning rate."""
        self.trainer.set_learning_rate(value)

    def freeze(self, table):
        """Let a table rest."""
        self.frozen.add(table)
        self._request()

    def thaw(self, table):
        """Train a table again."""
        self.frozen.discard(table)
        self._request()

    def set(self, seed):
        """Set the dense weight; a store that updates is then made again."""
        values = np.random.RandomState(seed).normal(scale=0.5, size=(1, WIDTH))
        self.net.out.weight.set_data(mx.nd.array(values, dtype=self.program['dtype']))

    def initialise(self, table, seed):
        """Initialise a dynamic table again, by one seed: before a step, each worker reads values of its own seed."""
        mx.random.seed(seed)
        self.net.tables[table].initialize(force_reinit=True)

    def step(self, following, seed, samples, split='even', prefetch='', empty=False, backwards=1, zero=True):
        """Make a step with this worker's share of joint batches."""
        if prefetch and following and not self.job.alone:
            self._prefetch(prefetch, following)
        if self.program['grad_req'] == 'add':
            # The gradient of a dense weight is the sum of all workers after a step, which they would add up again.
            (self.net.collect_params() if zero else self.net.out.weight).zero_grad()
        for number in range(backwards):
            self._backward(seed + 1000 * number, samples, split, empty)
        self.trainer.step(samples, ignore_stale_grad=True)

    def _backward(self, seed, samples, split, empty):
        net, dtype = self.net, self.program['dtype']
        arguments, targets = self._share(seed, samples, split, empty)
        with autograd.record():
            if arguments is None:
                loss = (net.out(mx.nd.zeros((1, WIDTH), dtype=dtype)) * 0).sum()
            else:
                loss = ((net(arguments) - mx.nd.array(targets.reshape(-1, 1), dtype=dtype)) ** 2).sum()
        loss.backward()

    def _share(self, seed, samples, split='even', empty=False, **_):
        """Return the arguments of each feature for this worker's samples, and their targets; None without any."""
        ids, weights, targets = table_batch(self.program, seed, samples, empty)
        size = self.job.size
        owners = {'even': np.arange(samples) % size, 'one': np.full(samples, seed % size),
                  'uneven': np.minimum(np.random.RandomState(seed + 1).geometric(0.5, samples) - 1, size - 1)}[split]
        mine = np.flatnonzero(owners == self.job.rank)
        if not len(mine):
            return None, None
        return [arguments_of(self.program, feature, [bags[sample] for sample in mine], [bag[sample] for sample in mine])
                for feature, bags, bag in zip(self.program['features'], ids, weights)], targets[mine]

    def _prefetch(self, which, following):
        """Request rows of the next batch, or others."""
        arguments, _ = self._share(**following)
        for number, feature in enumerate(self.program['features']):
            if arguments is not None and self.is_dynamic(feature['table']):
                ids = arguments[number]['ids'].reshape(-1)
                mxhybrid.prefetch(self.net.tables[feature['table']].weight, ids if which == 'next' else ids[::2] // 2,
                                  after_step=True)

    def import_rows(self, table, seed, count, among, piece, fails=None):
        """Import rows in pieces; `fails` is the cause of a failure, in the second piece unless the input is wrong."""
        given = self.program['tables'][table]
        keys, rows = imported(given, self.program['dtype'], seed, count, among)
        with contextlib.ExitStack() as faults:
            faults.enter_context(mock.patch.object(importing, 'PIECE_BYTES', piece * WIDTH * rows.itemsize))
            self._plant(faults, fails)
            self._try(fails, mxhybrid.checkpoint.import_rows, self.net.tables[table], keys,
                      rows[:, 1:] if fails == 'width' else rows)

    def _plant(self, faults, fails):
        """Make the second piece of an import fail: when it is read or pushed by worker 0, or by Ctrl-C on all."""
        error = {'read': OSError, 'push': MemoryError, 'interrupt': KeyboardInterrupt}.get(fails)
        if error is None or (self.job.rank and fails != 'interrupt'):
            return
        if fails == 'read':
            pieces = importing._GivenRows.pieces
            faults.enter_context(mock.patch.object(importing._GivenRows, 'pieces', lambda *args: map(
                failing(lambda piece: piece, error), pieces(*args))))
            return
        for owner in (LocalTable, dynamic_table.DynamicTable):
            faults.enter_context(mock.patch.object(owner, 'push', failing(owner.push, error)))

    def _try(self, fails, call, *args, **options):
        """Make a call, which may fail if `fails`, and record whether it did."""
        self.record('failed', np.array(0))
        try:
            call(*args, **options)
        except (Exception, KeyboardInterrupt):
            if not fails:
                raise
            self.record('failed', np.array(1))

    def save(self, slot, delta=False, keep=3, fails=None):
        """Save, and record the rows and the state of the files; `fails` is the cause of a failure."""
        self.saves += 1
        path = os.path.join(self.directory, slot)
        if fails == 'place' and self.job.rank == 0:
            path = os.path.join(self.directory, 'file')
            open(path, 'w').close()
        self._try(fails, mxhybrid.checkpoint.save, path, self.net, self.trainer, self.saves, keep=keep, delta=delta,
                  extra=self if fails == 'extra' else None)
        if not fails and self.job.rank == 0:
            self._look_at_files(path)
        self.job.barrier()

    def _look_at_files(self, path):
        names = {id(param): name for name, param in reversed(list(self.net._collect_params_with_prefix().items()))}
        with mxhybrid.checkpoint.open(path) as tables:
            for number, block in enumerate(self.net.tables):
                if self.is_dynamic(number):
                    stored = tables[names[id(block.weight)]]
                    pieces = list(layers.merged(stored.layers, stored.description))
                    self.look_at_saved(number, [key for keys, _ in pieces for key in keys], [
                        np.concatenate([columns[name][row] for name in ('rows', 'state0', 'state1') if name in columns])
                        for keys, columns in pieces for row in range(len(keys))])

    def look_at_saved(self, number, keys, values):
        """Record the saved keys of a table, and their rows and state."""
        self.record('saved keys of table %d' % number, np.array(keys, np.int64))
        self.record('saved rows of table %d' % number, np.array(values, self.program['dtype']).reshape(-1))

    def load(self, slot):
        """Load into the running net."""
        mxhybrid.checkpoint.load(os.path.join(self.directory, slot), self.net, self.trainer)
        self.job.barrier()

    def resume(self, slot=None):
        """Go on from a save, or from here, in a fresh net."""
        if slot is None:
            slot = 'here'
            mxhybrid.checkpoint.save(os.path.join(self.directory, slot), self.net, self.trainer, 1)
        self.begin(self.program['seed'] + 77)
        self.load(slot)

    def move(self):
        """Save, to go on in another job."""
        mxhybrid.checkpoint.save(os.path.join(self.directory, 'moved'), self.net, self.trainer, 1)

    # -- values ----------------------------------------------------------------------------------------------------

    def look(self):
        """Record rows and weights."""
        self.record('out', self.net.out.weight.data().asnumpy())
        for number, table in enumerate(self.program['tables']):
            self.record('table %d' % number,
                        self.net.tables[number](mx.nd.array(known_keys(table), dtype='int64')).asnumpy())


def failing(function, error):
    """Return a function whose second call raises an error."""
    calls = []

    def call(*args):
        calls.append(args)
        if len(calls) == 2:
            raise error('planted')
        return function(*args)
    return call
