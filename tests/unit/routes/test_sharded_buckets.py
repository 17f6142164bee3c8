"""Shards of buckets: as equal as whole rows allow."""
import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.routes.sharded_buckets import shard_ends

shapes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes, st.integers(1, 8))
@settings(deadline=None)
def test_shards_are_rows_and_nearly_equal(arrays, count):
    ends = shard_ends(arrays, count)
    sizes = [int(np.prod(shape)) for shape in arrays]
    total, widest = sum(sizes), max(int(np.prod(shape[1:])) for shape in arrays)
    assert len(ends) == count and ends[-1] == total and ends == sorted(ends)
    borders = {start + row * int(np.prod(shape[1:])) for shape, start in
               zip(arrays, itertools.accumulate([0] + sizes)) for row in range(shape[0] + 1)}
    assert set(ends) <= borders
    for number, end in enumerate(ends, 1):
        assert abs(end - total * number / count) <= widest / 2 + 1


@pytest.mark.parametrize('arrays, count, ends', [([(4,)], 2, [2, 4]), ([(1, 100)], 3, [0, 100, 100]),
                                                 ([(3, 2), (2,)], 4, [2, 4, 6, 8])])
def test_shards_of_some_arrays(arrays, count, ends):
    assert shard_ends(arrays, count) == ends
