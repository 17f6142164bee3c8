"""Rows of several devices are merged, and copied to all outputs."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.routes.route import ParameterSpec
from mxhybrid.routes.rows import fill_outputs, read_gradient, sum_devices
from mxhybrid.telemetry.recorder import OFF

fast = hypothesis_settings(max_examples=40, deadline=None)
id_sets = st.sets(st.integers(0, 9)).map(lambda ids: np.array(sorted(ids), np.int64))


def array_with(ids, seed=0):
    """A 10 x 2 row_sparse array with these rows, whole numbers."""
    rows = np.random.RandomState(seed).randint(1, 9, (len(ids), 2)).astype('float32')
    return make_row_sparse(ids, rows, (10, 2))


@fast
@given(st.lists(id_sets, min_size=1, max_size=4))
def test_merge_sums_the_devices(held):
    arrays = [array_with(ids, seed) for seed, ids in enumerate(held)]
    ids, rows = sum_devices(arrays)
    assert ids.tolist() == sorted({int(row) for one in held for row in one})
    np.testing.assert_array_equal(make_row_sparse(ids, rows, (10, 2)).asnumpy(), sum(a.asnumpy() for a in arrays))


@pytest.mark.parametrize('ids, named', [([0, 3, 10], 10), ([-1, 4], -1), ([-7], -7), ([2, 99], 99)])
def test_gradients_of_rows_that_do_not_exist_are_refused(ids, named):
    route = ParameterSpec('w', 'words', array_with(np.array([1])))
    expected = 'push: row id %d is out of range for words: give row ids from 0 to 9' % named
    with pytest.raises(InputError, match=expected):
        read_gradient(route, [array_with(np.array([2])), array_with(np.array(ids))], OFF)
    for fine in ([], [0], [0, 9]):
        assert read_gradient(route, [array_with(np.array(fine, np.int64))], OFF)[0].tolist() == fine


def test_written_arrays_are_filled_once_and_copied():
    outs = [mx.nd.sparse.zeros('row_sparse', (10, 2)), array_with(np.array([0, 1, 2]))]
    fills = []

    def fill(rows):
        fills.append(rows.shape)
        rows[:] = [[1, 2], [3, 4]]

    fill_outputs(np.array([3, 7]), fill, (10, 2), np.float32, outs)
    assert fills == [(2, 2)]
    for out in outs:
        assert out.indices.asnumpy().tolist() == [3, 7] and out.data.asnumpy().tolist() == [[1, 2], [3, 4]]


def test_no_rows_empties_the_outputs():
    out = array_with(np.array([0, 1, 2]))
    fill_outputs(np.empty(0, np.int64), lambda rows: None, (10, 2), np.float32, [out])
    assert not out.asnumpy().any()
