"""Kernels by themselves: float16, unique row ids."""
import numpy as np
from hypothesis import given, strategies as st

from .hosts import EXACT, hosts, lib, pointer


def through_float16(values):
    """Values after they went from one host to another as float16, by way of a table with one row for each."""
    values = np.asarray(values, np.float32).reshape(-1, 1)
    with hosts([1, 1], [1, 1]) as job:
        job.table(0, len(values), 1, [0], halves=True)
        job.rule(0, 1)
        ids = np.arange(len(values))
        assert job.push(0, 0, ids, values) and job.push(1, 0, [], np.empty((0, 1)))
        exact = job.pull(1, 0, ids, EXACT)
        np.testing.assert_array_equal(exact, values)
        found = job.pull(1, 0, ids).reshape(-1)
        return found, lib.worker_overflows(job.workers[0][2], 0)


def test_every_float16_comes_through():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found, overflows = through_float16(halves.astype(np.float32))
    np.testing.assert_array_equal(found, halves.astype(np.float32))
    assert overflows == 0


def test_rounding_is_that_of_numpy():
    random = np.random.RandomState(0)
    bits = random.randint(0, 1 << 32, 200000, dtype=np.uint64).astype(np.uint32)
    edges = (np.arange(1 << 16, dtype=np.uint32).repeat(3) << 13) + np.tile(np.array([0, 0xfff, 0x1000], np.uint32),
                                                                           1 << 16)
    ties = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate([bits.view(np.float32), edges.view(np.float32),
                             np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    with np.errstate(over='ignore', invalid='ignore'):
        expected = values.astype(np.float16)
    found, overflows = through_float16(values)
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert overflows == np.count_nonzero(np.isinf(expected) & np.isfinite(values))


@given(st.lists(st.integers(0, 299), max_size=400), st.integers(300, 2000))
def test_unique_ids(ids, rows):
    ids = np.array(ids, np.int64)
    marks, found = np.zeros(rows // 64 + 1, np.uint64), np.empty(len(ids), np.int64)
    count = lib.sorted_unique(pointer(ids), len(ids), rows, pointer(marks), pointer(found))
    np.testing.assert_array_equal(found[:count], np.unique(ids))
    assert not marks.any()


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=20))
def test_ids_that_are_no_rows_are_refused(ids):
    ids = np.array(ids, np.int64)
    marks, found = np.zeros(1, np.uint64), np.empty(len(ids), np.int64)
    count = lib.sorted_unique(pointer(ids), len(ids), 10, pointer(marks), pointer(found))
    assert (count == -1) == bool(((ids < 0) | (ids >= 10)).any())
    assert not marks.any()
