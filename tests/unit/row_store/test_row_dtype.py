"""Rows of float32 that are kept as float16 or bfloat16: those of a store whose rows are rounded after each change."""
import os

import numpy as np
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.row_store.row_store import RowStore

from ...helpers.row_stores import FIRST

SETTINGS = {'lr': 0.01, 'rescale': 1.0, 'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-8}
KEYS = np.arange(-50, 150, dtype=np.int64) * 7


def rounded(rows, kind='float16'):
    if kind == 'float16':
        return rows.astype(np.float16).astype(np.float32)
    if kind != 'bfloat16':
        return rows
    # The upper half of a float32: the nearer one of two neighbours, or the even one.
    bits = np.ascontiguousarray(rows).view(np.uint32)
    lower, upper = bits & 0xffff0000, (bits & 0xffff0000) + 0x10000
    is_upper = (bits - lower > upper - bits) | ((bits - lower == upper - bits) & (lower >> 16 & 1 == 1))
    return np.where(is_upper, upper, lower).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize('kind', ['float16', 'bfloat16'])
@pytest.mark.parametrize('rule, states', [('sgd', 0), ('adam', 2)])
@pytest.mark.parametrize('width', [1, 3, 16])
@pytest.mark.parametrize('storage', ['memory', 'files', 'budget'])
def test_updates_round_rows_and_keep_state(tmp_path, kind, rule, states, width, storage):  # noqa: PLR0913
    options = {'directory': '' if storage == 'memory' else str(tmp_path), 'resident_bytes': int(storage == 'budget')}
    halves = RowStore(width, 'float32', FIRST, row_dtype=kind, **options)
    exact = RowStore(width, 'float32', FIRST)
    for store in halves, exact:
        store.set_state_widths([width] * states)
    exact.assign(KEYS, rounded(exact.read(KEYS), kind))
    assert np.array_equal(halves.read(KEYS), exact.read(KEYS))
    random = np.random.RandomState(0)
    for _ in range(20):
        keys = np.sort(random.choice(KEYS, 60, replace=False))
        gradients = random.standard_normal((60, width)).astype(np.float32)
        for store in halves, exact:
            store.update(rule, SETTINGS, keys, gradients)
        assert not np.array_equal(exact.read(keys), rounded(exact.read(keys), kind))
        exact.assign(keys, rounded(exact.read(keys), kind))
        assert np.array_equal(halves.read(KEYS), exact.read(KEYS))
    for slot in range(states):
        assert np.array_equal(halves.read_state(slot, KEYS), exact.read_state(slot, KEYS))


@pytest.mark.parametrize('saved', ['float16', 'bfloat16', ''])
@pytest.mark.parametrize('loaded', ['float16', 'bfloat16', ''])
def test_saves_load_into_stores_of_another_type(tmp_path, saved, loaded):
    stores = [RowStore(5, 'float32', FIRST, row_dtype=kind) for kind in (saved, loaded)]
    rows = np.random.RandomState(1).standard_normal((len(KEYS), 5)).astype(np.float32)
    rows[0] = [np.nan, np.inf, -np.inf, 0.0, 1e-30]
    stores[0].assign(KEYS, rows)
    stores[0].save(str(tmp_path / 'rows'))
    assert os.path.getsize(str(tmp_path / 'rows' / 'rows.npy')) == 128 + rows.nbytes // (2 if saved else 1)
    assert stores[1].load(str(tmp_path / 'rows')) == len(KEYS)
    expected = rounded(rounded(rows, saved), loaded)
    expected[0, 0] = np.nan
    np.testing.assert_array_equal(stores[1].read(KEYS), expected)


@pytest.mark.parametrize('kind', ['float16', 'bfloat16'])
def test_memory_of_rows_is_half(kind):
    stores = [RowStore(16, row_dtype=row_dtype) for row_dtype in ('', kind)]
    for store in stores:
        store.assign(np.arange(100000), np.ones((100000, 16)))
    whole, half = (store.statistics()['memory_bytes'] for store in stores)
    assert whole - half == 100000 * 16 * 2


def test_other_types_are_refused():
    with pytest.raises(InputError, match="row_dtype='int8': give 'float16' or 'bfloat16'"):
        RowStore(4, row_dtype='int8')
    with pytest.raises(InputError, match="row_dtype='float16' is for tables of float32, and this one has float64"):
        RowStore(4, 'float64', row_dtype='float16')
