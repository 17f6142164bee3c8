"""Where tasks lie: the same arrays in both languages, whatever blocks come and go."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.planner.simulator import task_table
from mxhybrid.planner.simulator.backend import PYTHON, compiled_engine

from .test_simulation import changes, whole_steps


def arrays_of(found):
    """All that is used."""
    used, inner, outer, places, live = found.counts.tolist()
    return [found.tasks[:used].tolist(), found.targets[:inner].tolist(), found.outer_targets[:outer].tolist(), live,
            *(of[:places].tolist() for of in (found.bases, found.sizes, found.keys, found.alive))]


@settings(max_examples=200, deadline=None)
@given(whole_steps(), st.lists(st.tuples(changes(), st.booleans()), min_size=1, max_size=6), st.integers(0, 30))
def test_blocks_lie_alike_in_both_languages(found, events, least):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_table, '_LEAST', least)
        patch.setattr(task_table, '_SPARE', 1)
        plain, compiled = (engine.slots(found) for engine in (PYTHON, compiled_engine()))
    assert arrays_of(plain) == arrays_of(compiled)
    for change, keep in events:
        before = arrays_of(plain)
        told = [one.replace(change) for one in (plain, compiled)]
        if told[0] is None:
            assert told[1] is None
        else:
            for one, other in zip(*told):
                np.testing.assert_array_equal(one, other)
            living = plain.live().tolist()
            assert set(told[0].changed.tolist()) <= set(living) and not set(told[0].gone.tolist()) & set(living)
        assert arrays_of(plain) == arrays_of(compiled) and set(plain.blocks) == set(compiled.blocks)
        if told[0] is None:
            assert arrays_of(plain) == before
        elif not keep:
            plain.undo()
            compiled.undo()
            assert arrays_of(plain) == arrays_of(compiled) == before
        assert set(plain.spans()) == set(compiled.spans()) == set(plain.blocks)
