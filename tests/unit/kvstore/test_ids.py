"""Ids of rows: every form that is taken, and every form that is refused."""
import mxnet as mx
import numpy as np
import pytest

import mxhybrid
from mxhybrid.kvstore.ids import checked_ids

ROWS = 1 << 40


@pytest.fixture
def table():
    mx.random.seed(0)
    block = mxhybrid.nn.Embedding(ROWS, 4, prefix='items_')
    block.initialize()
    return block


@pytest.mark.parametrize('ids', [
    [3, 5], (3, 5), np.array([3, 5]), np.array([3, 5], 'uint8'), np.array([3, 5], 'uint64'), np.array([3.0, 5.0]),
    np.array([3, 5], 'float16'), mx.nd.array([3, 5]), mx.nd.array([3, 5], dtype='int64'),
    mx.nd.array([3, 5], dtype='int32'), mx.nd.array([3, 5], dtype='float64')])
def test_forms_of_ids(table, ids):
    np.testing.assert_array_equal(table(ids).asnumpy(), table(np.array([3, 5])).asnumpy())


def test_any_shape(table):
    ids = np.arange(24).reshape(2, 3, 4)
    rows = table(ids)
    assert rows.shape == (2, 3, 4, 4) and rows.dtype == np.float32
    np.testing.assert_array_equal(rows.asnumpy().reshape(24, 4), table.rows(ids.reshape(-1)).asnumpy())
    assert table(np.array(7)).shape == (4,)


def test_ids_on_both_sides_of_powers_of_two(table):
    ids = np.array([(1 << bits) + offset for bits in (24, 31, 32, 39) for offset in (-1, 0, 1)])
    rows = table(ids).asnumpy()
    assert len(np.unique(rows, axis=0)) == len(ids)
    for row, number in zip(rows, ids):
        np.testing.assert_array_equal(row, table([number]).asnumpy()[0])


@pytest.mark.parametrize('ids, message', [
    (mx.nd.array([1, 1 << 24]), r'items_weight: id 16777216 came as float32, in which integers from 2\^24 on are '
                                r"rounded.*mx.nd.array\(ids, dtype='int64'\)"),
    (np.array([1.0, 2.0 ** 53]), r'id 9007199254740992 came as float64, in which integers from 2\^53 on'),
    (np.array([4096], 'float16'), r'id 4096 came as float16, in which integers from 2\^11 on'),
    (mx.nd.array([1, float('nan')]), r'items_weight: id nan is not an integer'),
    (np.array([1, np.inf]), r'id inf is not an integer'),
    (np.array([1, 2.5]), r'id 2.5 is not a whole number'),
    (np.array([1, -2]), r'items_weight: id -2 is negative: the table has rows 0 to 1099511627775'),
    (np.array([-1.0]), r'id -1 is negative'),
    (np.array([1, ROWS]), r'id 1099511627776 is out of range: .*HashEmbedding'),
    (np.array([1 << 63], 'uint64'), r'id 9223372036854775808 is out of range'),
    (np.array([True]), r'ids of type bool: give integers'),
    (['a', 'b'], r'ids of type <U1: give integers, int64 for example; mxhybrid.nn.hash_key'),
    ([1 << 70], r'ids of type object'),
    (np.array([], 'int64'), r'items_weight: there are no ids'),
    ([], r'there are no ids'),
    (mx.nd.sparse.zeros('row_sparse', (3, 1)), r'ids is a row_sparse array: convert it')])
def test_refused(table, ids, message):
    with pytest.raises(mxhybrid.InputError, match=message):
        table(ids)


def test_any_int64_is_a_key_of_a_hash_embedding():
    mx.random.seed(0)
    table = mxhybrid.nn.HashEmbedding(4)
    table.initialize()
    ids = np.array([-(1 << 63), -(1 << 53) - 1, -1, 0, (1 << 53) + 1, (1 << 63) - 1])
    assert len(np.unique(table(ids).asnumpy(), axis=0)) == len(ids)
    np.testing.assert_array_equal(table(np.array([-1.0])).asnumpy(), table([-1]).asnumpy())
    unsigned = np.array([1 << 63], 'uint64')
    with pytest.raises(mxhybrid.InputError, match=r'id 9223372036854775808 is not below 2\^63: .*ids.view\("int64"\)'):
        table(unsigned)
    assert table(unsigned.view('int64')).shape == (1, 4)
    with pytest.raises(mxhybrid.InputError, match=r'id -16777216 came as float32'):
        table(mx.nd.array([-(1 << 24)]))


def test_the_padding_id_may_be_no_row():
    assert checked_ids([0, -1, 2], 'items', 3, padding=-1).tolist() == [0, -1, 2]
    with pytest.raises(mxhybrid.InputError, match='id -2 is negative'):
        checked_ids([0, -1, -2], 'items', 3, padding=-1)
