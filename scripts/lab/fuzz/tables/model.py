"""The model of training with dynamic tables: one process, MXNet's Trainer and kernels, and a dict of rows by key.

It shares nothing with mxhybrid's stores of rows, so it also shows errors that one process and a job have in common.
"""
import contextlib
import os
import pickle
import types
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxhybrid
from lab.fuzz.pieces import StoreTrainer, arrays_of
from lab.fuzz.tables.pieces import WIDTH, Training, imported
from mxhybrid.checkpoint import dynamic_tables
from mxhybrid.checkpoint.philox import fill_first_values
from mxhybrid.servers import dynamic_table


class ModelTable:
    """A dynamic table in place of a Block, whose parameter gives first values."""

    def __init__(self, weight, options, dtype, updates=0):
        self.weight, self.options, self.dtype = weight, options, dtype
        #: Pairs of keys and rows whose gradients the next step takes.
        self.lookups = []
        self.saved = {'rows': {}, 'sightings': {}, 'clock': 0, 'updates': updates, 'has_state': False,
                      'first_values': weight.first_values._asdict()}

    @property
    def rows(self):
        """The rows by key, with 'weight', 'state', 'used' and 'count'."""
        return self.saved['rows']

    def __call__(self, ids, offsets=None, combine=None, weights=None, padding=None):
        ids = ids.asnumpy() if isinstance(ids, mx.nd.NDArray) else ids
        flat = ids.reshape(-1)
        if offsets is not None:
            bags, bag_of = len(offsets), np.searchsorted(offsets, np.arange(len(flat)), 'right') - 1
        else:
            bags, bag_of = len(ids), np.arange(len(flat)) // (len(flat) // len(ids))
        weights = np.ones(len(flat)) if weights is None else weights.reshape(-1).astype('float64')
        is_used = flat != padding if padding is not None else np.ones(len(flat), bool)
        keys, places = np.unique(flat[is_used], return_inverse=True)
        if not len(keys):
            return mx.nd.zeros((bags, WIDTH), dtype=self.dtype)
        matrix, squares = np.zeros((bags, len(keys))), np.zeros((bags, 1))
        np.add.at(matrix, (bag_of[is_used], places), weights[is_used])
        np.add.at(squares[:, 0], bag_of[is_used], weights[is_used] ** 2)
        divisors = {'mean': matrix.sum(1, keepdims=True), 'sqrtn': np.sqrt(squares)}.get(combine, np.ones((bags, 1)))
        rows = mx.nd.array(np.concatenate([self.read(key) for key in keys.tolist()]), dtype=self.dtype)
        if autograd.is_recording() and self.weight.grad_req != 'null':
            rows.attach_grad()
            self.lookups.append((keys.tolist(), rows))
        return mx.nd.dot(mx.nd.array(matrix / np.where(divisors, divisors, 1), dtype=self.dtype), rows)

    def read(self, key):
        """Return the row of a key."""
        if key in self.rows:
            return self.rows[key].weight.asnumpy()
        return self.first(key if self.options.get('admit', 1) == 1 else np.iinfo(np.int64).min)

    def first(self, key):
        """Return the first values of a key."""
        row = np.empty((1, WIDTH), self.dtype)
        fill_first_values(self.saved['first_values'], np.array([key]), row)
        return row

    def array(self, values):
        """Return a row as a row_sparse array."""
        return mx.nd.sparse.row_sparse_array((values.reshape(1, WIDTH), [0]), shape=(1, WIDTH), dtype=self.dtype)

    def place(self, optimizer, key):
        """Return the row of a key, which gets one."""
        if key not in self.rows:
            self.saved['sightings'].pop(key, None)  # if the row is removed, the key waits again
            weight = self.array(self.first(key))
            self.rows[key] = types.SimpleNamespace(weight=weight, state=optimizer.create_state(0, weight), count=0)
        self.rows[key].used = self.saved['clock']
        return self.rows[key]

    def update(self, optimizer, index):
        """Make a step: admission, the optimizer, expiry, capacity."""
        admit, age, capacity = (self.options.get(name, 0) for name in ('admit', 'expire_after', 'capacity'))
        sightings, gradients, touched = self.saved['sightings'], {}, 0
        for keys, rows in self.lookups:
            for key, gradient in zip(keys, rows.grad.asnumpy()):
                gradients[key] = gradients.get(key, 0) + gradient
        self.saved['clock'] += 1
        for key in sorted(gradients):
            if key not in self.rows and admit:
                sightings[key] = sightings.get(key, 0) + 1
                if sightings[key] < admit:
                    continue
            row = self.place(optimizer, key)
            row.count, touched = row.count + 1, touched + 1
            optimizer._index_update_count[index] = self.saved['updates']
            optimizer.update(index, row.weight, self.array(gradients[key]), row.state)
        self.saved.update(updates=self.saved['updates'] + 1, has_state=True)

        def rank(key):
            row = self.rows[key]
            return row.used == self.saved['clock'], row.count * (self.options['evict'] == 'rarest'), row.used, key
        removed = [key for key, row in self.rows.items() if age and row.used + age <= self.saved['clock']]
        if capacity and len(self.rows) - len(removed) > capacity:
            kept = sorted(set(self.rows) - set(removed), key=rank)
            removed += kept[:len(kept) - max(capacity - capacity // 16, touched)]
        for key in removed:
            del self.rows[key]

    def saved_row(self, key):
        """Return a row and its state."""
        arrays = arrays_of(self.rows[key].state if self.saved['has_state'] else None)
        return np.concatenate([array.tostype('default').asnumpy().reshape(-1)
                               for array in (self.rows[key].weight, *arrays)])


class Model(Training):
    """Training by MXNet and models of tables."""

    def begin(self, seed):
        super().begin(seed)
        self.tables, self.slots = {}, {}
        for number, block in enumerate(self.net.tables):
            if self.is_dynamic(number):
                self._put_table(number, block.weight)

    def _put_table(self, number, weight, updates=0):
        options = self.program['tables'][number]['options']
        self.tables[number] = self.net.tables[number] = ModelTable(weight, options, self.program['dtype'], updates)

    def _trainer(self, name, options):
        self.dense = gluon.ParameterDict()
        self.dense._params.update((param.name, param) for param in self.net.collect_params().values()
                                  if type(param) is gluon.Parameter)
        if self.program['on_store']:
            return StoreTrainer(self.dense, name, options, update_on_kvstore=True)
        return gluon.Trainer(self.dense, name, options, kvstore=None)

    def _forget(self, zero=True):
        for table in self.tables.values():
            if zero or self.program['grad_req'] == 'write' or table.weight.grad_req == 'null':
                table.lookups = []

    def _backward(self, *arguments):
        if self.program['grad_req'] == 'write':
            self._forget()
        super()._backward(*arguments)

    def initialise(self, table, seed):
        mx.random.seed(seed)
        weight = self.tables[table].weight
        weight.initialize(force_reinit=True)
        self._put_table(table, weight, self.tables[table].saved['updates'])

    def step(self, following, seed, samples, zero=True, **arguments):
        self._forget(zero)
        super().step(following, seed, samples, zero=zero, **arguments)
        for number, table in self.tables.items():
            if number not in self.frozen:
                table.update(self.trainer._optimizer, 1000 + number)

    def import_rows(self, table, seed, count, among, piece, fails=None):
        keys, rows = imported(self.program['tables'][table], self.program['dtype'], seed, count, among)
        last = count if fails is None else 0 if fails == 'width' else piece
        for key, row in zip(keys[:last].tolist(), rows):
            placed = self.tables[table].place(self.trainer._optimizer, key)
            placed.weight = self.tables[table].array(row)
        self.record('failed', np.array(int(last < count)))

    def save(self, slot, delta=False, keep=3, fails=None):
        self.record('failed', np.array(int(fails is not None)))
        if fails:
            return
        self.saves += 1
        mxhybrid.checkpoint.save(os.path.join(self.directory, slot), self.dense, self.trainer, self.saves)
        self.slots[slot] = pickle.dumps({number: table.saved for number, table in self.tables.items()})
        for number, table in self.tables.items():
            self.look_at_saved(number, sorted(table.rows), [table.saved_row(key) for key in sorted(table.rows)])

    def load(self, slot):
        mxhybrid.checkpoint.load(os.path.join(self.directory, slot), self.dense, self.trainer)
        for number, saved in pickle.loads(self.slots[slot]).items():
            self.tables[number].saved = saved

    def resume(self, slot=None):
        self._forget()
        self.net.out.weight.zero_grad()  # otherwise a run goes on as if there was no interruption
        if slot is not None:
            self.load(slot)

    move = resume


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
        for number, event in enumerate(events[first:last], first):
            arguments = {name: value for name, value in event.items() if name != 'do'}
            record.at(number + 1, event['do'])
            if event['do'] == 'step':
                arguments['following'] = next((other for other in events[number + 1:] if other['do'] == 'step'), None)
            getattr(training, event['do'])(**arguments)
            if program['looks'] or event['do'] == 'evaluate' or number + 1 == len(events):
                training.look()
