"""An update without an exchange: a warning once, an error where workers hold copies of a part of a weight."""
from types import SimpleNamespace

import pytest

from mxhybrid.base.errors import InputError
from mxhybrid.kvstore.trainer_step import TrainerHooks


def steps_with(group, grad_req='write'):
    """Steps of a Trainer that has one parameter; the workers of `group` hold the same shard of it."""
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
