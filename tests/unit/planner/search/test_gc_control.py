"""Python looks for no cycles meanwhile, and is as before afterwards."""
import gc

import pytest

from mxhybrid.planner.search.gc_control import paused_gc

pytestmark = pytest.mark.both_pythons


def test_it_is_on_again_afterwards_and_what_came_meanwhile_is_old():
    kept = []
    with pytest.raises(KeyError):
        with paused_gc():
            assert not gc.isenabled()
            kept += [[] for _ in range(10_000)]
            raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert sum(isinstance(one, list) for one in gc.get_objects(generation=0)) < len(kept)


def test_what_its_user_has_frozen_or_turned_off_stays_so():
    kept = [[] for _ in range(10_000)]  # what others have may go meanwhile
    gc.freeze()
    try:
        with paused_gc():
            pass
        assert gc.get_freeze_count() >= len(kept)
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with paused_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
