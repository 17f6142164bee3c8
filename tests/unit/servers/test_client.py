"""Merging of contributions into row_sparse arrays, one a partition."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.native.arrays import row_sparse_parts
from mxhybrid.servers import client
from mxhybrid.servers.channel import Channel
from mxhybrid.servers.partitioning import Placement


def table_of(rows, width, count, dtype, halves=False):
    partitioning = Placement(2).place(rows, width, np.dtype(dtype).itemsize, count)
    dtype = np.dtype(dtype)
    channel = Channel('embed', dtype, width, partitioning.keys, tuple(range(100, 100 + count)) if halves else None)
    return SimpleNamespace(partitioning=partitioning, dtype=dtype, channel=channel, empty=lambda part: (
        mx.nd.sparse.zeros('row_sparse', partitioning.shape(part), dtype=channel.pushed_as)))


@st.composite
def merges(draw):
    rows, count = draw(st.integers(1, 200)), draw(st.integers(1, 9))
    table = table_of(rows, draw(st.integers(1, 3)), min(count, rows), draw(st.sampled_from(['float32', 'float64'])))
    sets = draw(st.lists(st.sets(st.integers(0, rows - 1)), min_size=1, max_size=4))
    return table, [np.array(sorted(ids), np.int64) for ids in sets], draw(st.booleans())


def check(table, all_ids, ordered):
    partitioning = table.partitioning
    random = np.random.RandomState(len(all_ids))
    expected = np.zeros((partitioning.rows, partitioning.width), table.dtype)
    touched = np.zeros(partitioning.rows, bool)
    contributions = []
    for ids in all_ids:
        # Small whole numbers: sums are exact in any order.
        rows = random.randint(-9, 9, (len(ids), partitioning.width)).astype(table.dtype)
        expected[ids] += rows
        touched[ids] = True
        order = partitioning.order(ids)
        contributions.append((partitioning.offsets(ids[order]), rows[order] if ordered else rows,
                              None if ordered else order))
    arrays = client.merge(table, contributions)
    assert len(arrays) == partitioning.count
    for part, array in enumerate(arrays):
        assert array.shape == partitioning.shape(part)
        local, rows = row_sparse_parts(array)
        members = partitioning.members(part)
        np.testing.assert_array_equal(members[local], members[touched[members]])
        np.testing.assert_array_equal(rows, expected[members[local]])


@given(merges())
@settings(max_examples=60, deadline=None)
def test_a_merge_sums_rows_and_deals_them_to_their_partitions(case):
    check(*case)


@pytest.mark.parametrize('factor', [0, 10 ** 9], ids=['by sorting', 'by marking'])
@pytest.mark.parametrize('count', [1, 4])
def test_both_ways_to_find_the_union_agree(monkeypatch, factor, count):
    monkeypatch.setattr(client, '_SPARSE_ROWS', factor)
    random = np.random.RandomState(3)
    ids = [np.sort(random.choice(1000, size, replace=False)) for size in (200, 1, 400)]
    check(table_of(1000, 2, count, 'float32'), ids, True)


def test_contributions_are_added_in_the_order_given():
    table = table_of(1, 1, 1, 'float32')
    offset = np.zeros(1, np.int64)
    values = [np.float32(1e8), np.float32(-1e8), np.float32(1)]

    def total(order):
        arrays = client.merge(table, [(offset, np.array([[values[i]]]), None) for i in order])
        return row_sparse_parts(arrays[0])[1][0, 0]
    assert total([0, 1, 2]) == 1
    assert total([0, 2, 1]) == 0


def test_a_sum_is_rounded_once_where_it_travels_as_float16():
    table = table_of(1, 1, 1, 'float32', halves=True)
    # Rounded to float16 one by one, 2048 + 1 + 1 stays 2048; the sum has no need of rounding.
    parts = [(np.zeros(1, np.int64), np.array([[value]], np.float32), None) for value in (2048, 1, 1)]
    _, rows = row_sparse_parts(client.merge(table, parts)[0])
    assert rows.dtype == np.float16 and rows[0, 0] == 2050


def test_an_arrival_tells_of_missing_rows():
    out = mx.nd.sparse.zeros('row_sparse', (4, 1))
    arrival = client.Arrival('embed', [(0, 2)], [out], table_of(4, 1, 1, 'float32').channel)
    with pytest.raises(client.JobError, match='embed: a server answered a pull of 2 rows with 0'):
        arrival.write(np.empty((2, 1), np.float32))
