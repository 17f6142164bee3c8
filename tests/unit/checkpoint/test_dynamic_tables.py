"""Dynamic tables in one process: saved, as deltas too, resumed, read without a Trainer, and imported."""
import os
import resource
import shutil

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxhybrid
from mxhybrid import CheckpointError, InputError
from mxhybrid.base.errors import JobError
from mxhybrid.checkpoint import dynamic_tables, folder, importing
from mxhybrid.checkpoint.collect import items_of
from mxhybrid.checkpoint.compaction import compact
from mxhybrid.checkpoint.dynamic_tables import misfit_of_tables, split_off_tables
from mxhybrid.checkpoint.reader import MANIFEST, Reader

from .dynamic_training import BIG, STEPS, WIDTH, Training

#: Arguments of trainings.
TRAININGS = [dict(options, dtype=dtype) for dtype in ('float32', 'float64') for options in (
    {'optimizer': 'adam'}, {'optimizer': 'sgd'}, {'optimizer': 'sgd', 'settings': {'momentum': 0.9, 'wd': 0.01}})] + [
        {'optimizer': 'adagrad'}, {'optimizer': 'ftrl'},
        {'optimizer': 'groupadagrad', 'dense': False},  # cannot update a dense layer
        {'row_dtype': 'float16'}, {'row_dtype': 'bfloat16'}]


def tables_in(path):
    return Reader(path).tables


def is_delta(path):
    return tables_in(path)['users.weight']['delta']


def save_each_step(training, directory, begin, end, most=40, **keywords):
    """Train, and save a delta after each step; return the path of the last one."""
    for step in range(begin, end):
        path = training.fit_and_save(directory, step, step + 1, most, delta=True, **keywords)
    return path


def assert_goes_on(directory, training, begin, most=40, **options):
    """Another training that loads the newest checkpoint has as many rows, and makes the same steps.

    Return this training, and what it loaded.
    """
    another = Training(seed=2, **options)
    loaded = another.load(directory)
    assert another.rows() == training.rows()
    assert another.fit(begin, STEPS, most) == training.fit(begin, STEPS, most)
    return another, loaded


@pytest.mark.parametrize('options', TRAININGS, ids=str)
def test_training_goes_on_from_a_delta(tmp_path, options):
    training = Training(**options)
    training.fit_and_save(tmp_path, 0, 2)
    training.fit_and_save(tmp_path, 2, 4, delta=True)
    path = training.fit_and_save(tmp_path, 4, 5, delta=True, extra='here')
    _, loaded = assert_goes_on(tmp_path, training, 5, **options)
    assert (loaded.step, loaded.extra, loaded.path) == (5, 'here', path)


@pytest.mark.parametrize('compacted', [False, True])
def test_training_goes_on_with_a_delta(tmp_path, compacted):
    first = Training()
    first.fit_and_save(tmp_path, 0, 2)
    path = first.fit_and_save(tmp_path, 2, 4, delta=True)
    if compacted:
        path = compact(tmp_path)
    expected = first.fit(4, STEPS)
    second = Training(seed=2)
    assert second.load(tmp_path).path == path
    path = second.save(tmp_path, 4, delta=True)
    assert not is_delta(path)
    assert second.fit(4, STEPS) == expected


@pytest.mark.parametrize('options', [{'capacity': 12}, {'capacity': 12, 'evict': 'rarest'}, {'expire_after': 2}],
                         ids=str)
def test_rows_that_expire(tmp_path, options):
    training = Training(**options)
    assert is_delta(save_each_step(training, tmp_path, 0, 5, keep=1))
    with mxhybrid.checkpoint.open(tmp_path) as tables:
        assert len(tables['users']) == training.rows() < len(tables['items'])
    assert_goes_on(tmp_path, training, 5, **options)


@pytest.mark.parametrize('compacted', [False, True])
def test_keys_that_wait_for_admission_are_counted_on(tmp_path, compacted):
    first = Training(admit=4)
    save_each_step(first, tmp_path, 0, 3, most=12)  # no key has been in four steps
    assert first.net.users.weight.table.statistics()['waiting'] > 0
    if compacted:
        assert compact(tmp_path) is not None
    second, _ = assert_goes_on(tmp_path, first, 3, most=12, admit=4)
    assert second.rows() == first.rows() > 0
    with mxhybrid.checkpoint.open(tmp_path, verify=True) as tables:
        assert len(tables['users']) == 0 < len(tables['items'])


def test_a_delta_has_the_rows_that_changed(training, tmp_path):
    training.fit(0, 6)
    whole = tables_in(training.save(tmp_path, 1))
    training.fit(6, 7, most=2)
    delta = tables_in(training.save(tmp_path, 2, delta=True))
    for name in ('items.weight', 'users.weight'):
        assert sum(part['rows'] for part in whole[name]['parts']) > 20 and not whole[name]['delta']
        assert sum(part['rows'] for part in delta[name]['parts']) <= 2 and delta[name]['delta']
    nothing = tables_in(training.save(tmp_path, 3, delta=True))
    assert sum(part['rows'] for entry in nothing.values() for part in entry['parts']) == 0


def test_when_a_delta_is_whole(training, tmp_path):
    def is_whole(directory):
        path = training.fit_and_save(directory, 0, 1, delta=True)
        entries = tables_in(path)
        assert len({entry['delta'] for entry in entries.values()}) == 1
        assert bool(Reader(path).content.get('base')) == entries['users.weight']['delta']
        return not entries['users.weight']['delta']

    assert is_whole(tmp_path / 'a')
    assert not is_whole(tmp_path / 'a')
    assert is_whole(tmp_path / 'b')  # its last save is elsewhere
    assert not is_whole(tmp_path / 'b')
    shutil.rmtree(str(tmp_path / 'b' / folder.names(str(tmp_path / 'b'))[0]))
    assert is_whole(tmp_path / 'b')
    training.load(tmp_path / 'b')
    assert is_whole(tmp_path / 'b')
    training.net.users.initialize(mx.init.Zero(), force_reinit=True)
    path = training.save(tmp_path / 'b', 2, delta=True)
    assert [entry['delta'] for _, entry in sorted(tables_in(path).items())] == [True, False]


def states_of(training):
    keys = np.arange(40) * (BIG // 50) * 7 - 5
    return [training.net.users.weight.table.store.read_state(slot, keys).tolist() for slot in range(2)]


def test_state_of_tables_survives_a_renewed_store(tmp_path):
    training = Training(on_store=True)
    training.fit_and_save(tmp_path, 0, 3)
    states = states_of(training)
    training.net.output.weight.set_data(training.net.output.weight.data() * 1)
    with autograd.record():
        loss = training.net.output(mx.nd.ones((1, WIDTH)))
    loss.backward()
    training.trainer.step(1)
    assert states_of(training) == states and np.any(states)
    assert is_delta(training.fit_and_save(tmp_path, 3, 4, most=2, delta=True))
    second = Training(seed=2, on_store=True)
    second.load(tmp_path)
    assert states_of(second) == states_of(training)
    gluon.Trainer(training.net.collect_params(), 'adam', kvstore='hybrid').step(1, ignore_stale_grad=True)
    assert not np.any(states_of(training))


def test_a_delta_after_dropped_state_is_whole(messages, training, tmp_path):
    training.fit_and_save(tmp_path, 0, 3)
    training.net.users.weight.table.forget_optimizer()
    entries = tables_in(training.fit_and_save(tmp_path, 3, 4, most=2, delta=True))
    assert [entry['delta'] for _, entry in sorted(entries.items())] == [True, False]
    assert 'all rows of users.weight: not all changes since the one before are known' in messages.text
    second = Training(seed=2)
    second.load(tmp_path)
    assert states_of(second) == states_of(training)


def test_a_compacted_base(training, tmp_path):
    save_each_step(training, tmp_path, 0, 3)
    compact(tmp_path)
    assert is_delta(save_each_step(training, tmp_path, 3, 4)) and len(folder.names(str(tmp_path))) == 2
    assert_goes_on(tmp_path, training, 4)


def test_a_delta_costs_the_same_after_many_others(training, tmp_path, monkeypatch):
    training.fit(0, 1)
    training.save(tmp_path, 0)
    opened = []

    def counted(function):
        def call(path, *arguments, **keywords):
            handle = function(path, *arguments, **keywords)
            if str(path).startswith(str(tmp_path)):
                opened.append(os.path.basename(str(path)))
            return handle
        return call

    numbers = []
    for step in range(1, 13):
        training.fit(1, 2)
        del opened[:]
        with monkeypatch.context() as patch:
            patch.setattr(os, 'open', counted(os.open))
            patch.setattr('builtins.open', counted(open))
            path = training.save(tmp_path, step, delta=True)
        assert is_delta(path)
        numbers.append((opened.count(MANIFEST), len(opened)))
    assert len(folder.names(str(tmp_path))) == 13
    assert opened.count(MANIFEST) == 5  # the last one, those of the three that stay, and the one that is written
    assert set(numbers[4:]) == {numbers[-1]}
    assert_goes_on(tmp_path, training, 2)


@pytest.mark.parametrize('number', [0, 1, 3])
def test_a_delta_whose_chain_lost_a_checkpoint_is_whole(training, tmp_path, number):
    save_each_step(training, tmp_path, 0, 4)
    shutil.rmtree(os.path.join(str(tmp_path), folder.names(str(tmp_path))[number]))
    entries = tables_in(save_each_step(training, tmp_path, 4, 5))
    assert not any(entry['delta'] for entry in entries.values())
    assert is_delta(training.save(tmp_path, 6, delta=True))


def test_checkpoints_before_a_compacted_base(training, tmp_path):
    save_each_step(training, tmp_path, 0, 3, keep=1)
    with mxhybrid.checkpoint.open(tmp_path / '00000002-step-2'):  # stays, and so does its base
        compact(tmp_path)
    assert sorted(folder.names(str(tmp_path))) == ['00000001-step-1', '00000002-step-2', '00000003-step-3-compacted']
    path = save_each_step(training, tmp_path, 3, 5, keep=1)
    assert sorted(folder.names(str(tmp_path))) == ['00000003-step-3-compacted', '00000004-step-4', '00000005-step-5']
    assert Reader(path).oldest_base() == '00000003-step-3'


def test_a_long_chain_needs_few_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, 'MOST_LOCKED', 5)
    training = Training()
    training.fit(0, 1)
    for step in range(30):
        training.save(tmp_path, step, delta=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + 15, limits[1]))
    try:
        second = Training(seed=2)
        second.load(tmp_path)
        with mxhybrid.checkpoint.open(tmp_path, verify=True) as tables:
            np.testing.assert_array_equal(tables['users'].rows([2, 9, 16]), training.net.users([2, 9, 16]).asnumpy())
        compact(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(folder.names(str(tmp_path))) == 1
    assert second.fit(1, 3) == training.fit(1, 3)


def test_a_chain_of_many_files_ends_whole(training, tmp_path, monkeypatch):
    training.fit(0, 1)

    def save(delta):
        tables = tables_in(training.save(tmp_path, 1, delta=delta))
        return tables['users.weight']['delta'], sum(len(part['files']) for entry in tables.values()
                                                    for part in entry['parts'])

    (_, whole_files), (_, delta_files) = save(False), save(True)
    monkeypatch.setattr(dynamic_tables, 'MOST_FILES', whole_files + 2 * delta_files)
    assert [save(True)[0] for _ in range(6)] == [True, False, True, True, False, True]


def test_a_failed_save_leaves_the_checkpoints_before(training, tmp_path, monkeypatch):
    training.fit_and_save(tmp_path, 0, 2)
    training.fit(2, 3)
    table = training.net.users.weight.table

    def full(*_):
        raise CheckpointError('cannot write rows: No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(table, 'save', full)
        with pytest.raises(CheckpointError, match='No space left on device'):
            training.save(tmp_path, 3, delta=True)
    assert os.listdir(str(tmp_path)) == ['00000001-step-2']
    path = training.save(tmp_path, 3, delta=True)  # has the rows that the failed one should have
    assert is_delta(path)
    assert_goes_on(tmp_path, training, 3)


def test_rows_are_read_without_the_net(training, tmp_path):
    training.fit_and_save(tmp_path, 0, 4)
    ids = np.arange(0, 60).reshape(4, 15) * (BIG // 60)
    with mxhybrid.checkpoint.open(tmp_path, verify=True) as tables:
        assert sorted(tables) == ['items.weight', 'output.bias', 'output.weight', 'users.weight']
        np.testing.assert_array_equal(tables['items'].rows(ids), training.net.items(ids).asnumpy())
        np.testing.assert_array_equal(tables['users'].rows(-ids), training.net.users(-ids).asnumpy())
        np.testing.assert_array_equal(tables['output.weight'].numpy(), training.net.output.weight.data().asnumpy())
        with pytest.raises(InputError, match='items.weight: %d is not a row: give row ids from 0' % BIG):
            tables['items'].rows([BIG])


def test_the_default_row_of_a_table_that_admits_keys(tmp_path):
    training = Training(admit=3)
    training.fit(0, 6)
    training.save(tmp_path, 4)
    keys = np.arange(40) * (BIG // 50) * 7 - 5
    with mxhybrid.checkpoint.open(tmp_path) as tables:
        assert 0 < tables['users'].contains(keys).sum() < len(keys)
        np.testing.assert_array_equal(tables['users'].rows(keys), training.net.users(keys).asnumpy())


@pytest.mark.parametrize('change, message', [
    ({'width': 4}, 'items.weight has width 3 in the checkpoint, 4 in the net'),
    ({'rows': BIG + 1}, 'items.weight has rows %d in the checkpoint, %d in the net' % (BIG, BIG + 1)),
    ({'dtype': 'float64'}, 'items.weight has dtype float32 in the checkpoint, float64 in the net'),
    ({'optimizer': 'sgd', 'settings': {'momentum': 0.9}}, "written with optimizer 'adam'")], ids=str)
def test_another_model_is_refused(training, tmp_path, monkeypatch, change, message):
    training.fit_and_save(tmp_path, 0, 2)
    other = Training(seed=2, **change)
    if 'optimizer' not in change:  # the dense layer would be refused first
        monkeypatch.setattr('mxhybrid.checkpoint.restore.misfit', lambda *arguments: '')
    before = other.fit(0, 1)
    with pytest.raises(CheckpointError, match=message):
        other.load(tmp_path)
    again = Training(seed=2, **change)
    assert again.fit(0, 1) == before and again.fit(1, 3) == other.fit(1, 3)


def test_state_of_other_widths_is_refused(tmp_path):
    training = Training('adagrad')
    path = training.fit_and_save(tmp_path, 0, 2)
    reader = Reader(path)
    reader.content['dynamic_tables']['users.weight']['state_widths'] = [1]
    tables = split_off_tables(training.trainer, items_of(training.net, training.trainer))[1]
    stored = {name: {'description': entry, 'parts': []} for name, entry in reader.tables.items()}
    assert 'has widths [1] in the checkpoint, but should have [3]' in misfit_of_tables(training.trainer, tables, stored)


def test_a_net_without_the_table_is_refused(training, tmp_path):
    training.fit_and_save(tmp_path, 0, 1)
    net = gluon.nn.Dense(1, in_units=WIDTH)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), 'adam', kvstore='hybrid')
    with pytest.raises(CheckpointError, match='it has parameters items.weight'):
        mxhybrid.checkpoint.load(tmp_path, net, trainer)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(importing, 'PIECE_BYTES', 60)


@pytest.mark.parametrize('kind', ['arrays', 'npy', 'safetensors'])
@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_import(tmp_path, small_pieces, kind, dtype):
    from safetensors.numpy import save_file

    keys = np.array([5, -3, 2 ** 53 + 1, 7, 7, 0, 1, 2, 3, 4, 6, 8, 9, 5], np.int64)
    rows = np.random.RandomState(0).rand(len(keys), WIDTH).astype(dtype)
    sources = keys, rows
    if kind == 'npy':
        sources = str(tmp_path / 'keys.npy'), tmp_path / 'rows.npy'
        for path, array in zip(sources, (keys, rows)):
            np.save(str(path), array)
    elif kind == 'safetensors':
        path = str(tmp_path / 'file.safetensors')
        save_file({'keys': keys, 'rows': rows}, path)
        sources = (path, 'keys'), (path, 'rows')
    training = Training()
    training.fit(0, 2)
    assert mxhybrid.checkpoint.import_rows(training.net.users, *sources) == len(keys)
    last = {key: row.astype('float32') for key, row in zip(keys.tolist(), rows)}
    for key, row in last.items():
        np.testing.assert_array_equal(training.net.users(np.array([key])).asnumpy()[0], row)
    path = training.fit_and_save(tmp_path / 'checkpoints', 2, 3)
    assert set(tables_in(path)['users.weight']['state_widths']) == {WIDTH}


def test_import_of_numbered_rows(small_pieces):
    training = Training(rows=10)
    rows = np.random.RandomState(0).rand(10, WIDTH)
    mxhybrid.checkpoint.import_rows(training.net.items.weight, None, rows)
    np.testing.assert_array_equal(training.net.items(np.arange(10)).asnumpy(), rows.astype('float32'))


@pytest.mark.parametrize('error, raised', [(JobError('no memory'), CheckpointError), (KeyboardInterrupt(), None)])
def test_steps_update_rows_after_a_failed_import(monkeypatch, error, raised):
    training, expected = Training('sgd'), Training('sgd')
    assert training.fit(0, 2) == expected.fit(0, 2)

    def failing(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(training.net.users.weight.table.store, 'assign', failing)
        with pytest.raises(raised or KeyboardInterrupt):
            mxhybrid.checkpoint.import_rows(training.net.users, None, np.zeros((5, WIDTH)))
    assert training.fit(2, STEPS) == expected.fit(2, STEPS)


@pytest.mark.parametrize('keys, rows, message', [
    (None, np.zeros((11, WIDTH)), '11 rows, but the table has 10'), (None, np.zeros((2, 4)), r'shape \(2, 4\): give'),
    (None, np.zeros((2, WIDTH), int), 'type int64'), ([1], np.zeros((2, WIDTH)), r'shape \(1,\) for 2 rows'),
    ([1.0, 2.0], np.zeros((2, WIDTH)), 'keys of type float64'),
    ([1, 10], np.zeros((2, WIDTH)), 'key 10 is not a key of the table: give keys from 0'),
    ([-1, 1], np.zeros((2, WIDTH)), 'key -1 is not'), (None, ('no.safetensors', 'rows'), 'No such file'),
    (None, 'no.npy', r'weight: rows: no.npy cannot be read: No such file .*\. Give a file that worker 0 can'),
    ('no.npy', np.zeros((2, WIDTH)), r'weight: keys: no.npy cannot be read'),
    (None, __file__, 'is not a .npy file: give'), (None, (__file__, 'rows'), r'weight: rows: .*safetensors')])
def test_import_of_wrong_rows(keys, rows, message):
    training = Training(rows=10)
    with pytest.raises((InputError, CheckpointError), match=message):
        mxhybrid.checkpoint.import_rows(training.net.items, keys, rows)
    assert training.net.items.weight.table.statistics()['rows'] == 0


def test_import_into_something_else():
    with pytest.raises(InputError, match='Dense is no dynamic table'):
        mxhybrid.checkpoint.import_rows(gluon.nn.Dense(1), None, np.zeros((1, 1)))
    table = mxhybrid.nn.Embedding(10, WIDTH)
    table.initialize()
    with pytest.raises(InputError, match='has no Trainer: make the Trainer first'):
        mxhybrid.checkpoint.import_rows(table, None, np.zeros((1, WIDTH)))
