"""Dense weights of a single worker: the sums of each of their routes, and the state that the next route takes over."""
import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.routes.costs import Choice
from mxhybrid.routes.dense_allreduce import DenseAllreduce
from mxhybrid.routes.row_allreduce import RowAllreduce

from .alone import context

SHAPE = (6, 2)
IDS = np.array([1, 4])


def dense(value):
    """A dense array of one value."""
    return mx.nd.full(SHAPE, value)


def read(route, updater=None):
    """The value of a key."""
    out = dense(-1)
    route.pull([out], updater, 0, True)
    return out.asnumpy()


@pytest.fixture
def route():
    """A key that was initialised with ones."""
    made = DenseAllreduce('w', 'w', dense(0), context())
    made.init(dense(1), [], 0)
    return made


@pytest.fixture
def updater():
    """Plain SGD with a learning rate of 1."""
    return mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0))


def test_without_an_updater_the_last_sum_is_the_value(route):
    route.push([dense(2), dense(3)], None, 0)
    assert (read(route) == 5).all()
    outs = [dense(0), dense(0)]
    route.pushpull([dense(7)], outs, None, 0)
    assert all((out.asnumpy() == 7).all() for out in outs) and (read(route) == 7).all()
    assert (route.traffic.steps, route.traffic.rows) == (2, 2 * SHAPE[0])


def test_an_updater_changes_the_stores_value(route, updater):
    out = dense(0)
    route.pushpull([dense(2)], [out], updater, 0)
    assert (out.asnumpy() == -1).all()
    route.push([dense(1)], updater, 0)
    assert (read(route, updater) == -2).all()


def test_a_value_that_is_not_needed_is_released(route, updater):
    outs = [dense(0)]
    route.init(dense(3), outs, 0, keeps_dense=False)
    assert (outs[0].asnumpy() == 3).all()
    gradients = [dense(4)]
    route.pushpull(gradients, gradients, None, 0)
    assert (gradients[0].asnumpy() == 4).all()


def test_rows_continue_from_the_previous_route(route, updater):
    route.push([dense(2)], updater, 0)
    route.choice = Choice('allreduce', 'forced')
    rows = RowAllreduce(route)
    assert route.all_rows and not rows.all_rows
    rows.push_rows(IDS, np.ones((2, 2), 'float32'), updater, 0)
    expected = np.full(SHAPE, -1.0)
    expected[IDS] -= 1
    np.testing.assert_array_equal(read(rows, updater), expected)
    assert rows.traffic.steps == 2 and rows.choice == route.choice and rows.to_allreduce(None) is rows
    gradient = make_row_sparse(np.arange(6), np.zeros(SHAPE, 'float32'), SHAPE)
    rows.pull([gradient], updater, 0, True)
    assert gradient.indices.asnumpy().tolist() == IDS.tolist() and (gradient.data.asnumpy() == 1).all()


def test_summed_rows_are_the_value_without_an_update(route):
    out = mx.nd.sparse.zeros('row_sparse', SHAPE)
    with pytest.raises(InputError, match='no row_sparse value was pushed to it: give'):
        route.pull([out], None, 0, True)
    rows = RowAllreduce(route)
    rows.push_rows(IDS, np.full((2, 2), 5, 'float32'), None, 0)
    expected = np.zeros(SHAPE)
    expected[IDS] = 5
    np.testing.assert_array_equal(read(rows), expected)
    rows.push([dense(2)], None, 0)
    assert (read(rows) == 2).all()
    with pytest.raises(InputError, match='no row_sparse value was pushed to it last'):
        rows.pull([out], None, 0, True)


def test_weights_without_a_server_table_cannot_be_repartitioned(route):
    with pytest.raises(InputError, match='w has no table on the servers: no row_sparse value'):
        route.repartition(2)
    with pytest.raises(InputError, match='w has no table on the servers: it went to allreduce'):
        RowAllreduce(route).repartition(2)
