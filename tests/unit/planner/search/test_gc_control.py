"""The garbage collector is paused, and is as before afterwards."""
import gc

import pytest

from mxhybrid.planner.search.gc_control import paused_gc

pytestmark = pytest.mark.both_pythons


def test_collection_resumes_and_new_objects_are_old():
    new_objects = []
    with pytest.raises(KeyError):
        with paused_gc():
            assert not gc.isenabled()
            new_objects += [[] for _ in range(10_000)]
            raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert sum(isinstance(item, list) for item in gc.get_objects(generation=0)) < len(new_objects)


def test_a_frozen_or_disabled_collector_stays_so():
    objects = [[] for _ in range(10_000)]  # objects of other tests may be freed inside the block
    gc.freeze()
    try:
        with paused_gc():
            pass
        assert gc.get_freeze_count() >= len(objects)
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with paused_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
