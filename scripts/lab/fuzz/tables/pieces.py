"""The pieces of training programs with dynamic tables; scripts are made of them and of :mod:`lab.fuzz.pieces`.

:class:`Training` trains with mxhybrid. :class:`Model` has the same calls in one process, with MXNet's Trainer and
kernels, and with a dict of rows for each dynamic table in place of mxhybrid's stores.
"""
import contextlib
import copy
import os
import pickle
import types
from unittest import mock

import mxnet as mx
import numpy as np
from lab.fuzz.pieces import StoreTrainer
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid.checkpoint import dynamic_tables, importing, layers
from mxhybrid.checkpoint.philox import fill_first_values
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
                name, value = table['initializer']
                block = make_table(table, dtype, getattr(mx.init, name)(value), 'table%d_' % number)
                self.register_child(block)
                self.tables.append(block)
            dynamic = {str(number): self.tables[feature['table']] for number, feature in enumerate(self.features)
                       if program['tables'][feature['table']]['kind'] != 'sparse'}
            self.collection = (mxhybrid.nn.EmbeddingCollection(dynamic, prefix='all_')
                               if program['collection'] and dynamic else None)
            self.out = gluon.nn.Dense(1, use_bias=False, in_units=WIDTH, prefix='out_')
            self.out.cast(dtype)

    def forward(self, arguments):
        """Return a prediction for each sample; `arguments` are those of each feature."""
        rows = {}
        if self.collection is not None:
            rows = self.collection({name: arguments[int(name)] for name in self.collection._tables})
        total = 0
        for number, feature in enumerate(self.features):
            given = arguments[number]
            if str(number) not in rows:
                table = self.tables[feature['table']]
                is_sparse = isinstance(table, gluon.nn.Embedding)
                rows[str(number)] = table(mx.nd.array(given['ids'], dtype='int64')) if is_sparse else table(**given)
            total = total + rows[str(number)]
        return self.out(total)


def make_table(table, dtype, initializer, prefix):
    """Return the Block of a table."""
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


def flat_state(state):
    """Return the elements of a row's optimizer state."""
    arrays = state if isinstance(state, (list, tuple)) else [] if state is None else [state]
    return [element for array in arrays for element in array.tostype('default').asnumpy().reshape(-1)]


class Training:
    """A net and its Trainer, whose methods are the events of programs."""

    def __init__(self, program, job, record, directory):
        self.program, self.job, self.record, self.directory = program, job, record, directory
        self.frozen, self.saves = set(), 0
        self.begin(program['seed'])

    def begin(self, seed):
        """Make net and Trainer."""
        mx.random.seed(seed + self.job.rank)
        self.net = TableNet(self.program)
        self.net.initialize(mx.init.Constant(0.4))
        name, options = self.program['optimizer']
        self.trainer = self._trainer(name, dict(options))
        self._request()

    def _trainer(self, name, options):
        program = self.program
        partitions = program['partitions'][min(self.job.part, len(program['partitions']) - 1)]
        return gluon.Trainer(self.net.collect_params(), name, options,
                             kvstore=mxhybrid.create(partitions=partitions), update_on_kvstore=program['on_store'])

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
        """Set the dense weight, by which a store that updates is made anew."""
        values = np.random.RandomState(seed).normal(scale=0.5, size=(1, WIDTH))
        self.net.out.weight.set_data(mx.nd.array(values, dtype=self.program['dtype']))

    def initialise(self, table, seed):
        """Begin a dynamic table anew; worker 0's seed counts."""
        mx.random.seed(seed + self.job.rank)
        self.net.tables[table].initialize(force_reinit=True)

    def step(self, following, seed, samples, split='even', prefetch='', empty=False, backwards=1, zero=True):
        """Make a step with this worker's share of joint batches."""
        if prefetch and following:
            self._prefetch(prefetch, following)
        if zero and self.program['grad_req'] == 'add':
            self.net.collect_params().zero_grad()
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
        """Import rows in pieces; `fails`: by what the import fails, in its second piece if the input is not wrong."""
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
        """Save, and record the rows and the state of the files; `fails`: by what the save fails."""
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
        width = WIDTH + len(flat_state(self.trainer._optimizer.create_state(
            999, mx.nd.zeros((1, WIDTH), dtype=self.program['dtype']))))
        with mxhybrid.checkpoint.open(path) as tables:
            for number, block in enumerate(self.net.tables):
                if self.is_dynamic(number):
                    stored = tables[names[id(block.weight)]]
                    pieces = list(layers.merged(stored._layers, stored._description))
                    keys = np.concatenate([np.empty(0, np.int64)] + [keys for keys, _ in pieces])
                    values = np.zeros((len(keys), width))
                    for column, first in (('rows', 0), ('state0', WIDTH), ('state1', 2 * WIDTH)):
                        for at, (_, columns) in zip(np.cumsum([0] + [len(keys) for keys, _ in pieces]), pieces):
                            if column in columns:
                                part = columns[column]
                                values[at:at + len(part), first:first + part.shape[1]] = part
                    self.record('saved keys of table %d' % number, keys)
                    self.record('saved rows of table %d' % number, values)

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
            self.record('table %d' % number, self.rows(number, known_keys(table)))

    def rows(self, number, keys):
        """Return rows of a table."""
        return self.net.tables[number](mx.nd.array(keys, dtype='int64')).asnumpy()


def failing(function, error):
    """Return a function whose second call raises an error."""
    calls = []

    def call(*args):
        calls.append(args)
        if len(calls) == 2:
            raise error('planted')
        return function(*args)
    return call


class ModelTable:
    """The rows of a dynamic table, by key, with MXNet's optimizer."""

    def __init__(self, options, first_values, dtype, updates=0):
        self.options, self.first_values, self.dtype, self.updates = options, first_values, dtype, updates
        self.rows, self.sightings, self.clock = {}, {}, 0

    def first(self, key):
        """Return the first values of a key."""
        row = np.empty((1, WIDTH), self.dtype)
        fill_first_values(self.first_values._asdict(), np.array([key]), row)
        return row

    def read(self, keys):
        """Return rows."""
        default = np.iinfo(np.int64).min if self.options.get('admit', 1) > 1 else None
        return np.concatenate([self.rows[key].weight.asnumpy() if key in self.rows else
                               self.first(key if default is None else default) for key in map(int, keys)])

    def array(self, values):
        """Return a row as a row_sparse array."""
        return mx.nd.sparse.row_sparse_array((values.reshape(1, WIDTH), [0]), shape=(1, WIDTH), dtype=self.dtype)

    def place(self, optimizer, key):
        """Return the row of a key, which gets one."""
        if key not in self.rows:
            weight = self.array(self.first(key))
            self.rows[key] = types.SimpleNamespace(weight=weight, state=optimizer.create_state(0, weight), count=0)
            self.rows[key].used = self.clock
        return self.rows[key]

    def update(self, optimizer, index, gradients):
        """Make a step: admission, the optimizer, expiry, capacity."""
        self.clock += 1
        touched = 0
        for key in sorted(gradients):
            if key not in self.rows and self.options.get('admit', 1) > 1:
                self.sightings[key] = self.sightings.get(key, 0) + 1
                if self.sightings[key] < self.options['admit']:
                    continue
                del self.sightings[key]  # if the row is removed, the key waits again
            row = self.place(optimizer, key)
            row.used, row.count, touched = self.clock, row.count + 1, touched + 1
            optimizer._index_update_count[index] = self.updates
            optimizer.update(index, row.weight, self.array(gradients[key]), row.state)
        self.updates += 1
        age, capacity = self.options.get('expire_after', 0), self.options.get('capacity', 0)
        if age:
            self.remove([key for key, row in self.rows.items() if row.used + age <= self.clock])
        if capacity and len(self.rows) > capacity:
            def rank(key):
                row = self.rows[key]
                return row.used == self.clock, row.count * (self.options['evict'] == 'rarest'), row.used, key
            most = max(capacity - capacity // 16, touched)
            self.remove(sorted(self.rows, key=rank)[:len(self.rows) - most])

    def remove(self, keys):
        """Remove rows."""
        for key in keys:
            del self.rows[key]

    def assign(self, optimizer, keys, rows):
        """Import rows, which count as used now."""
        for key, row in zip(map(int, keys), rows):
            placed = self.place(optimizer, key)
            placed.weight, placed.used = self.array(row), self.clock


class Model(Training):
    """The same training in one process by MXNet and dicts."""

    def begin(self, seed):
        super().begin(seed)
        self.tables = {number: self._table(number) for number in range(len(self.net.tables)) if self.is_dynamic(number)}
        self.gradients, self.slots = {number: {} for number in self.tables}, {}

    def _table(self, number, updates=0):
        return ModelTable(self.program['tables'][number]['options'], self.net.tables[number].weight.first_values,
                          self.program['dtype'], updates)

    def _trainer(self, name, options):
        self.dense = gluon.ParameterDict()
        self.dense._params.update((param.name, param) for param in self.net.collect_params().values()
                                  if not isinstance(param, mxhybrid.kvstore.table_parameter.TableParameter))
        if self.program['on_store']:
            return StoreTrainer(self.dense, name, options, update_on_kvstore=True)
        return gluon.Trainer(self.dense, name, options, kvstore=None)

    def freeze(self, table):
        super().freeze(table)
        self.gradients[table] = {}

    def initialise(self, table, seed):
        super().initialise(table, seed)
        self.tables[table], self.gradients[table] = self._table(table, self.tables[table].updates), {}

    def step(self, following, seed, samples, split='even', prefetch='', empty=False, backwards=1, zero=True):
        if zero and self.program['grad_req'] == 'add':
            self._zero()
        for number in range(backwards):
            self._backward(seed + 1000 * number, samples, split, empty)
        self.trainer.step(samples)
        for number, table in self.tables.items():
            if number not in self.frozen:
                table.update(self.trainer._optimizer, 1000 + number, self.gradients[number])
        if self.program['grad_req'] == 'write':
            self.gradients = {number: {} for number in self.tables}

    def _zero(self):
        self.net.out.weight.zero_grad()
        self.gradients = {number: {} for number in self.tables}

    def _backward(self, seed, samples, split, empty):
        dtype, features = self.program['dtype'], self.program['features']
        ids, weights, targets = table_batch(self.program, seed, samples, empty)
        keys, rows = {}, {}
        for number, table in self.tables.items():
            used = [bag for feature, bags in zip(features, ids) if feature['table'] == number for bag in bags]
            keys[number] = np.unique(np.concatenate([np.empty(0, np.int64)] + used))
            if len(keys[number]):
                rows[number] = mx.nd.array(table.read(keys[number]), dtype=dtype)
                rows[number].attach_grad('null' if number in self.frozen else 'write')
        with autograd.record():
            total = mx.nd.zeros((samples, WIDTH), dtype=dtype)
            for feature, bags, of_bags in zip(features, ids, weights):
                number = feature['table']
                if number not in self.tables:
                    total = total + self.net.tables[number](mx.nd.array(np.concatenate(bags), dtype='int64'))
                elif number in rows:
                    matrix = combining(feature, bags, of_bags, keys[number])
                    total = total + mx.nd.dot(mx.nd.array(matrix, dtype=dtype), rows[number])
            loss = ((self.net.out(total) - mx.nd.array(targets.reshape(-1, 1), dtype=dtype)) ** 2).sum()
        loss.backward()
        for number, array in rows.items():
            if number not in self.frozen:
                for key, gradient in zip(map(int, keys[number]), array.grad.asnumpy()):
                    self.gradients[number][key] = self.gradients[number].get(key, 0) + gradient

    def import_rows(self, table, seed, count, among, piece, fails=None):
        keys, rows = imported(self.program['tables'][table], self.program['dtype'], seed, count, among)
        whole = count if fails is None else 0 if fails == 'width' else piece
        failed = fails == 'width' or fails is not None and count > piece
        self.tables[table].assign(self.trainer._optimizer, keys[:whole], rows[:whole])
        self.record('failed', np.array(int(failed)))

    def save(self, slot, delta=False, keep=3, fails=None):
        self.record('failed', np.array(int(fails is not None)))
        if fails:
            return
        self.saves += 1
        mxhybrid.checkpoint.save(os.path.join(self.directory, slot), self.dense, self.trainer, self.saves)
        self.slots[slot] = pickle.dumps({number: vars(table) for number, table in self.tables.items()})
        for number, table in self.tables.items():
            self.record('saved keys of table %d' % number, np.array(sorted(table.rows), np.int64))
            rows = [np.append(row.weight.asnumpy(), flat_state(row.state)) for _, row in sorted(table.rows.items())]
            width = WIDTH + len(flat_state(self.trainer._optimizer.create_state(999, table.array(np.zeros(WIDTH)))))
            self.record('saved rows of table %d' % number, np.reshape(rows, (-1, width)).astype('float64'))

    def load(self, slot):
        mxhybrid.checkpoint.load(os.path.join(self.directory, slot), self.dense, self.trainer)
        for number, attributes in pickle.loads(self.slots[slot]).items():
            vars(self.tables[number]).update(attributes)

    def resume(self, slot=None):
        self._zero()  # otherwise a run goes on as if there was no interruption
        if slot is not None:
            self.load(slot)

    def move(self):
        self._zero()

    def rows(self, number, keys):
        return self.tables[number].read(keys) if number in self.tables else super().rows(number, keys)


def combining(feature, bags, weights, keys):
    """Return the matrix of the factors of all rows in each sample."""
    matrix = np.zeros((len(bags), len(keys)))
    for sample, (bag, of_bag) in enumerate(zip(bags, weights)):
        of_bag = of_bag if feature['weighted'] and feature['combine'] else np.ones(len(bag))
        divisor = {'mean': of_bag.sum(), 'sqrtn': np.sqrt((of_bag ** 2).sum())}.get(feature['combine'], 1)
        np.add.at(matrix[sample], np.searchsorted(keys, bag), of_bag / (divisor or 1))
    return matrix


def run(program, job, record, directory):
    """Run the part of a program that this job has."""
    events = program['events']
    moves = [number for number, event in enumerate(events, 1) if event['do'] == 'move']
    first, last = (moves[0], len(events)) if job.part else (0, moves[0] if moves and not job.alone else len(events))
    with contextlib.ExitStack() as patches:
        if program['unseen'] and not job.alone:  # servers find other files than worker 0, as if they were elsewhere
            patches.enter_context(mock.patch.object(dynamic_table, 'digest_of', lambda path: 'that of another file'))
            patches.enter_context(mock.patch.object(dynamic_tables, '_PIECE_BYTES', 200))
        training = (Model if job.alone else Training)(program, job, record, directory)
        if first:
            for event in events[:first]:
                if event['do'] in ('freeze', 'thaw'):
                    getattr(training, event['do'])(event['table'])
            training.load('moved')
        waits = False  # whether a table was initialised since the last step, by each worker for itself
        for number, event in enumerate(events[first:last], first):
            arguments = {name: value for name, value in event.items() if name != 'do'}
            record.at(number + 1, event['do'])
            if event['do'] == 'step':
                steps = [copy.copy(other) for other in events[number + 1:] if other['do'] == 'step']
                arguments['following'] = steps[0] if steps else None
            getattr(training, event['do'])(**arguments)
            waits = event['do'] == 'initialise' or waits and event['do'] != 'step'
            if not waits and (program['looks'] or event['do'] == 'evaluate' or number + 1 == len(events)):
                training.look()
