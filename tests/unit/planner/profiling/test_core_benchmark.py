"""The pieces of work by which machines are compared, and what disturbs their timing."""
import time

import pytest

from mxhybrid.planner.profiling import core_benchmark
from mxhybrid.planner.profiling.core_benchmark import Reference, ReferenceWork, read_reference, reading_of


@pytest.fixture(autouse=True)
def quiet_machine():
    """Here machines are as busy as they are, unlike in other tests of this folder."""


def test_the_speed_of_a_machine_beside_another_one():
    slow, fast = Reference(0.02, 0.04, 0.01), Reference(0.01, 0.01, 0.01)
    assert fast.speed_beside(slow) == pytest.approx(2)
    assert slow.speed_beside(fast) == pytest.approx(0.5)
    assert slow.speed_beside(slow) == 1


def test_a_repeat_takes_the_time_that_the_pieces_take(monkeypatch):
    monkeypatch.setattr(core_benchmark, 'REPEAT_S', 0.0)
    work = ReferenceWork()
    before = time.perf_counter()
    found = work.repeat()
    took = time.perf_counter() - before
    assert all(seconds > 0 for seconds in found)
    assert sum(found) < took


def test_repeats_are_spread_over_seconds_behind_a_warm_up(monkeypatch):
    repeats = []

    class Work:
        def repeat(self):
            repeats.append(time.perf_counter())
            return Reference(3.0 - len(repeats), 1.0, 1.0)
    monkeypatch.setattr(core_benchmark, 'ReferenceWork', Work)
    assert read_reference(2).reference == Reference(1.0, 1.0, 1.0) and len(repeats) == 2
    assert core_benchmark.REPEATS * core_benchmark.REPEAT_S >= 2


def test_the_least_of_each_piece_counts_and_the_spread_is_that_of_most_repeats():
    quiet, slow = Reference(0.01, 0.02, 0.03), Reference(0.02, 0.04, 0.06)
    found = reading_of([slow, quiet, slow, quiet, quiet], 0.02)
    assert found.reference == quiet and found.spread == pytest.approx(0) and found.problem == ''
    found = reading_of([slow, slow, quiet, slow], 0.02)
    assert found.reference == quiet and found.spread == pytest.approx(1)
    assert found.problem == 'the same work takes from one moment to the next 100 % longer'
    assert reading_of([Reference(0.01, 0.04, 0.03), Reference(0.02, 0.02, 0.03)], 0.0).reference == quiet


def test_other_programs_are_a_problem():
    assert reading_of([Reference(1, 1, 1)], 0.45).problem == 'other programs have 45 % of the processors'
    assert reading_of([Reference(1, 1, 1)], 0.05).problem == ''
