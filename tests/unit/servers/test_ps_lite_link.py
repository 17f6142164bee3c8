"""Rows are cut into row_sparse arrays, one for each partition; tables that servers cannot create are refused."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.native.arrays import row_sparse_parts
from mxhybrid.servers import ps_lite_link
from mxhybrid.servers.half_precision_keys import WireFormat
from mxhybrid.servers.lifecycle import check_stale_rows
from mxhybrid.servers.partitioning import Placement

pytestmark = pytest.mark.both_pythons


def table_of(rows, width, count, dtype, halves=False):
    partitioning = Placement(2).place(rows, width, np.dtype(dtype).itemsize, count)
    dtype = np.dtype(dtype)
    push_keys = tuple(range(100, 100 + count)) if halves else None
    wire_format = WireFormat('embed', dtype, width, partitioning.keys, push_keys)
    return SimpleNamespace(name='embed', partitioning=partitioning, dtype=dtype, wire_format=wire_format,
                           empty=lambda part: mx.nd.sparse.zeros('row_sparse', partitioning.shape(part),
                                                                 dtype=wire_format.pushed_as))


@st.composite
def pushes(draw):
    rows, count = draw(st.integers(1, 200)), draw(st.integers(1, 9))
    table = table_of(rows, draw(st.integers(1, 3)), min(count, rows), draw(st.sampled_from(['float32', 'float64'])))
    return table, np.array(sorted(draw(st.sets(st.integers(0, rows - 1)))), np.int64)


@given(pushes())
@settings(max_examples=60, deadline=None)
def test_rows_are_dealt_to_their_partitions(case):
    table, ids = case
    partitioning = table.partitioning
    pushed = np.random.RandomState(len(ids)).normal(size=(len(ids), partitioning.width)).astype(table.dtype)
    everything = np.zeros((partitioning.rows, partitioning.width), table.dtype)
    everything[ids] = pushed
    order = partitioning.order(ids)
    arrays = ps_lite_link.cut(table, partitioning.offsets(ids[order]), pushed, order)
    assert len(arrays) == partitioning.count
    for part, array in enumerate(arrays):
        assert array.shape == partitioning.shape(part)
        local, rows = row_sparse_parts(array)
        members = partitioning.members(part)
        np.testing.assert_array_equal(members[local], np.intersect1d(ids, members))
        np.testing.assert_array_equal(rows, everything[members[local]])


def test_rows_are_rounded_where_they_travel_as_float16():
    table = table_of(1, 1, 1, 'float32', halves=True)
    _, rows = row_sparse_parts(ps_lite_link.cut(table, np.zeros(1, np.int64), np.array([[2049]], np.float32),
                                          np.zeros(1, np.int64))[0])
    assert rows.dtype == np.float16 and rows[0, 0] == 2048


def test_a_pull_tells_of_missing_rows():
    silent = SimpleNamespace(row_sparse_pull=lambda *arguments, **keywords: None)
    ids = np.arange(2)
    write = ps_lite_link.PsLiteLink(silent).request(table_of(4, 1, 1, 'float32'), ids, 0)
    with pytest.raises(ps_lite_link.JobError, match='embed: a server answered a pull of 2 rows with 0'):
        write(np.empty((2, 1), np.float32))


def test_staleness_that_no_host_can_cache_is_refused():
    check_stale_rows('words', (2 ** 32 - 2) // 17, 1, 2)
    with pytest.raises(InputError, match=r'words: staleness=1: a table with staleness can have at most 252645134 rows '
                                         r'where a host has 2 workers, but it has 252645135: set MXHYBRID_STALENESS'):
        check_stale_rows('words', (2 ** 32 - 2) // 17 + 1, 1, 2)
