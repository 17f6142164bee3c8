"""Arithmetic of the routes: rows by id, merges of devices."""
import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mxhybrid.arrays import make_row_sparse
from mxhybrid.errors import InputError
from mxhybrid.routes import Dense, Route, deliver, merge, rows_of
from mxhybrid.trace import OFF

fast = hypothesis_settings(max_examples=40, deadline=None)
id_sets = st.sets(st.integers(0, 9)).map(lambda ids: np.array(sorted(ids), np.int64))


def array_with(ids, seed=0):
    """A 10 x 2 row_sparse array with these rows, whole numbers."""
    rows = np.random.RandomState(seed).randint(1, 9, (len(ids), 2)).astype('float32')
    return make_row_sparse(ids, rows, (10, 2))


@fast
@given(id_sets, id_sets)
def test_rows_of_gives_stored_rows_and_zeros(held, wanted):
    array = array_with(held)
    rows = rows_of(array)(wanted)
    np.testing.assert_array_equal(rows, array.asnumpy()[wanted])
    rows[:] = 99  # the caller's own
    assert not (array.asnumpy() == 99).any()


@fast
@given(st.lists(id_sets, min_size=1, max_size=4))
def test_merge_sums_the_devices(held):
    arrays = [array_with(ids, seed) for seed, ids in enumerate(held)]
    ids, rows = merge(arrays)
    assert ids.tolist() == sorted({int(row) for one in held for row in one})
    np.testing.assert_array_equal(make_row_sparse(ids, rows, (10, 2)).asnumpy(), sum(a.asnumpy() for a in arrays))


@pytest.mark.parametrize('ids, named', [([0, 3, 10], 10), ([-1, 4], -1), ([-7], -7), ([2, 99], 99)])
def test_gradients_of_rows_that_do_not_exist_are_refused(ids, named):
    route = Route('w', 'words', array_with(np.array([1])))
    with pytest.raises(InputError, match=r'push: row id %d is out of range for words, which has rows 0 to 9' % named):
        route.merge([array_with(np.array([2])), array_with(np.array(ids))], OFF)
    for fine in ([], [0], [0, 9]):
        assert route.merge([array_with(np.array(fine, np.int64))], OFF)[0].tolist() == fine


def test_keys_that_look_alike_are_told_apart():
    keys = [(3, '3'), ('3', '3'), (0, 'net_weight'), (1, 'net_weight'), ('0.net_weight', '0.net_weight'),
            ('any', 'any')]
    tags = [Dense(key, name, mx.nd.zeros((2, 2)), 'hybrid0', None)._tag for key, name in keys]
    assert len({*tags, 'hybrid0.any'}) == len(keys) + 1  # which Distributed uses for itself
    assert tags[3] == 'hybrid0.1.net_weight'


def test_deliver_fills_once_and_copies_to_all_outputs():
    outs = [mx.nd.sparse.zeros('row_sparse', (10, 2)), array_with(np.array([0, 1, 2]))]
    fills = []

    def fill(rows):
        fills.append(rows.shape)
        rows[:] = [[1, 2], [3, 4]]

    deliver(np.array([3, 7]), fill, (10, 2), np.float32, outs)
    assert fills == [(2, 2)]
    for out in outs:
        assert out.indices.asnumpy().tolist() == [3, 7] and out.data.asnumpy().tolist() == [[1, 2], [3, 4]]


def test_deliver_of_no_rows_empties_the_outputs():
    out = array_with(np.array([0, 1, 2]))
    deliver(np.empty(0, np.int64), lambda rows: None, (10, 2), np.float32, [out])
    assert not out.asnumpy().any()
