"""The rows that the leader of a host keeps for all its workers, while there come to be more of them."""
import types

import numpy as np

from mxhybrid.aggregation import Leader, _Shared

WIDTH = 3


class Watched(_Shared):
    """Notes what a cache holds at the moment at which readers can see it."""

    def __init__(self):
        self.seen = []
        super().__init__(0)

    def __setattr__(self, name, value):
        if name == 'cache' and value is not None:
            rows = value.nbytes // (WIDTH * 4)
            self.seen.append(value.view(0, (rows, WIDTH), np.dtype('f4')).copy())
        super().__setattr__(name, value)


def arrive(leader, state, first, rows):
    """Have rows arrive for the slots from `first` on."""
    table = types.SimpleNamespace(partitioning=types.SimpleNamespace(width=WIDTH), dtype=np.dtype('f4'))
    arrival = types.SimpleNamespace(write=lambda result: result.__setitem__(slice(None), rows))
    leader._arrive(state, table, first, first + len(rows), arrival, [])


def test_readers_never_see_a_cache_without_the_rows_that_came_before():
    leader = Leader.__new__(Leader)
    leader._followers = {}
    state = Watched()
    early, late = np.full((4, WIDTH), 1, 'f4'), np.full((100000, WIDTH), 2, 'f4')
    arrive(leader, state, 0, early)
    arrive(leader, state, 4, late)
    assert len(state.seen) == 2
    np.testing.assert_array_equal(state.seen[1][:4], early)
    np.testing.assert_array_equal(state.cache.view(0, (100004, WIDTH), np.dtype('f4')), np.concatenate([early, late]))
