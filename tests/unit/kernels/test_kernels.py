"""Compiled kernels: float16, unique row ids."""
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mxhybrid.kernels import library
from mxhybrid.lane.row_format import RowFormat

from ..lane.hosts import ASSIGN, UNCACHED, hosts

#: Widths of rows: one element, and several vectors of the processor with a remainder.
WIDTHS = pytest.mark.parametrize('width', [1, 27])


def through_float16(values, width):
    """Return values after a table with rows of a width has sent them to another host as float16."""
    count = len(values)
    values = np.append(values, np.zeros(-count % width)).astype(np.float32).reshape(-1, width)
    with hosts([1, 1], [1, 1]) as job:
        job.table(0, len(values), width, [0], row_format=RowFormat.FLOAT16)
        job.rule(0, ASSIGN)
        ids = np.arange(len(values))
        assert job.push(0, 0, ids, values) and job.push(1, 0, [], np.empty((0, 1)))
        exact = job.pull(1, 0, ids, UNCACHED)
        np.testing.assert_array_equal(exact, values)
        found = job.pull(1, 0, ids)
        np.testing.assert_array_equal(job.pull(0, 0, ids), found)  # from this host
        return found.reshape(-1)[:count]


@WIDTHS
def test_every_float16_is_sent_unchanged(width):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(through_float16(halves.astype(np.float32), width), halves.astype(np.float32))


@WIDTHS
def test_rounding_is_numpys(width):
    random = np.random.RandomState(0)
    bits = random.randint(0, 1 << 32, 200000, dtype=np.uint64).astype(np.uint32)
    edges = (np.arange(1 << 16, dtype=np.uint32).repeat(3) << 13) + np.tile(np.array([0, 0xfff, 0x1000], np.uint32),
                                                                           1 << 16)
    ties = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate([bits.view(np.float32), edges.view(np.float32),
                             np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    with np.errstate(over='ignore', invalid='ignore'):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(through_float16(values, width), expected.astype(np.float32))


@given(st.lists(st.integers(-2, 12) | st.integers(0, 299), max_size=400), st.integers(10, 2000))
def test_unique_ids(ids, rows):
    ids = np.array(ids, np.int64)
    unique_ids = library.sorted_unique(ids, rows)
    if ((ids < 0) | (ids >= rows)).any():
        assert unique_ids is None
    else:
        np.testing.assert_array_equal(unique_ids, np.unique(ids))


@pytest.mark.parametrize('ids', [[], [5], [1 << 39, 7, 7, 0], [(1 << 40) - 1], [1 << 40], [-1]])
def test_few_ids_of_a_large_table_need_no_bitmap(ids):
    unique_ids = library.sorted_unique(np.array(ids, np.int64), 1 << 40)
    assert (unique_ids is None) == (ids in ([1 << 40], [-1]))
    assert unique_ids is None or list(unique_ids) == sorted(set(ids))


def test_numpy_is_used_without_the_library(monkeypatch):
    monkeypatch.setattr(library, 'compiled', lambda: None)
    assert list(library.sorted_unique(np.array([3, 1, 3]), 4)) == [1, 3]
    assert library.sorted_unique(np.array([3, 1, 4]), 4) is None
