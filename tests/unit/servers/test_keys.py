"""The keys of a table that is gone serve a later table; rows travel unchanged, or as pairs of float16."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.servers.half_precision_keys import WireFormat, packed_width, unpack
from mxhybrid.servers.keys import KeyPool, TableKind
from mxhybrid.servers.partitioning import MAX_KEY

KIND = TableKind(10, 4, 'float32', False, True, False)


def test_only_an_equal_table_gets_keys_once():
    pool = KeyPool(2, 1)
    first, other, finer = (pool.take('gone', KIND, count, 4) for count in (2, 2, 3))
    for gone in (first, other, finer):
        pool.give_back(gone, gone.partitioning, [])
    for unlike in (KIND._replace(rows=11), KIND._replace(width=5), KIND._replace(dtype='float64'),
                   KIND._replace(halves=True), KIND._replace(exact=False), KIND._replace(even=True)):
        assert not pool.take('new', unlike, 2, 4).used
    assert not pool.take('new', KIND, 1, 4).used
    taken = [pool.take('new', KIND, 2, 4) for _ in range(3)]
    assert [keys.used for keys in taken] == [True, True, False]
    assert [keys.partitioning for keys in taken[:2]] == [other.partitioning, first.partitioning]
    assert pool.take('new', KIND, 3, 4).partitioning.count == 3


def test_earlier_partitionings_serve_but_only_the_last_loads():
    pool = KeyPool(2, 1)
    keys = pool.take('gone', KIND, 2, 4)
    moved = pool.placement.move(keys.partitioning, 4, 5)
    pool.give_back(keys, moved, [keys.partitioning, moved])
    assert pool.placement.bytes_on == [0, 0]
    taken = [pool.take('new', KIND, count, 4) for count in (2, 5, 5)]
    assert [(one.partitioning == known, one.used) for one, known in zip(taken, (keys.partitioning, moved, moved))] == [
        (True, True), (True, True), (False, False)]
    assert sum(pool.placement.bytes_on) == 3 * 10 * 4 * 4


@pytest.mark.parametrize('halves, exact, sets', [(False, True, 1), (True, False, 2), (True, True, 3)])
def test_float16_rows_take_keys_on_the_same_servers(halves, exact, sets):
    keys = KeyPool(2, 1).take('new', KIND._replace(halves=halves, exact=exact), 3, 4)
    assert len(set(keys.partitioning.keys + keys.push_keys + keys.pair_keys)) == 3 * sets
    assert len(keys.push_keys) == len(keys.pair_keys) == 3 * halves
    for further in (keys.push_keys, keys.pair_keys):
        assert [key * 9973 % 2 for key in further] == list(keys.partitioning.servers)[:len(further)]


def test_too_few_keys_are_refused_by_name():
    pool = KeyPool(2, MAX_KEY - 9)
    with pytest.raises(InputError, match='words: 6 partitions need more keys than the servers have left, 5 each'):
        pool.take('words', KIND._replace(halves=True), 6, 4)
    assert pool.placement.keys_left() == 5 and pool.placement.bytes_on == [0, 0]


@pytest.mark.both_pythons
@given(st.integers(1, 8), st.lists(st.floats(-60000, 60000, width=32), min_size=1, max_size=5))
def test_a_channel_gives_back_what_it_rounded(width, values):
    wire_format = WireFormat('embed', np.dtype('float32'), width, (2,), (3,))
    assert wire_format.row_bytes == 2 * width and wire_format.pushed_as == np.float16
    assert wire_format.pulled_width == packed_width(width) <= (width + 1) / 2
    rows = np.tile(np.array(values, np.float32)[:, None], (1, width))
    target = np.empty(rows.shape, wire_format.pushed_as)
    wire_format.narrow(rows, target)
    pairs = np.zeros((len(rows), wire_format.pulled_width), np.float32)
    unpack(pairs, width)[:] = target
    np.testing.assert_array_equal(wire_format.widen(pairs), rows.astype(np.float16))


@pytest.mark.both_pythons
@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_a_plain_channel_changes_nothing(dtype):
    wire_format = WireFormat('embed', np.dtype(dtype), 3, (2, 3))
    assert (wire_format.push_keys, wire_format.pushed_as, wire_format.pulled_width) == ((2, 3), np.dtype(dtype), 3)
    assert wire_format.row_bytes == 3 * np.dtype(dtype).itemsize
    rows = np.full((2, 3), np.inf, dtype)
    wire_format.narrow(rows, rows)
    assert wire_format.widen(rows) is rows
