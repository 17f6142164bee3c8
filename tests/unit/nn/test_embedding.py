"""Tables by any key: admission, expiry, arguments; and keys of strings."""
import mxnet as mx
import numpy as np
import pytest

import mxhybrid
from mxhybrid.row_store.row_store import RowStore

from ...helpers.gluon_nets import backward, initialised, step, trainer_of
from ...helpers.nameless_files import nameless_files


def new_table(**options):
    mx.random.seed(0)
    table = initialised(mxhybrid.nn.HashEmbedding(2, prefix='users_', **options))
    return table, trainer_of(table)


def train(table, trainer, *batches):
    for keys in batches:
        step(trainer, lambda keys=keys: table(keys))


def rows_of(table):
    return table.weight.table.statistics()['rows']


def test_rows_appear_with_updates():
    table, trainer = new_table()
    table([1, 2, 3])
    assert rows_of(table) == 0
    train(table, trainer, [1, -2, 1])
    assert rows_of(table) == 2


def test_admission():
    table, trainer = new_table(admit=3)
    default = table([5]).asnumpy()
    np.testing.assert_array_equal(table([6]).asnumpy(), default)
    for _ in range(2):
        train(table, trainer, [5])
        np.testing.assert_array_equal(table([5]).asnumpy(), default)
    train(table, trainer, [5])
    assert rows_of(table) == 1 and np.abs(table([5]).asnumpy() - default).max() > 0.5
    np.testing.assert_array_equal(table([6]).asnumpy(), default)


@pytest.mark.parametrize('evict, stays', [('lru', [3, 2]), ('rarest', [1, 3])])
def test_capacity(evict, stays):
    table, trainer = new_table(capacity=2, evict=evict)
    train(table, trainer, [1], [1], [2], [3])
    assert rows_of(table) == 2 and table.weight.table.statistics()['expired'] == 1
    first = new_table()[0]
    changed = np.abs(table([1, 2, 3]).asnumpy() - first([1, 2, 3]).asnumpy()).max(axis=1) > 0.5
    assert (np.flatnonzero(changed) + 1).tolist() == sorted(stays)


@pytest.mark.parametrize('grad_req, batches', [('write', [[1, 2, 3]]), ('add', [[1, 2], [3]])])
def test_more_keys_than_the_capacity_are_refused(grad_req, batches):
    table, trainer = new_table(capacity=2)
    table.weight.grad_req = grad_req
    for keys in batches:
        backward(lambda keys=keys: table(keys))
    with pytest.raises(mxhybrid.InputError, match='users_weight: a step has 3 distinct keys, but capacity=2: give a '
                                                  'capacity of several times the distinct keys of a step'):
        trainer.step(1)
    assert rows_of(table) == 0
    table([4, 5, 6])  # an evaluation makes no rows
    table.weight.zero_grad()
    train(table, trainer, [1, 2])
    assert rows_of(table) == 2


def test_rows_in_files_equal_those_in_memory_and_vanish(tmp_path, monkeypatch):
    keys, results = list(range(50)), []
    for storage in ('memory', '*users*=%s' % tmp_path):
        monkeypatch.setenv('MXHYBRID_STORAGE', storage)
        table, trainer = new_table()
        train(table, trainer, keys, keys, keys)
        results.append(table(keys).asnumpy())
        assert (table.weight.table.statistics()['file_bytes'] > 0) == (storage != 'memory')
    np.testing.assert_array_equal(*results)
    assert len(nameless_files(tmp_path)) == 2 and not list(tmp_path.iterdir())  # keys and rows
    table.initialize(force_reinit=True)  # frees the former rows
    assert not nameless_files(tmp_path)
    train(table, trainer, keys)
    assert len(nameless_files(tmp_path)) == 2
    table.weight.table.close()
    assert not nameless_files(tmp_path) and not list(tmp_path.iterdir())


def test_a_missing_directory_is_refused_before_a_step(tmp_path, monkeypatch):
    monkeypatch.setenv('MXHYBRID_STORAGE', str(tmp_path / 'none'))
    table, trainer = new_table()
    with pytest.raises(mxhybrid.SettingError, match="users_weight: storage='.*none' is missing on host "):
        train(table, trainer, [1])
    assert rows_of(table) == 0


@pytest.mark.parametrize('method', ['update', 'set_state_widths', 'assign', 'save', 'load'])
def test_errors_of_the_rows_name_the_table(tmp_path, monkeypatch, method):
    def full(*_, **__):
        raise mxhybrid.JobError('storage: no space')
    table, trainer = new_table()
    if method == 'load':
        train(table, trainer, [1])
        mxhybrid.checkpoint.save(tmp_path, table, trainer, 1)
    monkeypatch.setattr(RowStore, method, full)
    with pytest.raises(mxhybrid.HybridError, match='users_weight: storage: no space'):
        if method == 'assign':
            mxhybrid.checkpoint.import_rows(table, [1], np.zeros((1, 2), np.float32))
        elif method == 'load':
            mxhybrid.checkpoint.load(tmp_path, table, trainer)
        else:
            train(table, trainer, [1])
            mxhybrid.checkpoint.save(tmp_path, table, trainer, 1)


def test_expiry():
    table, trainer = new_table(expire_after=2)
    train(table, trainer, [1], [2], [2], [2])
    assert rows_of(table) == 1


@pytest.mark.parametrize('options, message', [
    ({'admit': 0}, 'admit=0: give an integer from 1'), ({'admit': 1 << 15}, 'admit=32768: .* 1 to 32767'),
    ({'capacity': -1}, 'capacity=-1: give an integer from 0'),
    ({'admit': True}, 'admit=True'), ({'capacity': 1 << 32}, 'capacity=4294967296: give an integer from 0 to'),
    ({'expire_after': 1.5}, 'expire_after=1.5'), ({'evict': 'random'}, "evict='random': give one of lru, rarest"),
    ({'width': 0}, 'width=0: give an integer from 1'), ({'dtype': 'float16'}, 'dtype float16: the rows of a dynamic '
                                                                            'table are float32 or float64')])
def test_arguments_are_refused(options, message):
    with pytest.raises(mxhybrid.InputError, match='^users_weight: ' + message):
        mxhybrid.nn.HashEmbedding(**{'width': 2, 'prefix': 'users_', **options})


@pytest.mark.parametrize('parts, expected', [
    (('city', 'Paris'), 8707388997998660184), ((7,), 3142509245130245427), ((b'x', (1, 'é')), -1189756409638764110)])
def test_the_key_of_values_is_stable(parts, expected):
    """Other numbers would be other rows in a checkpoint: never change them."""
    assert mxhybrid.nn.hash_key(*parts) == expected


def test_other_values_have_other_keys():
    values = [('a',), ('a', 'b'), ('ab',), ('a', ''), (('a', 'b'),), (b'a',), (97,), (1, 2), ((1,), 2), (-1,), ('1',)]
    assert len({mxhybrid.nn.hash_key(*value) for value in values}) == len(values)
    assert mxhybrid.nn.hash_key(np.int64(3)) == mxhybrid.nn.hash_key(np.uint8(3)) == mxhybrid.nn.hash_key(3)


def test_keys_of_values_are_keys_of_a_table():
    keys = [mxhybrid.nn.hash_key('user', number) for number in range(1000)]
    assert len(set(keys)) == 1000 and min(keys) < 0 < max(keys) and max(map(abs, keys)) < 1 << 63
    table, _ = new_table()
    assert table(keys).shape == (1000, 2)


@pytest.mark.parametrize('parts', [(), (1.5,), (None,), (True,), (['a'],), (1 << 63,), (('a', 2.0),)])
def test_values_that_have_no_key_are_refused(parts):
    with pytest.raises(mxhybrid.InputError, match=r'^hash_key'):
        mxhybrid.nn.hash_key(*parts)
