"""Tables that every worker holds, in a job of one worker: their values, and updates that equal the servers'."""
import types

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.native.arrays import make_row_sparse
from mxhybrid.native.optimizer_state import state_widths
from mxhybrid.routes.chooser import bytes_needed
from mxhybrid.routes.replica import Replica
from mxhybrid.routes.row_sums import MAX_ELEMENTS, RowSum

from .alone import Alone

ROWS, WIDTH = 9, 3


def replica_of(values):
    """Return a replica with these rows."""
    replica = Replica('t', ROWS, WIDTH, 'float32', Alone())
    replica.assign(values.__getitem__)
    return replica


def rows(count, seed=0):
    """Random rows."""
    return np.random.RandomState(seed).normal(size=(count, WIDTH)).astype('float32')


def everything(replica):
    """All rows of a replica."""
    result = np.empty((ROWS, WIDTH), replica.dtype)
    replica.pull(np.arange(ROWS), result)
    return result


id_sets = st.sets(st.integers(0, ROWS - 1)).map(lambda ids: np.array(sorted(ids), np.int64))


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(id_sets, min_size=1, max_size=5), st.sampled_from(['float16', 'float32', 'float64']))
def test_a_sum_knows_the_last_pushs_rows_alone(pushes, dtype):
    sums = RowSum(ROWS, WIDTH, dtype, 'sum', Alone())
    for seed, ids in enumerate(pushes):
        given_rows = rows(len(ids), seed).astype(dtype)
        given_rows[:1] = 0  # a touched row of zeros is touched
        sums.push(ids, given_rows)
        for _ in range(2):
            np.testing.assert_array_equal(sums.touched(), ids)
            found = np.empty((len(ids), WIDTH), dtype)
            sums.take(found)
            np.testing.assert_array_equal(found, given_rows)


def test_without_an_optimizer_a_push_replaces_the_table():
    replica = replica_of(rows(ROWS))
    np.testing.assert_array_equal(everything(replica), rows(ROWS))
    replica.push(np.array([2, 5]), rows(2, 1))
    wanted = np.zeros((ROWS, WIDTH), 'float32')
    wanted[[2, 5]] = rows(2, 1)
    np.testing.assert_array_equal(everything(replica), wanted)


@pytest.mark.parametrize('name, arguments', [
    ('sgd', {'momentum': 0.9, 'wd': 0.01}), ('adam', {}), ('adagrad', {}), ('ftrl', {}), ('groupadagrad', {}),
    ('nag', {'momentum': 0.9, 'wd': 0.01}), ('rmsprop', {'centered': True})])
def test_updates_states_and_restarts_equal_mxnet(name, arguments):
    optimizer = mx.optimizer.create(name, learning_rate=0.1, **arguments)
    updater = mx.optimizer.get_updater(mx.optimizer.create(name, learning_rate=0.1, **arguments))
    replica = replica_of(rows(ROWS))
    weight = make_row_sparse(np.arange(ROWS), rows(ROWS), (ROWS, WIDTH))

    def step(target, count):
        ids = np.array([count % 3, 4, 5 + count % 4])
        target.set_optimizer(optimizer, 0.1, optimizer.wd, count)
        target.push(ids, rows(3, count))
        updater(0, make_row_sparse(ids, rows(3, count), (ROWS, WIDTH)), weight)
        np.testing.assert_allclose(everything(target), weight.asnumpy(), rtol=1e-6, atol=1e-7)

    for count in range(4):
        step(replica, count)
    # Weights and state moved to another route, which continues in the same way.
    other = replica_of(everything(replica))
    other.set_optimizer(optimizer, 0.1, optimizer.wd, 4)
    for slot, width in enumerate(state_widths(optimizer, 0, (ROWS, WIDTH), 'float32')):
        state = replica.read_rows(slot, width, 0, ROWS)
        assert state.shape == (ROWS, width)
        other.assign(state.__getitem__, slot)
    for count in range(4, 7):
        step(other, count)
    assert other.has_optimizer
    other.forget_optimizer()
    assert not other.has_optimizer


def test_another_optimizer_starts_afresh():
    replica = Replica('t', ROWS, WIDTH, 'float32', Alone())
    replica.set_optimizer(mx.optimizer.create('sgd', momentum=0.9), 0.1, 0.0, 0)
    replica.push(np.array([1]), rows(1))
    assert replica.read_rows(0, WIDTH, 0, ROWS).any()
    replica.set_optimizer(mx.optimizer.create('adam'), 0.1, 0.0, 1)
    assert not any(replica.read_rows(slot, WIDTH, 0, ROWS).any() for slot in range(2))


def test_memory_counts_buffer_weights_and_state():
    route = types.SimpleNamespace(rows=10, width=4, dtype=np.dtype('float32'))
    assert bytes_needed(route, []) == 10 * 5 * 4
    assert bytes_needed(route, [4, 4, 1]) == 10 * (5 + 9) * 4
    route = types.SimpleNamespace(rows=MAX_ELEMENTS // 2, width=1, dtype=np.dtype('float32'))
    assert bytes_needed(route, []) < float('inf')
    route.rows += 1
    assert bytes_needed(route, []) == float('inf')
