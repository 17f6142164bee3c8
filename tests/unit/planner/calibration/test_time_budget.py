"""Seconds that are shared out."""
import pytest

from mxhybrid.planner.calibration.time_budget import TimeBudget


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_time_that_is_left_over_goes_to_later_parts():
    clock = Clock()
    budget = TimeBudget(10.0, {'one': 1, 'other': 3, 'last': 1}, clock)
    budget.begin('one', 2)
    assert budget.next_seconds() == 1.0
    clock.now += 0.5
    assert budget.next_seconds() == 1.5
    clock.now += 0.5
    budget.begin('other', 7)
    assert [budget.next_seconds() for _ in range(8)] == pytest.approx([7 / 7, 7 / 6, 7 / 5, 7 / 4, 7 / 3, 7 / 2, 7, 7])
    clock.now += 7.5  # half a second of the last part
    assert budget.next_seconds() == 0.0 and budget.elapsed == 8.5
    budget.begin('last', 0)
    assert budget.next_seconds() == 1.5
    clock.now += 9
    assert budget.next_seconds() == 0.0
