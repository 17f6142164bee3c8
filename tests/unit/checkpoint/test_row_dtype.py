"""Checkpoints of tables whose rows are kept as float16 or bfloat16: all readers return the rows of training."""
import json
import os

import numpy as np
import pytest
from mxnet import gluon

import mxhybrid
from mxhybrid import checkpoint
from mxhybrid.checkpoint.compaction import compact
from mxhybrid.checkpoint.exporting import export

from .dynamic_training import BIG, Training

#: Keys of rows, and keys that no step has.
KEYS = np.arange(48) * (BIG // 50) * 7 - 5
pytestmark = pytest.mark.parametrize('kind', ['float16', 'bfloat16'])


def assert_reads(path, expected):
    with checkpoint.open(str(path), verify=True) as tables:
        np.testing.assert_array_equal(tables['users.weight'].rows(KEYS), expected)


def rows_of(changes):
    """The rows of changes, by key."""
    with changes:
        return {int(key): row for batch in changes for key, row in zip(batch.keys, batch.rows)}


def test_readers_see_the_rows_of_training(tmp_path, kind):
    training, saves = Training(row_dtype=kind), str(tmp_path / 'saves')
    path = training.fit_and_save(saves, 0, 3)
    assert np.load(os.path.join(path, 'table-00001', '0', 'rows.npy')).itemsize == 2
    first = training.net.users(KEYS).asnumpy()
    training.fit_and_save(saves, 3, 5, most=10, delta=True)
    rows = training.net.users(KEYS).asnumpy()
    assert_reads(saves, rows)
    changed = rows_of(checkpoint.changes(saves, 'users.weight', since=3))
    assert set(changed) == {key for key, before, after in zip(KEYS, first, rows) if (before != after).any()}
    export(saves, str(tmp_path / 'exported'), 'users*')
    exported = json.loads((tmp_path / 'exported' / 'manifest.json').read_text())['tables']['users.weight']
    assert (exported['trained_dtype'], exported['row_dtype']) == ('float32', kind)
    keys, exported_rows = (np.load(str(tmp_path / 'exported' / exported['directory'] / (name + '.npy')))
                           for name in ('keys', 'rows'))
    compact(saves)
    assert_reads(saves, rows)
    for stored in changed, dict(zip(keys, exported_rows)), rows_of(checkpoint.changes(saves, 'users.weight', None)):
        np.testing.assert_array_equal(np.stack(list(stored.values())),
                                      training.net.users(np.array(list(stored))).asnumpy())


@pytest.mark.parametrize('is_saved', [True, False])
def test_tables_of_another_type_load_the_rows(tmp_path, kind, is_saved):
    first = Training(row_dtype=kind if is_saved else '')
    first.fit_and_save(tmp_path, 0, 3)
    second = Training(seed=2, row_dtype='' if is_saved else kind)
    second.load(tmp_path)
    with checkpoint.open(str(tmp_path)) as tables:
        has_row = tables['users.weight'].contains(KEYS)
    rows, loaded = (training.net.users(KEYS[has_row]).asnumpy() for training in (first, second))
    if is_saved:
        np.testing.assert_array_equal(loaded, rows)
    else:
        assert 0 < np.abs(loaded - rows).max() <= 2 ** -8 * np.abs(rows).max()


def test_imported_rows_are_rounded(kind):
    net = mxhybrid.nn.Embedding(100, 2, row_dtype=kind)
    net.initialize()
    gluon.Trainer(net.collect_params(), 'sgd', kvstore='hybrid')
    mxhybrid.checkpoint.import_rows(net, None, np.full((100, 2), 1 / 3, np.float32))
    expected = {'float16': np.float16(1 / 3), 'bfloat16': 0.333984375}[kind]
    assert (net(np.arange(3)).asnumpy() == expected).all()
