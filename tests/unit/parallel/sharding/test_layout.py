"""Layouts: the messages between two of them, and the boxes of weights, which hold all elements."""
import collections

import pytest

from mxhybrid.parallel.redistribution.redistribution import Redistribution
from mxhybrid.parallel.sharding.box import full, size_of, split_shape
from mxhybrid.parallel.sharding.layout import Layout, Movement, messages
from mxhybrid.parallel.sharding.weight_layout import WeightLayouts

SHAPE = (12, 10)
WHOLE = full(SHAPE)


@pytest.mark.parametrize('needed', [dict.fromkeys(range(4), WHOLE), dict(enumerate(split_shape(SHAPE, (4, 1)))),
                                    {2: WHOLE}])
@pytest.mark.parametrize('one_gradient', [False, True])
def test_a_rank_takes_its_own_copy(needed, one_gradient):
    layout = Layout(SHAPE, dict.fromkeys(range(4), WHOLE))
    assert all(message.source == message.target for message in messages(layout, needed))
    for rank in range(4):
        redistribution = Redistribution(0, rank, Movement(layout, needed, 'float32', one_gradient=one_gradient))
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


@pytest.mark.parametrize('needed, held', [
    # Equal or disjoint boxes that cover the weight.
    ({0: (((0, 6), (0, 4)),), 1: (((6, 10), (0, 4)),)}, {0: ((0, 6), (0, 4)), 1: ((6, 10), (0, 4))}),
    # The smallest box around all that a rank needs.
    ({0: (((0, 2), (0, 4)), ((4, 6), (0, 4))), 1: (((6, 10), (0, 4)),)}, {0: ((0, 6), (0, 4)), 1: ((6, 10), (0, 4))}),
    # Boxes that overlap: the whole weight on both.
    ({0: (((0, 6), (0, 4)),), 1: (((5, 10), (0, 4)),)}, dict.fromkeys((0, 1), ((0, 10), (0, 4)))),
    # All ranks read the same part.
    ({0: (((0, 6), (1, 2)),), 1: (((0, 6), (1, 2)),)}, dict.fromkeys((0, 1), ((0, 10), (0, 4)))),
    # No rank reads the elements before, between and after.
    ({0: (((1, 3), (0, 2)),), 3: (((5, 8), (0, 2)),)}, {0: ((0, 5), (0, 4)), 3: ((5, 10), (0, 4))}),
    ({0: (((1, 3), (0, 1)),), 1: (((1, 3), (2, 3)),), 2: (((5, 8), (0, 1)),), 3: (((5, 8), (2, 3)),)},
     {0: ((0, 5), (0, 2)), 1: ((0, 5), (2, 4)), 2: ((5, 10), (0, 2)), 3: ((5, 10), (2, 4))}),
    # Boxes that are not the cells of a grid.
    ({0: (((0, 3), (0, 4)),), 1: (((4, 9), (0, 1)),), 2: (((4, 9), (2, 3)),)},
     dict.fromkeys((0, 1, 2), ((0, 10), (0, 4)))),
    ({0: (((0, 3), (0, 1)),), 1: (((4, 9), (2, 3)),)}, dict.fromkeys((0, 1), ((0, 10), (0, 4)))),
    # A weight that no operator reads.
    ({}, {})])
def test_boxes_that_ranks_hold(needed, held):
    weights = WeightLayouts({'weight': (10, 4)})
    for rank, boxes in needed.items():
        for box in boxes:
            weights.require('weight', rank, box)
    assert weights.boxes('weight') == held
