"""The state of optimizers for a parameter: any structure, its shapes, counts of updates."""
import mxnet as mx
import pytest

from mxhybrid.native.optimizer_state import (
    count_update,
    maker_of,
    replace_arrays,
    state_arrays,
    state_shapes,
    state_widths,
    update_count,
    was_updated,
)

from .test_optimizers import CHANGED

pytestmark = pytest.mark.both_pythons


def test_state_arrays_are_listed_in_order_and_put_back():
    state = (None, ('a', ('b', None)), ['c'], 'd')
    assert state_arrays(state) == ['a', 'b', 'c', 'd']
    assert replace_arrays(state, [1, 2, 3, 4]) == (None, (1, (2, None)), [3], 4)
    assert state_arrays(None) == [] and replace_arrays(None, []) is None


@pytest.mark.parametrize('name, arguments', CHANGED, ids=[name for name, _ in CHANGED])
def test_state_of_real_optimizers_survives_a_replacement(name, arguments):
    optimizer = mx.optimizer.create(name, learning_rate=0.1, **arguments)
    state = optimizer.create_state(0, mx.nd.ones((3, 2)))
    arrays = state_arrays(state)
    assert all(isinstance(array, mx.nd.NDArray) for array in arrays)
    rebuilt = replace_arrays(state, list(arrays))
    assert type(rebuilt) is type(state)
    assert [id(array) for array in state_arrays(rebuilt)] == [id(array) for array in arrays]


@pytest.mark.parametrize('name, arguments, widths', [
    ('nag', {'momentum': 0.9}, [3]), ('adadelta', {}, [3, 3]), ('groupadagrad', {}, [1]), ('sgd', {}, [])])
def test_widths_of_state_take_no_memory(name, arguments, widths):
    rows = 2 ** 33  # more than MXNet has arrays for
    assert state_widths(mx.optimizer.create(name, **arguments), 0, (rows, 3), 'float32') == widths


def test_a_maker_of_state_with_momentum_had_momentum():
    def shapes(optimizer):
        return state_shapes(optimizer, 0, (4, 2), 'float32')

    without, adam = mx.optimizer.create('sgd', momentum=0.0), mx.optimizer.create('adam')
    assert maker_of([(4, 2)], without, shapes).momentum and without.momentum == 0
    assert maker_of([], without, shapes) is without
    assert maker_of([(4, 2)], adam, shapes) is adam  # which others refuse


def test_updates_are_counted_for_each_device():
    optimizer = mx.optimizer.create('sgd', begin_num_update=5)
    assert update_count(optimizer, 'w') == 5 and not was_updated(optimizer, 'w')
    count_update(optimizer, 'w')
    assert update_count(optimizer, 'w') == 6 and was_updated(optimizer, 'w')
    count_update(optimizer, 'w', [0, 1])
    assert optimizer._all_index_update_counts == {0: {'w': 7}, 1: {'w': 6}}
