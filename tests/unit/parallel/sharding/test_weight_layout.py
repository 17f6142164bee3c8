"""The boxes of weights that ranks hold: all elements are held, even those that no operator reads."""
import pytest

from mxhybrid.parallel.sharding.weight_layout import WeightLayouts


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
