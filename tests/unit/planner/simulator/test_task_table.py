"""Task tables: both languages write the same arrays, whatever blocks are added and removed."""
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mxhybrid.planner.simulator import task_table
from mxhybrid.planner.simulator.native_backend import native_backend
from tests.oracles.event_loop import PYTHON_BACKEND

from .test_simulation import changes, whole_steps


def arrays_of(table):
    """Return the used parts of all arrays."""
    tasks, inner, outer, slots, live_tasks = table.counts.tolist()
    return [table.tasks[:tasks].tolist(), table.successors[:inner].tolist(), table.outer_successors[:outer].tolist(),
            live_tasks, *(values[:slots].tolist() for values in (table.bases, table.sizes, table.keys, table.alive))]


@settings(max_examples=200, deadline=None)
@given(whole_steps(), st.lists(st.tuples(changes(), st.booleans()), min_size=1, max_size=6), st.integers(0, 30))
def test_both_languages_write_the_same_arrays(step_blocks, proposals, capacity):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_table, '_MIN_CAPACITY', capacity)
        patch.setattr(task_table, '_SPARE_FACTOR', 1)
        python, compiled = (backend.table(step_blocks) for backend in (PYTHON_BACKEND, native_backend()))
    assert arrays_of(python) == arrays_of(compiled)
    for change, is_kept in proposals:
        before = arrays_of(python)
        expected, replacement = (table.replace(change) for table in (python, compiled))
        if expected is None:
            assert replacement is None
        else:
            for expected_values, values in zip(expected, replacement):
                np.testing.assert_array_equal(expected_values, values)
            live = python.live().tolist()
            assert set(expected.changed.tolist()) <= set(live) and not set(expected.removed.tolist()) & set(live)
        assert arrays_of(python) == arrays_of(compiled) and set(python.blocks) == set(compiled.blocks)
        if expected is None:
            assert arrays_of(python) == before
        elif not is_kept:
            python.rollback()
            compiled.rollback()
            assert arrays_of(python) == arrays_of(compiled) == before
        assert set(python.spans()) == set(compiled.spans()) == set(python.blocks)
