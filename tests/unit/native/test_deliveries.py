"""Arrays that are filled by a thread while the script goes on."""
import threading

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.native.arrays import allocate_rows
from mxhybrid.native.deliveries import Deliveries

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def deliveries():
    failures = []
    made = Deliveries(failures.append)
    yield made
    mx.nd.waitall()
    made.close()
    assert not failures


def test_a_script_goes_on_and_waits_where_it_reads(deliveries):
    may_arrive = threading.Event()
    array, rows = allocate_rows(np.array([1, 4]), (6, 3), 'float32')

    def deliver():
        assert may_arrive.wait(10)
        rows[:] = [[1, 2, 3], [4, 5, 6]]

    deliveries.put([array], deliver)
    out = mx.nd.sparse.zeros('row_sparse', (6, 3))
    array.copyto(out)
    product = mx.nd.sparse.dot(mx.nd.sparse.csr_matrix(np.eye(6, dtype='f4')), out)
    np.testing.assert_array_equal((mx.nd.ones(3) + 1).asnumpy(), 2)  # operators that do not need the rows are computed
    may_arrive.set()
    expected = np.zeros((6, 3), 'f4')
    expected[[1, 4]] = [[1, 2, 3], [4, 5, 6]]
    np.testing.assert_array_equal(out.asnumpy(), expected)
    np.testing.assert_array_equal(product.asnumpy(), expected)


def test_many_deliveries_of_several_arrays(deliveries):
    arrays = []
    for number in range(200):
        views = [np.full(5, -1, 'f4'), np.full(7, -1, 'f4')]
        pair = [mx.nd.from_numpy(view.view(), zero_copy=True) for view in views]
        deliveries.put(pair, lambda views=views, number=number: [view.fill(number) for view in views], number)
        arrays.append(pair)
    for number, pair in enumerate(arrays):
        assert (pair[0] + pair[1].sum() / 7).asnumpy().tolist() == [2 * number] * 5


def test_an_error_is_handed_on():
    failed, errors = threading.Event(), []
    failing = Deliveries(lambda error: (errors.append(error), failed.set()))

    def deliver():
        raise RuntimeError('no rows')

    # Not through the engine, which would wait for ever, in this process, too.
    failing._begun.put((deliver, lambda: None))
    assert failed.wait(10)
    failing._thread.join(10)
    assert not failing._thread.is_alive() and [str(error) for error in errors] == ['no rows']
