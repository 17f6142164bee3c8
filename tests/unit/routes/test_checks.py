"""Input checks: correct input passes, and each refusal names the call, the parameter, the value and the remedy."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.base.errors import HybridError, InputError
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.routes import checks

from ...helpers.keyed_values import problem


def test_input_errors_are_value_errors_of_the_project():
    assert issubclass(InputError, HybridError) and issubclass(InputError, ValueError)


# ------------------------------------------------------------------------------------------ shape, dtype, stype


def test_matching_arrays_pass():
    arrays = [mx.nd.zeros((2, 3)), mx.nd.sparse.zeros('row_sparse', (2, 3))]
    checks.shapes('push', 'w', arrays, (2, 3))
    checks.dtypes('push', 'w', arrays, np.float32)
    checks.shapes('push', 'w', [], (2, 3))
    checks.dtypes('push', 'w', [], 'float32')
    checks.stypes('push', 'w', arrays, ('default', 'row_sparse'), 'advice')
    for dtype in ('float16', 'float32', 'float64'):
        checks.server_dtype('init', 'w', dtype)


@pytest.mark.parametrize('check, values, limits, words', [
    (checks.shapes, [mx.nd.zeros((2, 3)), mx.nd.zeros((3, 2))], [(2, 3)], ['push: w has shape (2, 3)', '(3, 2)']),
    (checks.dtypes, [mx.nd.zeros(2, dtype='float64')], ['float32'],
     ['push: w has dtype float32', 'float64', ".astype('float32')"]),
    (checks.stypes, [mx.nd.zeros(2)], [('row_sparse',), "use tostype('row_sparse')"],
     ['push: w takes values of storage type row_sparse, not default', "use tostype('row_sparse')"])],
    ids=['shape', 'dtype', 'storage type'])
def test_other_arrays_are_refused_with_the_remedy(check, values, limits, words):
    text = problem(check, 'push', 'w', values, *limits)
    assert text.startswith(words[0]) and all(word in text for word in words[1:])


@pytest.mark.parametrize('ids, said', [
    ([2, 0, 2], 'has row id 2 more than once'), ([0, 5], 'row id 5 is out of range'),
    ([-1], 'row id -1 is out of range')])
def test_initial_values_need_one_for_each_row(ids, said):
    value = make_row_sparse(np.array(ids), np.ones((len(ids), 3), 'f4'), (5, 3))
    text = problem(checks.initial_rows, 'init', 'words', value)
    assert text.startswith('init: ') and 'words' in text and said in text
    checks.initial_rows('init', 'words', make_row_sparse(np.array([4, 1]), np.ones((2, 3), 'f4'), (5, 3)))
    checks.initial_rows('init', 'words', mx.nd.sparse.zeros('row_sparse', (5, 3)))


@pytest.mark.parametrize('dtype', ['int8', 'uint8', 'int32', 'int64'])
def test_dtypes_that_servers_cannot_hold_are_refused(dtype):
    text = problem(checks.server_dtype, 'init', 'w', dtype)
    assert text.startswith('init: w has dtype %s' % dtype) and 'float16, float32 or float64' in text


# ------------------------------------------------------------------------------------------ row ids


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 99), min_size=1), st.sampled_from(['int32', 'int64', 'float32', 'float64']))
def test_wanted_rows_are_sorted_unique_int64(ids, dtype):
    found = checks.wanted_rows('row_sparse_pull', 'w', mx.nd.array(ids, dtype=dtype), 100)
    assert found.dtype == np.int64 and found.tolist() == sorted(set(ids))


@pytest.mark.parametrize('shape', [(2, 3), (6, 1), (1, 2, 3)])
def test_wanted_rows_may_have_any_shape(shape):
    assert checks.wanted_rows('row_sparse_pull', 'w', mx.nd.arange(6).reshape(shape), 6).tolist() == list(range(6))


@pytest.mark.parametrize('bad', [-1, 5, 1000])
def test_rows_outside_the_table_are_named(bad):
    for text in (problem(checks.wanted_rows, 'row_sparse_pull', 'w', mx.nd.array([0, bad, 4]), 5),
                 problem(checks.row_ids, 'row_sparse_pull', 'w', np.array([0, bad, 4]), 5)):
        assert text == 'row_sparse_pull: row id %d is out of range for w: give row ids from 0 to 4' % bad


def test_the_first_and_the_last_row_are_in_range():
    checks.row_ids('push', 'w', np.array([0, 4]), 5)
    checks.row_ids('push', 'w', np.empty(0, np.int64), 5)


@pytest.mark.filterwarnings('ignore:invalid value')
@pytest.mark.parametrize('ids', [[0.5], [1, 2.25], [float('nan')], [float('inf')]])
def test_fractions_are_no_row_ids(ids):
    text = problem(checks.wanted_rows, 'row_sparse_pull', 'w', mx.nd.array(ids), 5)
    assert 'row id %s of w is not a whole number' % ids[-1] in text


@pytest.mark.parametrize('ids', [None, [1, 2], np.array([1]), mx.nd.sparse.zeros('row_sparse', (2, 2))],
                         ids=['None', 'list', 'numpy', 'row_sparse'])
def test_row_ids_of_other_types_are_refused(ids):
    text = problem(checks.wanted_rows, 'row_sparse_pull', 'w', ids, 5)
    assert text.startswith('row_sparse_pull: row_ids of w are of type') and type(ids).__name__ in text
