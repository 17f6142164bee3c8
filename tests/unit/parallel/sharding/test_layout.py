"""Messages between two layouts: a rank takes its own copy, and copies send to equally many ranks."""
import collections

import pytest

from mxhybrid.parallel.redistribution.redistribution import Redistribution
from mxhybrid.parallel.sharding.box import full, size_of, split_shape
from mxhybrid.parallel.sharding.layout import Layout, messages

SHAPE = (12, 10)
WHOLE = full(SHAPE)


@pytest.mark.parametrize('needed', [dict.fromkeys(range(4), WHOLE), dict(enumerate(split_shape(SHAPE, (4, 1)))),
                                    {2: WHOLE}])
@pytest.mark.parametrize('one_gradient', [False, True])
def test_a_rank_takes_its_own_copy(needed, one_gradient):
    layout = Layout(SHAPE, dict.fromkeys(range(4), WHOLE))
    assert all(message.source == message.target for message in messages(layout, needed))
    for rank in range(4):
        redistribution = Redistribution(0, rank, layout, needed, 'float32', one_gradient=one_gradient)
        for transfer in (redistribution.forward, redistribution.backward):
            assert not transfer.sends and not transfer.receives
        assert redistribution.bytes == (0, 0)


@pytest.mark.parametrize('targets', [[3, 4, 5], [0, 3, 4, 5], [3, 4, 5, 6, 7, 8]])
def test_copies_send_to_equally_many_ranks(targets):
    layout = Layout(SHAPE, dict.fromkeys(range(3), WHOLE))
    others = [message for message in messages(layout, dict.fromkeys(targets, WHOLE))
              if message.source != message.target]
    assert collections.Counter(message.target for message in others) == collections.Counter(
        target for target in targets if target > 2)
    sent = collections.Counter(message.source for message in others)
    assert set(sent.values()) == {len(others) // 3} and len(sent) == 3


def test_a_rank_fetches_only_what_it_lacks():
    layout = Layout(SHAPE, dict(enumerate(split_shape(SHAPE, (3, 1)))))
    moved = [message for message in messages(layout, {1: WHOLE}) if message.source != message.target]
    assert [(message.source, size_of(message.box)) for message in moved] == [(0, 40), (2, 40)]
