"""Dynamic tables against a model: random programs of steps, saves, loads, imports and resumes, in one process and jobs.

The model is a dictionary of rows.  A program has several jobs, which continue one training with other numbers of
workers, servers and partitions.  After each operation, the table must have the rows of the model.
"""
import contextlib
import copy
import json
import os
import threading
import types
from typing import NamedTuple

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import CheckpointError, JobError
from mxhybrid.checkpoint import dynamic_tables, files, folder
from mxhybrid.checkpoint.collect import Item
from mxhybrid.checkpoint.compaction import compact
from mxhybrid.checkpoint.reader import newest
from mxhybrid.checkpoint.workers import ALONE, assign_rows
from mxhybrid.kvstore.local_table import LocalTable
from mxhybrid.native.optimizer_state import count_update, set_counts, update_count
from mxhybrid.row_store.row_store import FirstValues, RowStoreOptions
from mxhybrid.servers import dynamic_table
from mxhybrid.servers.dynamic_table import DynamicTableSpec, create_dynamic_table

from ...helpers.table_model import FIRST, Model
from ..servers.dynamic_job import dynamic_job

KEYS, KEY, WIDTH = np.arange(60) * 7 - 40, 0, 2
#: The numbers of workers and servers of each host, and of partitions; None for one process.
JOBS = [None, ([1], [1], 2), ([2], [2], 3), ([1, 1], [1, 1], 3), ([1, 1], [1, 2], 5)]


class Operation(NamedTuple):
    name: str
    keys: list = []
    value: float = 0.0


def drawn_operations(random):
    """Return operations, most of them steps; some steps have no keys."""
    operations = []
    for _ in range(random.randint(8, 16)):
        name = random.choice(['step', 'save', 'delta', 'load', 'import', 'compact'], p=[.6, .06, .14, .06, .1, .04])
        most = {'step': 9, 'import': 50}.get(name, 1)
        keys = sorted(set(KEYS[np.minimum(random.zipf(1.2, random.randint(0, most)), len(KEYS)) - 1].tolist()))
        operations.append(Operation(name, keys, float(random.randint(1, 8))))
    return operations + [Operation('delta')]


def drawn_program(seed):
    """Return the options of a table, and the jobs: shape, storage, whether servers see worker 0's files, operations."""
    random = np.random.RandomState(seed)
    options = [{'expire_after': [2, 5, 33][seed // 4 % 3]}, {'capacity': 50, 'evict': ['lru', 'rarest'][seed // 4 % 2]},
               {'capacity': 60, 'expire_after': 4}, {'admit': 3, 'expire_after': 6}][seed % 4]
    jobs = [(JOBS[random.randint(len(JOBS))], random.choice(['memory', 'files', 'budget']),
             random.rand() < 0.7, drawn_operations(random)) for _ in range(3)]
    return options, jobs


class Workers:
    """The workers of a job, as checkpoints see them."""

    together = True

    def __init__(self, servers):
        self.rank, self.size, self._servers = servers.rank, servers.num_workers, servers

    def allgather_json(self, value, operation):
        job = self._servers.job
        job.values[self.rank] = json.dumps(value)
        self._servers.barrier()
        values = [json.loads(job.values[rank]) for rank in range(job.num_workers)]
        self._servers.barrier()
        return values

    def busy(self):
        return contextlib.nullcontext()


class Training:
    """A table on one worker, and its checkpoints; worker 0 compares the table with the model."""

    def __init__(self, table, workers, options, directory, model):
        self.table, self.workers, self.directory, self.model = table, workers, directory, model
        self.trainer = types.SimpleNamespace(optimizer=mx.optimizer.create('sgd', momentum=0.5))
        param = types.SimpleNamespace(table=table, width=WIDTH, dtype='float64', rows=None, options=options,
                                      first_values=FirstValues('constant', FIRST))
        self.items = [Item('words', param, KEY)]
        self.has_base = False

    def run(self, operations):
        for operation in operations:
            getattr(self, 'do_' + operation.name)(operation)
            if self.workers.rank == 0:
                self.compare(operation)

    def compare(self, operation):
        rows = np.empty((len(KEYS), WIDTH))
        if isinstance(self.table, LocalTable):
            self.table.pull(KEYS, rows)
        else:
            self.table.servers.link.request_uncached(self.table, KEYS)(rows)
        expected = [self.model.rows.get(key, [FIRST])[0] for key in KEYS.tolist()]
        self.expect(rows[:, 0].tolist() == rows[:, 1].tolist() == expected
                    and self.table.statistics()['rows'] == len(self.model.rows), operation)

    def expect(self, is_right, operation):
        if not is_right and self.model.difference is None:
            self.model.difference = operation

    def do_step(self, operation):
        optimizer, size = self.trainer.optimizer, getattr(self.workers, 'size', 1)
        count = update_count(optimizer, KEY)
        count_update(optimizer, KEY)
        self.table.set_optimizer(optimizer, 1.0, 0.0, count)
        own = np.array(operation.keys[self.workers.rank::size], np.int64)
        self.table.push(own, np.full((len(own), WIDTH), operation.value))
        if self.workers.rank == 0:
            self.model.step(operation.keys, operation.value)

    def do_import(self, operation):
        """Import rows in pieces that have more keys than some capacities."""
        pieces = [np.array(operation.keys[first:first + 30], np.int64) for first in range(0, len(operation.keys), 30)]
        rows = [(keys, np.full((len(keys), WIDTH), operation.value)) for keys in pieces]
        assign_rows(self.workers, self.table, iter(rows if self.workers.rank == 0 else []))
        if self.workers.rank == 0:
            self.model.assign(operation.keys, operation.value)

    def do_save(self, operation, delta=False):
        table_save = dynamic_tables.TableSave(self.trainer, self.items, self.directory)
        with contextlib.ExitStack() as opened:
            writers = []

            def open_writer():
                os.makedirs(self.directory, exist_ok=True)
                opened.enter_context(folder.locked(self.directory))
                writers.append(opened.enter_context(files.Writer(self.directory)))
                return writers[0]
            table_save.write(self.workers, open_writer, delta)
            if self.workers.rank == 0:
                table_save.raise_problem()
                table_save.add(writers[0])
                writers[0].commit(1, {}, 3, table_save.bases)
                table_save.remember(writers[0].identity)
                is_delta = bool(table_save.bases)
                self.expect(is_delta <= delta and is_delta >= (delta and self.has_base), operation)
                self.has_base = self.table.has_optimizer  # otherwise the first step makes optimizer state
                self.model.saved = copy.deepcopy(self.model)

    def do_delta(self, operation):
        self.do_save(operation, True)

    def do_compact(self, operation):
        if self.workers.rank == 0 and os.path.isdir(self.directory):
            compact(self.directory)

    def do_load(self, operation):
        reader = newest(self.directory) if self.workers.rank == 0 and os.path.isdir(self.directory) else None
        stored = self.workers.allgather_json(reader and dynamic_tables.stored_tables(reader), 'stored')[0]
        if stored is None:
            return
        problems = []
        set_counts(self.trainer.optimizer, {KEY: stored['words']['description']['updates']}, [0])
        dynamic_tables.put_tables(self.trainer, self.items, stored, self.workers, lambda: reader, problems.append)
        assert not problems
        if self.workers.rank == 0:
            saved = self.model.saved
            self.model.rows, self.model.sightings = copy.deepcopy(saved.rows), dict(saved.sightings)
            self.model.clock, self.has_base = saved.clock, False


def run_job(job, storage, options, operations, directory, model):
    """Run a part of a program in one process or in a job."""
    first_values = FirstValues('constant', FIRST)
    placement = {'directory': '' if storage == 'memory' else os.path.dirname(directory),
                 'resident_bytes': 1 << 20 if storage == 'budget' else 0}
    model.partitions = 1 if job is None else job[2]
    if job is None:
        table = LocalTable('words', WIDTH, 'float64', first_values, options, **placement)
        Training(table, ALONE, options, directory, model).run(operations)
        table.close()
        return

    def train(servers):
        table = create_dynamic_table(servers, DynamicTableSpec('words', WIDTH, 'float64', first_values, job[2],
                                     RowStoreOptions(**options, **placement)))
        Training(table, Workers(servers), options, directory, model).run(operations)
    with dynamic_job(*job[:2]) as running:
        running.run(train)


@pytest.mark.parametrize('seed', range(16))
def test_programs_have_the_rows_of_the_model(tmp_path, monkeypatch, seed):
    options, jobs = drawn_program(seed)
    model = Model(**options)
    monkeypatch.setattr(dynamic_tables, '_PIECE_BYTES', 100)
    for number, (job, storage, sees_files, operations) in enumerate(jobs):
        with monkeypatch.context() as context:
            if not sees_files:  # worker 0 fetches and sends the rows
                context.setattr(dynamic_table, 'digest_of', lambda path: 'that of another file')
            run_job(job, storage, options, ([Operation('load')] if number else []) + operations,
                    str(tmp_path / 'saved'), model)
    assert model.difference is None and model.clock > 0


@pytest.mark.parametrize('fails', ['next piece', 'push'])
@pytest.mark.parametrize('error', [MemoryError('no memory'), JobError('no memory'), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize('job', [([2], [1], 1), ([1, 1], [1, 1], 3)])
def test_failed_imports_end_on_all_workers(job, error, fails):
    """Worker 0 alone fails; the next step updates rows, and does not replace them."""
    keys = KEYS[:12]

    def pieces():
        for number, piece in enumerate(np.split(keys, 3)):
            if number == 1 and fails == 'next piece':
                raise error
            yield piece, np.full((len(piece), WIDTH), 5.0)

    def train(servers):
        table = create_dynamic_table(servers, DynamicTableSpec('words', WIDTH, 'float64', FirstValues(), job[2]))
        table.set_optimizer(mx.optimizer.create('sgd'), 1.0, 0.0, 0)
        table.touch()
        push, caught, rows = table.push, None, np.empty((len(keys), WIDTH))

        def failing(keys, rows):
            if len(keys) and keys[0] == KEYS[4] and fails == 'push':
                raise error
            push(keys, rows)
        table.push = failing
        is_root = servers.rank == 0
        with contextlib.suppress(threading.BrokenBarrierError):
            try:
                assign_rows(Workers(servers), table, pieces() if is_root else iter(()))
            except (CheckpointError, KeyboardInterrupt) as problem:
                caught = problem
                if isinstance(error, KeyboardInterrupt):
                    servers.job.barrier.abort()  # a script that ends
        table.push = push
        if not isinstance(error, KeyboardInterrupt):
            assert str(caught) == 'no memory'
            table.push(*((keys, np.ones((len(keys), WIDTH))) if is_root else (keys[:0], np.empty((0, WIDTH)))))
            table.pull(keys, rows)
            assert rows[:, 0].tolist() == [4.0] * 4 + [-1.0] * 8
    with dynamic_job(*job[:2]) as running:
        running.run(train)
        modes = [shard.mode for server in running.servers for shard in server._shards.values()]
    assert modes == ['optimize'] * job[2]
