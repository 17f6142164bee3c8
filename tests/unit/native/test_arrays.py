"""Arrays of MXNet: NumPy views, row_sparse arithmetic, digests, and memory that is not page-locked."""
import copy
import ctypes
import gc
import weakref

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.native.arrays import (
    allocate_rows,
    array_digest,
    clear,
    host_view,
    make_row_sparse,
    padded_row_reader,
    row_reader,
    row_sparse_parts,
    sum_row_sparse,
    trim_heap,
    write_rows,
)
from mxhybrid.native.storage import lock_pages, unlock_pages

pytestmark = pytest.mark.both_pythons

DTYPES = ['float16', 'float32', 'float64']
fast = settings(max_examples=50)


def some_rows(shape, dtype, seed=0):
    """Values that every float type holds exactly, so that sums are exact too."""
    return np.random.RandomState(seed).randint(-8, 9, shape).astype(dtype)


def churn():
    """Make the allocator hand out memory that was freed."""
    gc.collect()
    for _ in range(20):
        mx.nd.full((64, 64), -1.0).wait_to_read()


# ------------------------------------------------------------------------------------------ dense views


@pytest.mark.parametrize('dtype', DTYPES + ['int32', 'int64', 'uint8'])
@pytest.mark.parametrize('shape', [(1,), (5,), (3, 4), (2, 3, 4)])
def test_host_view_shares_memory_both_ways(shape, dtype):
    array = mx.nd.array(np.arange(np.prod(shape)).reshape(shape), dtype=dtype)
    view = host_view(array)
    assert view.shape == shape and view.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(view, array.asnumpy())
    view[:] = 7
    np.testing.assert_array_equal(array.asnumpy(), np.full(shape, 7, dtype))
    array[:] = 9
    array.wait_to_read()
    assert (view == 9).all()


def test_host_view_of_a_slice_starts_at_the_slice():
    array = mx.nd.arange(12).reshape((6, 2))
    np.testing.assert_array_equal(host_view(array[2:4]), [[4, 5], [6, 7]])
    host_view(array[5:6])[:] = -1
    assert array.asnumpy()[5].tolist() == [-1, -1]


def test_host_view_waits_for_pending_writes():
    array = mx.nd.ones((256, 256))
    for _ in range(10):
        array = mx.nd.dot(array, array) / 256
    assert host_view(array)[0, 0] == pytest.approx(1)


def test_host_view_outlives_its_array():
    view = host_view(mx.nd.full((64, 64), 3.0))
    churn()
    assert (view == 3).all()


# ------------------------------------------------------------------------------------------ row_sparse views


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', [(6, 3), (6, 1), (6, 2, 2)])
def test_make_and_split_are_inverse(shape, dtype):
    ids = np.array([0, 2, 5])
    rows = some_rows((3,) + shape[1:], dtype)
    rows[1] = 0  # MXNet's tostype would drop this row
    array = make_row_sparse(ids, rows, shape)
    assert array.stype == 'row_sparse' and array.shape == shape and array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array.indices.asnumpy(), ids)
    np.testing.assert_array_equal(array.data.asnumpy(), rows)
    found_ids, found_rows = row_sparse_parts(array)
    assert found_ids.dtype == np.int64 and found_rows.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found_ids, ids)
    np.testing.assert_array_equal(found_rows, rows.reshape(3, -1))
    dense = np.zeros(shape, dtype)
    dense[ids] = rows
    np.testing.assert_array_equal(array.asnumpy(), dense)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', [(4, 3), (4, 2, 5)])
def test_arrays_without_rows(shape, dtype):
    width = int(np.prod(shape[1:]))
    made = make_row_sparse(np.empty(0, np.int64), np.empty((0,) + shape[1:], dtype), shape)
    for array in (made, mx.nd.sparse.zeros('row_sparse', shape, dtype=dtype)):
        ids, rows = row_sparse_parts(array)
        assert ids.shape == (0,) and ids.dtype == np.int64
        assert rows.shape == (0, width) and rows.dtype == np.dtype(dtype)
        assert array.shape == shape and array.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(array.asnumpy(), np.zeros(shape, dtype))


@pytest.mark.parametrize('dtype', DTYPES)
def test_split_of_an_array_that_mxnet_made(dtype):
    dense = np.zeros((5, 2), dtype)
    dense[[1, 4]] = [[1, 2], [3, 4]]
    ids, rows = row_sparse_parts(mx.nd.array(dense, dtype=dtype).tostype('row_sparse'))
    assert ids.tolist() == [1, 4]
    np.testing.assert_array_equal(rows, dense[[1, 4]])


def test_rows_are_a_view_and_ids_a_copy():
    array = make_row_sparse(np.array([1, 3]), np.ones((2, 2), 'float32'), (4, 2))
    ids, rows = row_sparse_parts(array)
    rows[1] = 5
    ids[:] = 0
    assert array.asnumpy().tolist() == [[0, 0], [1, 1], [0, 0], [5, 5]]


def test_make_row_sparse_copies_its_rows():
    ids, rows = np.array([1, 3]), np.ones((2, 2), 'float32')
    array = make_row_sparse(ids, rows, (4, 2))
    ids[:], rows[:] = 0, 9
    assert array.indices.asnumpy().tolist() == [1, 3]
    assert array.data.asnumpy().tolist() == [[1, 1], [1, 1]]


def test_row_views_outlive_their_array():
    def split():
        return row_sparse_parts(make_row_sparse(np.arange(64), np.full((64, 64), 3, 'float32'), (64, 64)))

    ids, rows = split()
    _, allocated = allocate_rows(np.arange(64), (64, 64), np.float32)
    allocated[:] = 4
    churn()
    assert (rows == 3).all() and (allocated == 4).all()
    assert ids.tolist() == list(range(64))


def test_allocated_rows_are_filled_by_the_caller():
    array, rows = allocate_rows(np.array([0, 7]), (8, 2, 3), np.float64)
    assert rows.shape == (2, 6) and rows.dtype == np.float64 and rows.flags.writeable
    rows[0], rows[1] = 1, 2
    found = array.asnumpy()
    assert (found[0] == 1).all() and (found[7] == 2).all() and not found[1:7].any()


def test_the_largest_row_ids_that_mxnet_knows_are_kept():
    ids = np.array([3, 2 ** 31 - 3])
    array = make_row_sparse(ids, np.ones((2, 1), 'float32'), (2 ** 31 - 2, 1))  # its wheels count elements in C ints
    np.testing.assert_array_equal(row_sparse_parts(array)[0], ids)


def test_arrays_made_here_work_with_mxnets_operators():
    weight = make_row_sparse(np.arange(4), np.ones((4, 2), 'float32'), (4, 2))
    grad = make_row_sparse(np.array([1]), np.full((1, 2), 2, 'float32'), (4, 2))
    mx.nd.sparse.sgd_update(weight, grad, out=weight, lr=0.5, wd=0)
    assert weight.asnumpy()[:, 0].tolist() == [1, 0, 1, 1]
    assert mx.nd.sparse.retain(weight, mx.nd.array([0, 1])).indices.asnumpy().tolist() == [0, 1]
    other = mx.nd.sparse.zeros('row_sparse', (4, 2))
    grad.copyto(other)
    assert other.asnumpy().tolist() == grad.asnumpy().tolist()


# ------------------------------------------------------------------------------------------ sums


@st.composite
def contributions(draw):
    """Draw a table's number of rows, the ids of contributions, which are not always unique or sorted, and a type."""
    rows, are_unique = draw(st.integers(1, 30)), draw(st.booleans())
    ids = st.lists(st.integers(0, rows - 1), unique=are_unique, max_size=30)
    return rows, draw(st.lists(ids, min_size=1, max_size=5)), draw(st.sampled_from(DTYPES))


@settings(max_examples=100)
@given(contributions())
def test_sum_equals_the_dense_sum(drawn):
    rows, id_lists, dtype = drawn
    parts, dense = [], np.zeros((rows, 3), dtype)
    for seed, id_list in enumerate(id_lists):
        ids = np.array(id_list, np.int64)
        values = some_rows((len(ids), 3), dtype, seed)
        parts.append((ids, values))
        np.add.at(dense, ids, values)
    before = copy.deepcopy(parts)
    ids, total = sum_row_sparse(parts)
    assert ids.tolist() == sorted(set().union(*id_lists)) and total.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(total, dense[ids])
    for old, new in zip(before, parts):
        np.testing.assert_array_equal(old[0], new[0])
        np.testing.assert_array_equal(old[1], new[1])


def test_sum_adds_in_the_order_given():
    big, one = np.array([[2.0 ** 24]], 'float32'), np.array([[1.0]], 'float32')
    at = np.array([0])
    assert sum_row_sparse([(at, big), (at, one), (at, -big)])[1][0, 0] == 0
    assert sum_row_sparse([(at, big), (at, -big), (at, one)])[1][0, 0] == 1


def test_sum_sorts_a_single_unsorted_contribution():
    ids, rows = sum_row_sparse([(np.array([5, 1, 3]), np.array([[5.0], [1.0], [3.0]]))])
    assert ids.tolist() == [1, 3, 5] and rows[:, 0].tolist() == [1, 3, 5]


def test_sum_keeps_rows_that_cancel_out():
    at = np.array([2])
    ids, rows = sum_row_sparse([(at, np.ones((1, 2))), (at, -np.ones((1, 2)))])
    assert ids.tolist() == [2] and rows.tolist() == [[0, 0]]


def test_sum_of_nothing_is_nothing():
    empty = (np.empty(0, np.int64), np.empty((0, 2), np.float32))
    for parts in ([empty], [empty, empty, empty]):
        ids, rows = sum_row_sparse(parts)
        assert ids.shape == (0,) and rows.shape == (0, 2) and rows.dtype == np.float32


# ------------------------------------------------------------------------------------------ memory


def resident_bytes():
    """VmRSS of this process."""
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith('VmRSS'))


def test_cleared_memory_goes_back_to_the_system():
    whole = np.ones(40_000_000, np.uint8)
    inner = whole[1000:-1000]
    before = resident_bytes()
    clear(inner)
    assert resident_bytes() < before - 0.9 * len(inner)
    assert whole[:1000].all() and whole[-1000:].all() and not inner.any()
    inner[:] = 3
    assert (inner == 3).all()


@pytest.mark.parametrize('first, count', [(0, 9), (3, 1000), (1, 5000), (7, 40_000)])
def test_cleared_memory_reads_as_zeros_up_to_its_bounds(first, count):
    whole = np.ones(50_000)
    clear(whole[first:first + count].reshape(-1, 1))
    assert whole[:first].all() and whole[first + count:].all() and not whole[first:first + count].any()


def test_arrays_within_a_page_are_cleared():
    few = np.ones(100, np.uint8)
    clear(few)
    assert not few.any()
    trim_heap()


# ------------------------------------------------------------------------------------------ rows by id

ID_SETS = st.sets(st.integers(0, 9)).map(lambda ids: np.array(sorted(ids), np.int64))


@fast
@given(ID_SETS, ID_SETS)
def test_rows_by_id_are_the_stored_ones_and_zeros(held, row_ids):
    array = make_row_sparse(held, some_rows((len(held), 2), 'float32'), (10, 2))
    rows = row_reader(array)(row_ids)
    np.testing.assert_array_equal(rows, array.asnumpy()[row_ids])
    rows[:] = 99  # the caller's own
    assert not (array.asnumpy() == 99).any()


@pytest.mark.parametrize('width', [1, 3])
def test_rows_are_padded_to_the_width_of_their_table(width):
    values = np.arange(1.0, 5 * width + 1, dtype='float32').reshape(5, width)
    ids = np.array([0, 2, 3])
    expected = np.zeros((3, 3), 'float32')
    expected[:, :width] = values[ids]
    np.testing.assert_array_equal(padded_row_reader(mx.nd.array(values), 3, 'float32')(ids), expected)
    sparse = make_row_sparse(np.array([2, 4]), values[[2, 4]], (5, width))
    expected[[0, 2]] = 0
    np.testing.assert_array_equal(padded_row_reader(sparse, 3, 'float32')(ids), expected)


@pytest.mark.parametrize('dtype', DTYPES)
def test_rows_are_written_where_they_belong_and_nowhere_else(dtype):
    array = mx.nd.ones((12, 3), dtype=dtype)
    expected = array.asnumpy()
    expected[[0, 5, 11]] = 7
    write_rows(array, np.array([0, 5, 11]), mx.nd.full((3, 3), 7, dtype=dtype))
    np.testing.assert_array_equal(array.asnumpy(), expected)
    assert array.dtype == np.dtype(dtype)


def test_memory_is_released_when_modules_are_gone(monkeypatch):
    memory = np.zeros(1)
    released = weakref.ref(memory)
    array = mx.nd.from_numpy(memory, zero_copy=True)
    del memory
    monkeypatch.setattr(mx.nd.ndarray, 'ctypes', None)
    del array
    assert released() is None


@pytest.mark.parametrize('array', [
    np.zeros((0, 3)), np.float32(1.5), np.arange(24.).reshape(2, 3, 4), np.arange(6, dtype=np.float16),
    np.arange(12, dtype=np.int64).reshape(3, 4).T, np.arange(10, dtype=np.uint8)[::2]])
def test_copies_have_equal_digests_and_changed_bits_do_not(array):
    digest = array_digest(array)
    assert len(digest) == 16 and array_digest(np.array(array, order='C')) == digest
    data = bytearray(np.asarray(array).tobytes())
    for position in range(len(data)):
        data[position] ^= 1
        assert array_digest(np.frombuffer(data, np.uint8)) != digest
        data[position] ^= 1
    assert array_digest(np.frombuffer(data, np.uint8)) == digest


def test_several_arrays_are_read_in_order():
    first, second = np.arange(3), np.arange(4)
    assert array_digest(first, second) != array_digest(second, first)
    assert array_digest(first, second) == array_digest(np.concatenate([first, second]))


def test_without_a_gpu_nothing_is_locked():
    memory = (ctypes.c_char * 10000)()
    assert not lock_pages(ctypes.addressof(memory), len(memory), 0)
    unlock_pages(ctypes.addressof(memory))
