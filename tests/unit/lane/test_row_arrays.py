"""Small arrays, read in one compiled call: the results are NumPy's, or None for the general path."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.kernels import library
from mxhybrid.lane.row_arrays import FEW_IDS, read_few_ids, read_few_rows
from mxhybrid.native.arrays import make_row_sparse

pytestmark = pytest.mark.both_pythons


def dense(values, dtype):
    return mx.nd.array(np.array(values), dtype=dtype, ctx=mx.cpu())


def sparse(ids, value=1.0):
    """Return rows of one value of an array of shape (10, 2)."""
    return make_row_sparse(np.array(ids), np.full((len(ids), 2), value, 'float32'), (10, 2))


def read(array, rows=10, width=2, dtype='float32', most=4):
    return read_few_rows(array, rows, width, np.dtype(dtype), most)


@settings(max_examples=60)
@given(st.lists(st.integers(-1, 40), min_size=1, max_size=60), st.integers(1, 40) | st.just(1 << 30),
       st.sampled_from(['int32', 'int64', 'float32', 'float64']))
def test_ids_are_those_of_numpy(ids, rows, dtype):
    read_ids = read_few_ids(dense(ids, dtype), rows)
    if min(ids) < 0 or max(ids) >= rows:
        assert read_ids is None
    else:
        assert read_ids.dtype == np.int64
        np.testing.assert_array_equal(read_ids, np.unique(ids))


@pytest.mark.parametrize('ids, dtype', [
    ([0.5], 'float32'), ([np.nan], 'float64'), ([np.inf], 'float32'), ([1e30], 'float32'), ([1], 'uint8'),
    ([1], 'float16'), ([], 'int64'), ([1] * (FEW_IDS + 1), 'int64')])
def test_unusual_ids_are_left_to_the_general_path(ids, dtype):
    assert read_few_ids(dense(ids, dtype), 100) is None


def test_bound_that_float32_rounds():
    rows = (1 << 24) + 1
    assert read_few_ids(dense([1 << 24], 'float32'), rows).tolist() == [1 << 24]
    assert read_few_ids(dense([1 << 24], 'float32'), rows - 1) is None
    assert read_few_ids(dense([(1 << 24) + 4], 'float32'), (1 << 24) + 3) is None


def test_ids_of_any_shape_that_are_still_being_computed():
    ids = dense(np.arange(12).reshape(2, 3, 2), 'float32') * 2 + 1
    assert read_few_ids(ids, 24).tolist() == list(range(1, 24, 2))
    assert read_few_ids(ids, 23) is None


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
@pytest.mark.parametrize('shape', [(30, 3), (30,), (30, 2, 2)])
def test_rows_are_those_of_the_array(shape, dtype):
    ids, width = np.array([0, 7, 29]), int(np.prod(shape[1:]))
    rows = np.arange(3 * width).reshape(3, width).astype(dtype)
    found, values = read(make_row_sparse(ids, rows, shape), 30, width, dtype, 3)
    np.testing.assert_array_equal(found, ids)
    assert values.dtype == dtype
    np.testing.assert_array_equal(values, rows)


def test_no_rows():
    for array in (mx.nd.sparse.zeros('row_sparse', (9, 2), ctx=mx.cpu()),
                  make_row_sparse(np.empty(0, np.int64), np.empty((0, 2), 'float32'), (9, 2))):
        found = read(array, 9)
        assert found is None or (found[0].shape, found[1].shape) == ((0,), (0, 2))


@pytest.mark.parametrize('ids, options', [
    ([2, 1], {}), ([1, 1], {}), ([-1, 1], {}), ([1, 10], {}), ([1, 2, 3, 4, 5], {}), ([1], {'rows': 9}),
    ([1], {'width': 1}), ([1], {'dtype': 'float64'}), ([1], {'dtype': 'int32'}), ([1], {'most': 0}),
    ([1], {'most': 1 << 30})])
def test_unusual_gradients_are_left_to_the_general_path(ids, options):
    assert read(sparse(ids), **options) is None


def test_usual_and_dense_gradients():
    assert read(sparse([1, 2]))[0].tolist() == [1, 2]
    assert read(mx.nd.ones((10, 2), ctx=mx.cpu()), most=10) is None


def test_result_is_not_changed_by_the_next_call():
    first = read(sparse([1]))
    read(sparse([2], 0.0))
    assert first[0].tolist() == [1] and first[1].tolist() == [[1, 1]]


def test_with_numpy_shape_semantics():
    array = sparse([1])
    with mx.util.np_shape(True):
        found = read(array)
        assert found is None or found[0].tolist() == [1]
        assert read_few_ids(dense([3, 1], 'int64'), 9).tolist() == [1, 3]


def test_general_path_is_used_without_the_library(monkeypatch):
    monkeypatch.setattr('mxhybrid.lane.row_arrays.compiled', lambda: None)
    assert library.compiled() is not None
    assert read_few_ids(dense([1], 'int64'), 9) is None
    assert read(sparse([1])) is None
