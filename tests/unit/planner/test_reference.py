"""The pieces of work by which machines are compared."""
import time

import pytest

from mxhybrid.planner.reference import Reference, reference_seconds


def test_the_speed_of_a_machine_beside_another_one():
    slow, fast = Reference(0.02, 0.04, 0.01), Reference(0.01, 0.01, 0.01)
    assert fast.speed_beside(slow) == pytest.approx(2)
    assert slow.speed_beside(fast) == pytest.approx(0.5)
    assert slow.speed_beside(slow) == 1


def test_it_takes_the_time_that_the_pieces_take():
    before = time.process_time()
    found = reference_seconds(3)
    took = time.process_time() - before
    assert all(seconds > 0 for seconds in found)
    assert 3 * sum(found) < took < 10
