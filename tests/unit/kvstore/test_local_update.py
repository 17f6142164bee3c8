"""An update without an exchange: a warning once, an error where workers hold copies of a part of a weight."""
from types import SimpleNamespace

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.kvstore.trainer_step import TrainerHooks


def steps_with(part):
    """Steps of a Trainer that has one parameter, of which this worker holds `part`."""
    return TrainerHooks(SimpleNamespace(_params=[SimpleNamespace(name='net_weight', mxhybrid_shard=part)]))


@pytest.mark.parametrize('part', [None, SimpleNamespace(group=[1], grad_req='write'),
                                  SimpleNamespace(group=[0, 1], grad_req='null')])
def test_a_warning_names_the_call_once(caplog, part):
    steps = steps_with(part)
    for _ in range(3):
        steps._note_local_update()
    assert len(caplog.records) == 1 and 'Call trainer.allreduce_grads() before' in caplog.text


def test_copies_of_a_part_cannot_be_updated_apart(caplog):
    with pytest.raises(InputError, match='net_weight belongs to a split network, and the 2 workers .* Call trainer'):
        steps_with(SimpleNamespace(group=[0, 1], grad_req='write'))._note_local_update()
    assert not caplog.records
