"""The time of a step, as the search for partition counts measures it."""
import pytest

from mxhybrid.base.settings import Settings
from mxhybrid.routes import partition_tuner as tuner


class Alone:
    """The collective of a single worker."""

    rank, size = 0, 1

    def allgather_json(self, value, name):
        """Nobody else has a value."""
        return [value]


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as a list of one."""
    time = [0.0]
    monkeypatch.setattr(tuner.time, 'perf_counter', lambda: time[0])
    return time


def push(search, clock, *times):
    """Push two keys at each of the times."""
    for clock[0] in times:
        search.before_push('a')
        search.before_push('b')


def test_a_step_lasts_between_pushes_of_a_key(clock):
    search = tuner.Tuner(Settings(partitions=(('*', 'auto'),)), Alone(), 2, {}, 'unit')
    push(search, clock, 1, 3, 6)
    assert search._seconds == [2, 3]


def test_steps_in_which_the_search_waited_are_omitted(clock):
    search = tuner.Tuner(Settings(partitions=(('*', 'auto'),)), Alone(), 2, {}, 'unit')
    push(search, clock, 1, 3)
    for clock[0] in range(4, 100):
        search.pause()
    push(search, clock, 100, 101, 102)
    assert search._seconds == [2, 1, 1]
