"""The records of the shards of a weight are combined, or refused."""
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.checkpoint.split_weights import combined


def record(count=3, state=(), **more):
    return {'count': count, 'state': None if state is None else list(state), **more}


def test_state_of_the_shape_of_the_weight():
    mean = [[[4, 6], 'float32', [[0, 2], [0, 6]], ''], [[4, 6], 'float32', [[2, 4], [0, 6]], '']]
    assert combined('w', 'sgd', [record(state=[one]) for one in mean]) == (3, [[[4, 6], 'float32']])


def test_before_the_first_update_and_without_state():
    assert combined('w', 'sgd', [record(None, None), record(None, None)]) == (None, None)
    assert combined('w', 'sgd', [record(1), record(2)]) == (2, [])


def test_state_of_another_shape_is_the_same_on_all():
    """A count of the optimizer's own, say; an average over a part is none over the whole."""
    first, second = (record(state=[[[1], 'float32', [[0, 1]], digest]]) for digest in 'ab')
    assert combined('w', 'own', [first, first]) == (3, [[[1], 'float32']])
    with pytest.raises(InputError, match="'own' for w, which is split, keeps state of shape .1. that differs"):
        combined('w', 'own', [first, second])


def test_state_of_each_row_differs_where_rows_do():
    everyone = [record(state=[[[4, 1], 'float32', [rows, [0, 1]], digest]])
                for rows, digest in (([0, 2], 'a'), ([2, 4], 'b'), ([2, 4], 'b'))]
    assert combined('w', 'groupadagrad', everyone) == (3, [[[4, 1], 'float32']])


@pytest.mark.parametrize('other, words', [
    (record(state=[]), 'has different state on some workers'),
    (record(state=None), 'has different state on some workers'),
    (record(problem='keeps a float: checkpoints hold arrays only'), 'keeps a float')])
def test_others_are_refused(other, words):
    with pytest.raises(InputError, match=words):
        combined('w', 'own', [record(state=[[[4], 'float32', [[0, 2]], '']]), other])
