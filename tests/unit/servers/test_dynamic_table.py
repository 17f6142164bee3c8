"""Dynamic tables of workers and servers: updates equal those of MXNet's optimizers in one process."""
import contextlib
import tempfile

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import CheckpointError, InputError, JobError
from mxhybrid.lane.keyed_rows import KeyedRows
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.row_store.row_store import FirstValues, RowStore, RowStoreOptions, partition_of
from mxhybrid.servers import dynamic_table, file_pieces
from mxhybrid.servers.dynamic_shard import named_table
from mxhybrid.servers.dynamic_table import DynamicTableSpec, create_dynamic_table
from mxhybrid.servers.lifecycle import retire_tables
from mxhybrid.telemetry.recorder import Recorder

from ...helpers.nameless_files import nameless_files
from ...helpers.row_stores import first_rows
from .dynamic_job import dynamic_job

WIDTH, STEPS = 5, 6
FIRST = FirstValues('normal', 0.3, 11)
#: Keys on both sides of limits of integer and float types.
KEYS = np.unique(np.array([-2 ** 63, -2 ** 53 - 1, -2 ** 31 - 1, -5, -1, 0, 1, 2 ** 24 + 1, 2 ** 31 - 1, 2 ** 31,
                           2 ** 53, 2 ** 53 + 1, 2 ** 63 - 1] + list(range(7, 60, 3)), np.int64))

#: With their own settings.
OPTIMIZERS = [('sgd', {}), ('sgd', {'momentum': 0.9}), ('adam', {'beta1': 0.8, 'epsilon': 1e-4}),
              ('adagrad', {'eps': 1e-4}), ('groupadagrad', {}), ('ftrl', {'lamda1': 0.1, 'beta': 0.7})]
#: The numbers of workers and servers of each host, and of partitions.
JOBS = [([1], [1], 1), ([2], [2], 3), ([1, 1], [1, 1], 5), ([2, 1], [1, 2], 4)]


def create_items(servers, partitions=3, dtype='float32', width=WIDTH, name='items', optimizer='', **options):
    """Create a dynamic table, if need be with an optimizer whose learning rate is 1."""
    table = create_dynamic_table(servers, DynamicTableSpec(name, width, dtype, FIRST, partitions, **options))
    if optimizer:
        table.set_optimizer(mx.optimizer.create(optimizer), 1.0, 0.0, 0)
    return table


def pulled(table, keys=KEYS):
    rows = np.empty((len(keys), table.width), table.dtype)
    table.pull(keys, rows)
    return rows


def run_job(program, workers, servers):
    """Run a program on each worker of a job; return the results by rank."""
    with dynamic_job(workers, servers) as job:
        return job.run(program)


def gradients(rank, step, dtype='float32'):
    """Return the keys and gradients that a worker pushes in a step; some pushes have no keys."""
    random = np.random.RandomState(100 * rank + step)
    keys = KEYS[random.rand(len(KEYS)) < (0 if step == 2 else 0.5)]
    return keys, random.standard_normal((len(keys), WIDTH)).astype(dtype)


def rates(step):
    """Return learning rate and rescaling of a step."""
    return 0.1 / (1 + step // 3), 0.5 if step < 4 else 0.25


def in_one_process(name, arguments, wd, workers, dtype):
    """Return the rows of all keys after the steps, by MXNet's optimizer with a row_sparse weight."""
    optimizer = mx.optimizer.create(name, wd=wd, **arguments)
    weight = make_row_sparse(np.arange(len(KEYS)), first_rows(FIRST, KEYS, WIDTH, dtype), (len(KEYS), WIDTH))
    state = optimizer.create_state_multi_precision(0, weight)
    for step in range(STEPS):
        optimizer.lr, optimizer.rescale_grad = rates(step)
        total, is_pushed = np.zeros((len(KEYS), WIDTH), dtype), np.zeros(len(KEYS), bool)
        for rank in range(workers):
            keys, rows = gradients(rank, step, dtype)
            total[np.searchsorted(KEYS, keys)] += rows
            is_pushed[np.searchsorted(KEYS, keys)] = True
        ids = np.flatnonzero(is_pushed)
        optimizer.update_multi_precision(0, weight, make_row_sparse(ids, total[ids], weight.shape), state)
    return weight.asnumpy()


def test_a_lack_of_state_memory_names_the_table(monkeypatch):
    def refused(*_):
        raise JobError('no memory')

    def train(servers):
        table = create_items(servers, 1)
        with pytest.raises(JobError, match='^items: no memory'):
            table.set_optimizer(mx.optimizer.create('adagrad'), 0.1, 0.0, 0)

    monkeypatch.setattr(RowStore, 'set_state_widths', refused)
    run_job(train, [1], [1])


@pytest.mark.parametrize('workers, servers, partitions', JOBS)
# MXNet keeps the state of adagrad, groupadagrad and ftrl in float32, so tables of float64 are refused for them.
@pytest.mark.parametrize('name, arguments, dtype', [
    (name, arguments, dtype) for name, arguments in OPTIMIZERS for dtype in ('float32', 'float64')
    if dtype == 'float32' or name not in ('adagrad', 'groupadagrad', 'ftrl')])
def test_updates_equal_mxnets_in_one_process(name, arguments, dtype, workers, servers, partitions):
    wd = 0.0 if 'adagrad' in name else 0.01
    expected = in_one_process(name, dict(arguments, clip_gradient=0.8), wd, sum(workers), dtype)

    def train(servers):
        table = create_items(servers, partitions, dtype)
        np.testing.assert_array_equal(pulled(table), first_rows(FIRST, KEYS, WIDTH, dtype))
        optimizer = mx.optimizer.create(name, **dict(arguments, clip_gradient=0.8))
        for step in range(STEPS):
            lr, optimizer.rescale_grad = rates(step)
            table.set_optimizer(optimizer, lr, wd, step)
            keys, pushed_rows = gradients(servers.rank, step, dtype)
            table.prefetch(KEYS, after_push=step % 2 == 0)
            table.push(keys, pushed_rows)
            rows = pulled(table)
        return rows, table.statistics() if servers.rank == 0 else None
    results = run_job(train, workers, servers)
    for rows, _ in results:
        np.testing.assert_array_equal(rows, results[0][0])
        np.testing.assert_allclose(rows, expected, **({'rtol': 1e-12, 'atol': 1e-13} if dtype == 'float64' else
                                                      {'rtol': 1e-5, 'atol': 1e-6}))
    pushed = np.unique(np.concatenate([gradients(rank, step, dtype)[0] for rank in range(sum(workers))
                                       for step in range(STEPS)]))
    statistics = results[0][1]
    assert statistics['rows'] == statistics['admitted'] == len(pushed)
    assert statistics['updates'] == STEPS * partitions


@pytest.mark.parametrize('workers, servers', [([2], [1]), ([1, 1], [1, 1])])
def test_assigned_rows_start_with_a_fresh_optimizer(workers, servers):
    def train(servers):
        table = create_items(servers)
        keys = KEYS[servers.rank::2]
        momentum = mx.optimizer.create('sgd', momentum=0.5)
        table.set_optimizer(momentum, 1.0, 0.0, 0)
        table.touch()
        with table.assigning():
            table.push(keys, np.full((len(keys), WIDTH), 3.0))
        with table.assigning(slot=0):
            table.push(keys, np.full((len(keys), WIDTH), 2.0))
        assert (pulled(table) == 3).all()
        table.set_optimizer(momentum, 1.0, 0.0, 1)
        table.push(keys, np.zeros((len(keys), WIDTH)))
        assert (pulled(table) == 3 + 0.5 * 2).all()
        table.forget_optimizer()
        table.set_optimizer(mx.optimizer.create('adam'), 0.5, 0.0, 0)
        table.push(keys, np.ones((len(keys), WIDTH)))
        np.testing.assert_allclose(pulled(table), 3.5, rtol=1e-5)
    run_job(train, workers, servers)


@pytest.mark.parametrize('workers, servers', [([2], [1]), ([2, 1], [1, 2])])
@pytest.mark.parametrize('width', [WIDTH, 64, 65])
def test_hits_of_the_cache_are_counted_on_each_host(workers, servers, width):
    def train(servers):
        table = create_items(servers, width=width, optimizer='sgd')
        assert table.cache_counts() == {'requested': 0, 'cached': 0}
        servers.barrier()
        pulled(table)
        rows = pulled(table)
        servers.link.request_uncached(table, KEYS)(rows)  # past the cache
        servers.barrier()
        counts = table.cache_counts()
        servers.barrier()
        table.touch()  # the cache is empty after a push
        pulled(table, KEYS[:4])
        servers.barrier()
        return counts, table.cache_counts(), table.owners
    results = run_job(train, workers, servers)
    hosts = np.repeat(np.arange(len(workers)), workers)
    for host, (counts, later, owners) in zip(hosts, results):
        # A host copies narrow rows of its own servers again for each request.
        owner_hosts = np.repeat(np.arange(len(servers)), servers)[list(owners)]
        is_cached = (owner_hosts != host)[partition_of(KEYS, 3)] | (width > 64)
        requests = 2 * workers[host]
        assert counts == {'requested': requests * len(KEYS), 'cached': (requests - 1) * is_cached.sum()}
        assert later == {'requested': counts['requested'] + 4 * workers[host],
                         'cached': counts['cached'] + is_cached[:4].sum() * (workers[host] - 1)}


def test_rows_travel_as_float16_equally_to_all():
    def train(servers):
        table = create_items(servers, 4, wire_dtype='float16', optimizer='sgd')
        table.push(KEYS, np.ones((len(KEYS), WIDTH)))
        rows, exact = pulled(table), np.empty((len(KEYS), WIDTH), 'float32')
        servers.link.request_uncached(table, KEYS)(exact)
        return rows, exact
    expected = first_rows(FIRST, KEYS, WIDTH) - np.float32(3)
    for rows, exact in run_job(train, [2, 1], [1, 1]):
        np.testing.assert_array_equal(exact, expected)
        np.testing.assert_array_equal(rows, expected.astype(np.float16).astype(np.float32))


def test_bad_input_is_refused_before_anything_is_sent():
    with dynamic_job([1], [1]) as job:
        servers, = job.workers

        def create(partitions=2, max_batch_rows=4, **options):
            return create_items(servers, partitions, name='net.items', options=RowStoreOptions(**options),
                                max_batch_rows=max_batch_rows)
        for arguments, text in [({'partitions': 1 << 16}, 'partitions=65536'),
                                ({'max_batch_rows': 1 << 29}, 'max_batch_rows=536870912'),
                                ({'admit': 0}, 'admit=0'), ({'capacity': -1}, 'capacity=-1'),
                                ({'capacity': 1}, 'capacity=1 is less'), ({'evict': 'oldest'}, "evict='oldest'")]:
            with pytest.raises(InputError, match='net.items: .*' + text):
                create(**arguments)
        assert not job.servers[0]._partitions
        table = create()
        for keys, text in [([1, 2, 3, 4, 5], '5 distinct rows at a time, but max_batch_rows allows 4.*_MAX_BATCH_ROWS'),
                           ([2, 1], 'not sorted'), ([1, 1], 'not unique'), ([0.5], 'type float64'),
                           (np.array([1], np.uint64), 'type uint64'), ([[1]], 'a vector')]:
            keys = np.asarray(keys)
            for call in (table.push, table.pull):
                with pytest.raises(InputError, match='net.items: .*' + text):
                    call(keys, np.zeros((len(keys), WIDTH)))
        with pytest.raises(InputError, match=r'net.items: rows of shape \(2, 3\) for 2 keys: give .* \(2, 5'):
            table.push(np.array([1, 2]), np.zeros((2, 3)))
        small = create(capacity=5)
        crowded = np.arange(100)[partition_of(np.arange(100), 2) == 1][:3]
        with pytest.raises(InputError, match='net.items: a step has 3 distinct keys, but capacity=5 with 2 rows for '
                                             'each of 2 partitions, and one of them has 3 of the keys: give a'):
            small.push_all([small], [KeyedRows(crowded, None, np.zeros((3, WIDTH), 'float32'))])
        small.push(crowded[:2], np.zeros((2, WIDTH)))
        for optimizer, text in [(mx.optimizer.create('nag'), "'nag' cannot update net.items"),
                                (mx.optimizer.create('sgd', momentum=0.9, lazy_update=False), 'lazy_update=False'),
                                (mx.optimizer.create('lamb'), "'lamb'")]:
            with pytest.raises(InputError, match=text):
                table.set_optimizer(optimizer, 0.1, 0.0, 0)
        with pytest.raises(InputError, match='wd=0.1 cannot update net.items'):
            table.set_optimizer(mx.optimizer.create('adagrad'), 0.1, 0.1, 0)
        table.touch()
        assert table.statistics()['updates'] == 0


@pytest.mark.parametrize('workers, servers, partitions', JOBS[1:])
def test_rows_in_files_equal_those_in_memory(tmp_path, workers, servers, partitions):
    def train(servers):
        assert servers.rank or servers.storage_problems(str(tmp_path)) == []
        in_files = RowStoreOptions(directory=str(tmp_path), resident_bytes=1 << 20)
        tables = [create_items(servers, partitions, name='table %d' % number, options=options)
                  for number, options in enumerate([RowStoreOptions(), in_files, in_files])]
        for step in range(STEPS):
            for table in tables:
                table.set_optimizer(mx.optimizer.create('adagrad'), 0.1, 0.0, step)
                table.push(*gradients(servers.rank, step))
        rows = [pulled(table) for table in tables]
        np.testing.assert_array_equal(rows[1:], rows[:1] * 2)
        file_bytes = [table.statistics()['file_bytes'] for table in tables] if servers.rank == 0 else []
        open_files = len(nameless_files(tmp_path))
        servers.barrier()
        retire_tables(servers, [tables[2].name])
        return file_bytes, open_files
    with dynamic_job(workers, servers) as job:
        results = job.run(train)
        assert results[0][0][0] == 0 and min(results[0][0][1:]) > 0
        assert [open_files for _, open_files in results] == [2 * 2 * partitions] * sum(workers)  # keys and rows
        assert len(nameless_files(tmp_path)) == 2 * partitions and not list(tmp_path.iterdir())
        job.end_lane()
        assert not nameless_files(tmp_path) and not list(tmp_path.iterdir())


def test_a_directory_that_one_server_does_not_have(monkeypatch):
    with dynamic_job([1], [1, 1]) as job:
        monkeypatch.setattr(job.servers[1], 'do_storage',
                            lambda directory: job.servers[1]._answer(['host 1', 'is missing']))
        (problem,) = job.workers[0].storage_problems('/')
        assert tuple(problem) == ('host 1', 'is missing')


def test_retired_tables_are_dropped():
    def use(servers):
        for _ in range(3):
            table = create_items(servers, name='hybrid0.items', optimizer='adagrad')
            table.push(KEYS, np.ones((len(KEYS), WIDTH)))
            retire_tables(servers, [name for name in servers.tables if name.startswith('hybrid0.')])
            assert not servers.tables
    with dynamic_job([1, 1], [1, 1]) as job:
        job.run(use)
        for server in job.servers:
            assert not server._partitions and not server._shards and not server._dynamic_keys


def save(table, directory, since=None):
    """Save a table into a new directory beside a token (collective)."""
    token = directory.parent / (directory.name + '-token')
    if table.servers.is_root:
        directory.mkdir()
        token.write_text(directory.name)
    return table.at_rest([table], lambda: table.save(str(directory), since, str(token)))


def hide_files(monkeypatch):
    """Let servers find other content than that of worker 0 in all files, as if they were on other hosts."""
    monkeypatch.setattr(dynamic_table, 'digest_of', lambda path: 'another')


@pytest.mark.parametrize('workers, servers, partitions, later_partitions, by_worker', [
    ([1], [1], 2, 3, False), ([1, 1], [1, 2], 5, 2, False), ([1, 1], [1, 2], 5, 2, True)])
def test_saved_rows_and_state_are_loaded_into_other_partitions(tmp_path, monkeypatch, workers, servers, partitions,
                                                               later_partitions, by_worker):
    (tmp_path / 'scratch').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'scratch'))
    monkeypatch.setattr(file_pieces, 'PIECE_BYTES', 100)
    if by_worker:
        hide_files(monkeypatch)
    adagrad = mx.optimizer.create('adagrad')

    def train(servers):
        table = create_items(servers, partitions)
        directories, marks, commands, send = [], None, [], servers.command

        def command(*names, **arguments):
            commands.extend(names)
            send(*names, **arguments)
        servers.command = command
        for step in range(STEPS):
            table.set_optimizer(adagrad, 0.1, 0.0, step)
            table.push(*gradients(servers.rank, step))
            if step in (1, 3):
                saved = pulled(table)
                commands.clear()
                saved_parts = save(table, tmp_path / str(step), marks)
                # A look at the directory by itself only if servers did not see it before.
                assert commands[:1] == (['dynamic_look' if by_worker and step == 3 else 'dynamic_save']
                                        if servers.rank == 0 else [])
                assert by_worker or len(commands) <= 1  # nothing else is sent
                assert not list((tmp_path / 'scratch').iterdir())
                assert (saved_parts is not None) == (servers.rank == 0)
                results, hosts = saved_parts or ({}, [])
                assert bool(hosts) == (by_worker and servers.rank == 0)
                marks = {part: result['mark'] for part, result in results.items()} or None
                assert all(result['whole'] == (step == 1) for result in results.values())
                directories += [str(tmp_path / str(step) / str(part)) for part in range(partitions)]
        expected = pulled(table)
        other = create_items(servers, later_partitions, name='other', optimizer='adagrad')
        other.push(KEYS[3:5], np.ones((2, WIDTH)))
        pulled(other)  # hosts cache these rows
        other.load(directories, 4)
        np.testing.assert_array_equal(pulled(other), saved)
        for step in range(4, STEPS):
            other.set_optimizer(adagrad, 0.1, 0.0, step)
            other.push(*gradients(servers.rank, step))
        np.testing.assert_array_equal(pulled(other), expected)
    run_job(train, workers, servers)


def test_files_to_fetch_never_have_names(tmp_path):
    files = file_pieces.ScratchFiles()
    folder = files.folder(str(tmp_path), '3')
    folder.make()
    with folder.new_file('rows.npy') as file:
        file.write(b'elements')
        assert not list(tmp_path.iterdir())  # a server that is killed now leaves nothing
    assert files.read('3/rows.npy', 2) == b'ements' and len(nameless_files(tmp_path)) == 1
    files.close()
    assert not nameless_files(tmp_path)


def test_files_that_cannot_be_fetched(tmp_path, monkeypatch):
    """The error is raised in worker 0, and training goes on."""
    hide_files(monkeypatch)

    def train(servers):
        table = create_items(servers, optimizer='sgd')
        table.push(KEYS, np.ones((len(KEYS), WIDTH)))
        with monkeypatch.context() as context:
            context.setattr(dynamic_table, 'remove_parts', lambda path: (tmp_path / 'blocked' / '0').touch())
            with pytest.raises(CheckpointError, match='^cannot write rows of a dynamic table into .*/blocked/0: '):
                save(table, tmp_path / 'blocked')
        monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'none'))
        no_room = ('items: server 0 cannot save its rows: CheckpointError: cannot write rows of a dynamic table into '
                   '%s: .*let TMPDIR name a directory with room for the rows$' % (tmp_path / 'none'))
        with pytest.raises(JobError, match=no_room):
            save(table, tmp_path / 'no_scratch')
        monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
        save(table, tmp_path / 'good')
        table.touch()
    run_job(train, [1], [1])
    with pytest.raises(JobError, match='does not have the content that its server has written'):
        file_pieces.fetch(lambda file, start, size_bytes: b'x', {'keys': {'bytes': 1, 'xxh3_128': ''}}, '0',
                          str(tmp_path / 'other'))


def test_an_error_of_loading_leaves_training_possible():
    def train(servers):
        table = create_items(servers, 2)
        with (pytest.raises(JobError, match='items: server . cannot load its rows: .*/nowhere/0') if servers.rank == 0
              else contextlib.nullcontext()):
            table.load(['/nowhere/0'], 0)
        table.touch()
    run_job(train, [2], [2])


def test_answers_may_be_longer_than_a_mailbox():
    with dynamic_job([1], [2]) as job:
        for number, server in enumerate(job.servers):
            server._answer(['%d %d' % (number, item) for item in range(60000)])
        for number in (1, 0):
            assert job.workers[0].read_answer(number) == ['%d %d' % (number, item) for item in range(60000)]


def test_updates_are_recorded_in_a_trace():
    def train(servers):
        table = create_items(servers, optimizer='sgd')
        table.push(KEYS[servers.rank:], np.ones((len(KEYS) - servers.rank, WIDTH)))
        servers.link.settle()
    with dynamic_job([2], [1]) as job:
        job.servers[0].trace = recorder = Recorder('a server')
        job.run(train)
        events = [event for event in recorder.take(100) if event['name'] == 'optimize items']
    assert len(events) == 3 and sum(event['args']['rows'] for event in events) == len(KEYS)


def test_errors_of_shared_memory_name_the_setting():
    with pytest.raises(JobError, match=r'users: cannot map .*lower max_batch_rows=7 \(MXHYBRID_MAX_BATCH_ROWS\)'):
        with named_table('users', 7):
            raise JobError('cannot map shared memory')
