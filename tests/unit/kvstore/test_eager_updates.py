"""Updates of large weights by themselves and of small ones together, and updates without an exchange."""
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.kvstore import weight_shards
from mxhybrid.kvstore.trainer_step import TrainerHooks
from mxhybrid.kvstore.weight_shards import LARGE_BYTES, updating_eagerly

LARGE = LARGE_BYTES // 8
SIZES = [LARGE, 3, LARGE + 1, 5, LARGE - 1]


class Recorded:
    """An updater that records its arguments."""

    def __init__(self):
        self.calls = []

    def __call__(self, keys, gradients, weights):
        assert [one.shape for one in gradients] == [one.shape for one in weights]
        self.calls.append(list(keys))


def arrays(seed):
    random = np.random.RandomState(seed)
    return [mx.nd.array(random.normal(size=size), dtype='float64') for size in SIZES]


def updated(updater, keys, gradients, weights):
    """Update weights eagerly, and return the calls of the updater."""
    trainer = SimpleNamespace(_updaters=[updater])
    with updating_eagerly(trainer):
        trainer._updaters[0](keys, gradients, weights)
    assert trainer._updaters == [updater]
    return updater.calls


def test_arrays_that_are_updated_together():
    assert updated(Recorded(), range(5), arrays(0), arrays(1)) == [[2], [0], [1, 3, 4]]


def test_large_updates_stand_behind_ready_gradients(monkeypatch):
    updater, gradients = Recorded(), arrays(0)
    places = {id(gradient): place for place, gradient in enumerate(gradients)}
    monkeypatch.setattr(weight_shards, 'write_after', lambda before, behind: updater.calls.append(
        ('behind', before, [places[id(gradient)] for gradient in behind])))
    assert updated(updater, range(5), gradients, arrays(1)) == [
        ('behind', [], [2]), [2], ('behind', [], [0]), [0], [1, 3, 4]]


def test_rows_stay_with_the_others():
    rows = mx.nd.sparse.zeros('row_sparse', (LARGE, 1), dtype='float64')
    assert updated(Recorded(), [7], [rows], [mx.nd.zeros((LARGE, 1), dtype='float64')]) == [[7]]


def test_a_failing_update_leaves_the_trainer_as_it_was():
    updater = Recorded()
    trainer = SimpleNamespace(_updaters=[updater])
    with pytest.raises(ValueError), updating_eagerly(trainer):
        raise ValueError
    assert trainer._updaters == [updater]


@pytest.mark.parametrize('name, options', [('sgd', {'momentum': 0.9, 'wd': 0.01}), ('sgd', {}), ('adam', {'wd': 0.1})])
def test_numbers_are_those_of_one_call(name, options):
    def made():
        return mx.optimizer.get_updater(mx.optimizer.create(name, learning_rate=0.1, **options))
    theirs, trainer = made(), SimpleNamespace(_updaters=[made()])
    expected, weights = arrays(0), arrays(0)
    for step in range(3):
        theirs(list(range(5)), arrays(step + 1), expected)
        with updating_eagerly(trainer):
            trainer._updaters[0](list(range(5)), arrays(step + 1), weights)
    for mine, other in zip(weights, expected):
        np.testing.assert_allclose(mine.asnumpy(), other.asnumpy(), rtol=1e-12)
    assert trainer._updaters[0].optimizer.num_update == theirs.optimizer.num_update == 3


def steps_with(group, grad_req='write'):
    """Return the hooks of a Trainer with one parameter, of which the workers of `group` hold the same shard."""
    shard = None if group is None else SimpleNamespace(group=group)
    return TrainerHooks(SimpleNamespace(_params=[
        SimpleNamespace(name='net_weight', grad_req=grad_req, mxhybrid_shard=shard)]))


@pytest.mark.parametrize('group, grad_req', [(None, 'write'), ([1], 'write'), ([0, 1], 'null')])
def test_a_warning_names_the_call_once(caplog, group, grad_req):
    steps = steps_with(group, grad_req)
    for _ in range(3):
        steps._note_local_update()
    assert len(caplog.records) == 1 and 'Call trainer.allreduce_grads() before' in caplog.text


def test_copies_of_a_part_cannot_be_updated_apart(caplog):
    with pytest.raises(InputError, match='net_weight belongs to a split network, and the 2 workers .* Call trainer'):
        steps_with([0, 1])._note_local_update()
    assert not caplog.records
