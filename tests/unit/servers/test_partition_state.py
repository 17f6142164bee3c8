"""Servers update rows to the same bits as one process updates a row_sparse weight, with all optimizers and settings.

Settings change in mid-run, some steps leave rows untouched, and the table is cut into other partitions.  On-demand rows
are compared with a dense weight that has a row_sparse gradient.
"""
import itertools
import json
import types

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from mxhybrid.base.errors import InputError
from mxhybrid.native.arrays import row_sparse_parts
from mxhybrid.native.optimizers import (
    ELEMENTWISE,
    FLOAT32_STATE,
    SPARSE_KERNELS,
    attributes_of,
    check_change,
    check_for_table,
    reference_of,
)
from mxhybrid.routes.on_demand_rows import KERNELS, unsupported_reason

from ...helpers.tables import ROWS, STARTS, WIDTH, WITHOUT_DECAY, Table, Whole, merged_gradients, recut, start_values

pytestmark = pytest.mark.filterwarnings('ignore:Accumulating with float16')

#: Arguments of each optimizer that may change during training.
CHANGES = {
    'sgd': {'lazy_update': [True, False], 'momentum': [0.0, 0.5, -0.5]}, 'ccsgd': {'momentum': [0.0, 0.5]},
    'nag': {'momentum': [0.0, 0.5, -0.5]}, 'adam': {'lazy_update': [True, False], 'beta1': [0.5], 'epsilon': [1e-3]},
    'adagrad': {'float_stable_eps': [1e-3]}, 'groupadagrad': {'float_stable_eps': [1e-3]}, 'ftrl': {'lamda1': [0.2]},
    'adadelta': {'rho': [0.5]}, 'rmsprop': {'gamma1': [0.5], 'clip_weights': [None, 0.5]},
}
COMMON = {'wd': [0.0, 0.1], 'clip_gradient': [None, 0.4], 'rescale_grad': [1.0, 1 / 3]}


def test_every_allowed_optimizer_is_compared():
    assert set(STARTS) == set(CHANGES) == set(SPARSE_KERNELS + ELEMENTWISE) - {'test'}  # see test_table_updates


def create(name, arguments):
    """Return an optimizer whose steps change every row visibly."""
    return mx.optimizer.create(name, **dict({} if name == 'adadelta' else {'learning_rate': 0.1}, **arguments))


def all_arguments(name):
    for start in STARTS[name]:
        for values in itertools.product(*COMMON.values()):
            arguments = dict(start, **dict(zip(COMMON, values)))
            if not (name in WITHOUT_DECAY and arguments['wd']):
                yield arguments


def assert_same_values(table, whole, case):
    """Compare the rows of two tables bit for bit; float16 may overflow, on both sides."""
    np.testing.assert_array_equal(table.values(), whole.values(), err_msg=str(case))


def assert_same_state(table, whole, case):
    for slot, state in enumerate(whole.states()):
        np.testing.assert_array_equal(table.read_state(slot, state.shape[1]), state, err_msg=str(case))
        # A server may keep a float16 table in float32.
        halves = table.read_state(slot, state.shape[1], dtype='float16')
        np.testing.assert_array_equal(halves, state.astype('float16'), err_msg=str(case))


def route_of(dtype):
    """Return the attributes of a weight on which on-demand rows depend."""
    dtype = np.dtype(dtype)
    return types.SimpleNamespace(key=0, name='w', shape=(ROWS, WIDTH), rows=ROWS, wire_dtype=dtype, dtype=dtype)


@pytest.mark.parametrize('dtype', ['float32', 'float16', 'float64'])
@pytest.mark.parametrize('name', STARTS)
def test_every_combination_of_settings(name, dtype):
    if name in FLOAT32_STATE and dtype != 'float32':
        with pytest.raises(InputError):
            check_for_table(create(name, {}), 'w', dtype, 0.0)
        return
    for count, arguments in zip(itertools.cycle((1, 2, 5, ROWS)), all_arguments(name)):
        table, whole = Table(start_values(dtype), count), Whole(start_values(dtype), create(name, arguments))
        check_for_table(whole.updater.optimizer, 'w', dtype, arguments['wd'])
        table.set_optimizer(whole.updater.optimizer)
        for ids, rows in merged_gradients(1, dtype, steps=6):
            table.push(ids, rows)
            whole.push(ids, rows)
            assert_same_values(table, whole, arguments)
        assert_same_state(table, whole, arguments)
        may_overflow = (name, dtype) == ('adam', 'float16') and 'epsilon' not in arguments
        assert may_overflow or np.isfinite(whole.values()).all()


@st.composite
def trainings(draw):
    """An optimizer, its arguments, and steps: rows of the gradient, settings changed before, partitions from then."""
    name = draw(st.sampled_from(sorted(STARTS)))
    arguments = draw(st.sampled_from(list(all_arguments(name))))
    choices = dict(COMMON, lr=[0.3, 0.0], **CHANGES[name])
    if name in WITHOUT_DECAY:
        del choices['wd']
    changes = st.one_of([st.none()] + [st.tuples(st.just(what), st.sampled_from(values))
                                       for what, values in sorted(choices.items())])
    steps = st.tuples(st.sets(st.integers(0, ROWS - 1)), changes, st.sampled_from([None, None, 1, 2, 5, ROWS]))
    return name, arguments, draw(st.lists(steps, min_size=2, max_size=8))


@pytest.mark.timeout(150)
@hypothesis_settings(max_examples=60, deadline=None)
@given(trainings(), st.booleans(), st.integers(0, 99))
def test_settings_and_partitions_that_change_in_mid_run(training, through_workers, seed):
    name, arguments, steps = training
    random = np.random.RandomState(seed)
    optimizer, made_with = create(name, arguments), None
    table, whole = Table(start_values(), 2), Whole(start_values(), optimizer)
    for count, (ids, change, partitions) in enumerate(steps):
        if change is not None:
            before = getattr(optimizer, change[0])
            setattr(optimizer, *change)
            try:
                check_change(made_with, optimizer, 'w')
            except InputError:
                setattr(optimizer, change[0], before)
        if partitions and count:
            recut(table, partitions, through_workers)
        table.set_optimizer(optimizer, count)
        made_with = made_with or (reference_of(optimizer), attributes_of(optimizer))
        ids = np.array(sorted(ids), np.int64)
        rows = random.standard_normal((len(ids), WIDTH)).astype('float32')
        table.push(ids, rows)
        whole.push(ids, rows)
        assert_same_values(table, whole, training)
    assert_same_state(table, whole, training)


@pytest.mark.parametrize('name, start, change', [
    ('sgd', {}, {'momentum': 0.9}), ('ccsgd', {}, {'momentum': 0.9}), ('nag', {}, {'momentum': 0.9}),
    ('nag', {'wd': 0.1}, {'momentum': 1e-9}), ('rmsprop', {}, {'centered': True}),
    ('rmsprop', {'centered': True}, {'centered': False}), ('adagrad', {}, {'wd': 0.1}),
    ('groupadagrad', {}, {'wd': 0.1})])
def test_settings_with_which_one_process_fails_are_refused(name, start, change):
    optimizer = create(name, start)
    whole = Whole(start_values(), optimizer)
    ids, rows = next(merged_gradients(1))
    whole.push(ids, rows)
    made_with = (reference_of(optimizer), json.loads(json.dumps(attributes_of(optimizer))))
    check_for_table(optimizer, 'words', 'float32', optimizer.wd)
    check_change(made_with, optimizer, 'words')
    optimizer.__dict__.update(change)
    with pytest.raises((mx.MXNetError, ValueError, AssertionError)):
        whole.push(ids, rows)
        whole.values()
    with pytest.raises(InputError) as caught:
        check_for_table(optimizer, 'words', 'float32', optimizer.wd)
        check_change(made_with, optimizer, 'words')
    setting, value = next(iter(change.items()))
    for word in (repr(name), 'words', setting, '%g' % value if value is not True and value else str(value)):
        assert word in str(caught.value)
    check_change(None, optimizer, 'words')  # before the first update it may
    check_change(('adam', {}), optimizer, 'words')  # and where another optimizer made the state


@pytest.mark.parametrize('dtype', ['float32', 'float16', 'float64'])
@pytest.mark.parametrize('name', STARTS)
def test_on_demand_rows_equal_a_dense_weight(name, dtype):
    served = 0
    for arguments in all_arguments(name):
        optimizer = create(name, arguments)
        if unsupported_reason(route_of(dtype), optimizer):
            continue
        served += 1
        table, whole = Table(start_values(dtype), 3), Whole(start_values(dtype), optimizer)
        whole.weight = mx.nd.array(start_values(dtype), dtype=dtype)
        table.set_optimizer(optimizer)
        for step, (ids, rows) in enumerate(merged_gradients(1, dtype, steps=6)):
            if step == 4:
                optimizer.lr, optimizer.clip_gradient, optimizer.rescale_grad = 0.05, 0.3, 0.5
                table.set_optimizer(optimizer)
            table.push(ids, rows)
            whole.push(ids, rows)
            assert_same_values(table, whole, arguments)
        assert_same_state(table, whole, arguments)
    assert bool(served) == (name in KERNELS and not (name in FLOAT32_STATE and dtype != 'float32'))


def test_on_demand_rows_take_no_outdated_state():
    route, optimizer = route_of('float32'), create('sgd', {'momentum': 0.9})
    state = optimizer.create_state(0, mx.nd.zeros((ROWS, WIDTH)))
    assert not unsupported_reason(route, optimizer, state) and not unsupported_reason(route, optimizer, None)
    optimizer.momentum = 0.0  # one process keeps the array
    assert 'state' in unsupported_reason(route, optimizer, state)


def test_rows_that_mxnet_leaves_out_are_stored_again():
    values = np.zeros((ROWS, WIDTH), 'float32')
    table = Table(values, 2)
    table.set_optimizer(create('nag', {'momentum': 0.9}))
    for ids in ([], [3], [3, 8]):
        table.push(np.array(ids, np.int64), np.ones((len(ids), WIDTH), 'float32'))
        assert [len(row_sparse_parts(stored)[0]) for stored in table.stored] == [6, 5]
    assert table.values()[[3, 8]].all() and not np.delete(table.values(), [3, 8], axis=0).any()
