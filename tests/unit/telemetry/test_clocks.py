"""Offsets between clocks."""
import pytest
from hypothesis import given, strategies as st

from mxhybrid.telemetry.trace_sender import ClockOffset

pytestmark = pytest.mark.both_pythons

DELAYS = st.integers(0, 10 ** 7)
TRIPS = st.lists(st.tuples(st.integers(0, 10 ** 15), DELAYS, DELAYS), min_size=1, max_size=10)


@given(st.integers(-10 ** 15, 10 ** 15), TRIPS)
def test_the_error_is_half_the_shortest_round_trip(ahead, trips):
    offset = ClockOffset()
    for at, there, back in trips:
        offset.sample(at, at + there + ahead, at + there + back)
    offset.settle()
    shortest = min(there + back for _, there, back in trips)
    limit = shortest if offset.value == 0 else (shortest + 1) // 2
    assert abs(offset.value - ahead) <= limit


@given(TRIPS)
def test_processes_with_one_clock_agree_exactly(trips):
    offset = ClockOffset()
    for at, there, back in trips:
        offset.sample(at, at + there, at + there + back)
        offset.settle()
        assert offset.value == 0


def test_nothing_is_known_before_the_first_round_trip():
    offset = ClockOffset()
    offset.settle()
    assert offset.value is None


def test_an_offset_stays_until_the_clock_drifts():
    offset = ClockOffset()
    offset.sample(100, 1150, 200)  # between 950 and 1050
    offset.settle()
    assert offset.value == 1000
    offset.sample(300, 1340, 360)  # between 980 and 1040
    offset.settle()
    assert offset.value == 1000
    offset.sample(500, 1530, 510)  # between 1020 and 1030
    offset.settle()
    assert offset.value == 1025


def test_a_sample_that_cannot_be_is_left_out():
    offset = ClockOffset()
    offset.sample(200, 1000, 100)  # an answer before the question
    offset.settle()
    assert offset.value is None
