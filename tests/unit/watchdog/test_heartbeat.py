"""Heartbeats: a clock that counts only time awake, the first heartbeat, the silence of the monitor."""
import os

import pytest
from hypothesis import given, strategies as st

from mxhybrid.watchdog import heartbeat as heartbeat_module
from mxhybrid.watchdog.heartbeat import AWAKE_S, AwakeClock, Heartbeat

from .watching import Sampler, Time

pytestmark = pytest.mark.both_pythons


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_a_clock_counts_only_the_time_between_frequent_readings(gaps):
    time = Time()
    clock = AwakeClock(time)
    for gap in gaps:
        time.now += gap
        clock.advance()
    assert clock.seconds == pytest.approx(sum(min(gap, AWAKE_S) for gap in gaps))


def test_a_clock_that_goes_back_stands_still():
    time = Time()
    clock = AwakeClock(time)
    time.now = -5
    assert clock.advance() == 0
    time.now = -4
    assert clock.advance() == 1


def test_only_the_first_heartbeat_has_the_identity():
    heartbeat = Heartbeat(60, is_worker=True)
    assert heartbeat.due()
    first = heartbeat.message(3, 'push', None)
    assert first['process']['pid'] == os.getpid() and first['calls'] == 3
    assert first['location'].startswith('test_heartbeat.py:')
    assert not heartbeat.due()
    assert 'process' not in heartbeat.message(3, 'push', None)


def test_the_heartbeat_of_a_server_is_empty():
    heartbeat = Heartbeat(60, is_worker=False)
    heartbeat.message(0, '', None)
    assert heartbeat.message(0, '', None) == {}


# ------------------------------------------------------------------------------------------ samples of the monitor


@pytest.fixture
def heartbeat(monkeypatch):
    """The heartbeats of a process that misses the monitor, with samples of the monitor's process."""
    clock = Time()
    monkeypatch.setattr(heartbeat_module.time, 'monotonic', clock)
    heartbeat = Heartbeat(60, is_worker=True)
    heartbeat._clock = AwakeClock(clock)
    heartbeat.clock, heartbeat.sampler = clock, Sampler(clock)
    monkeypatch.setattr(heartbeat_module, 'sample_process', heartbeat.sampler)
    monkeypatch.setattr(heartbeat_module, 'state_of', lambda process: 'S' if process['pid_space'] == 'a' else '')
    monkeypatch.setattr(heartbeat_module, 'pid_space', lambda: 'a')
    return heartbeat


def silence(heartbeat, seconds):
    """Return the first reason that comes within some seconds, and when; None if none comes."""
    for second in range(seconds):
        heartbeat.clock.now += 1
        heartbeat.due()
        text = heartbeat.silence_reason()
        if text is not None:
            return second + 1, text
    return None


def test_the_monitors_silence_counts_by_its_limit(heartbeat):
    heartbeat.handle_answer({'limit': 5})
    assert silence(heartbeat, 5) is None
    assert silence(heartbeat, 1)[1].startswith('worker 0, which watches the job, has been silent for 6 s: ')
    heartbeat.mark_heard()
    assert heartbeat.silence_reason() is None
    heartbeat.clock.now += 500  # this process was stopped
    heartbeat.due()
    assert heartbeat.silence_reason() is None


def test_a_computing_monitor_is_given_up_late(heartbeat):
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    heartbeat.sampler.busy = {1}
    assert silence(heartbeat, 59) is None
    second, text = silence(heartbeat, 10)
    assert second <= 3 and text.startswith('worker 0, which watches the job, has been silent for')
    assert text.endswith('keeps its Python from running other threads')


def test_a_hanging_monitor_is_given_up_in_time(heartbeat):
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 20) == (6, 'worker 0, which watches the job, has been silent for 6 s: it hangs')
    heartbeat.mark_heard()
    heartbeat.sampler.busy = {1}
    assert silence(heartbeat, 30) is None
    heartbeat.sampler.busy = set()
    assert silence(heartbeat, 20)[0] == 6


@pytest.mark.parametrize('stall', [0, 600])
def test_a_monitor_on_another_host_is_sampled_by_probes(heartbeat, monkeypatch, stall):
    asked = []

    def answer(address):
        asked.append(address)
        return heartbeat.sampler({'pid': 1}) if address == ('b', 2) else None

    monkeypatch.setattr(heartbeat_module, 'query_probe', answer)
    heartbeat.handle_answer({'limit': 8, 'stall': stall, 'process': {'pid': 1, 'pid_space': 'b'},
                             'probes': [['b', 1], ['b', 2]]})
    heartbeat.sampler.busy = {1}
    assert silence(heartbeat, 500) is None and set(asked) == {('b', 1), ('b', 2)}
    heartbeat.sampler.busy = set()
    assert silence(heartbeat, 20) == (9, 'worker 0, which watches the job, has been silent for 509 s: it hangs')


@pytest.mark.parametrize('letter, cause', [('S', 'it hangs'), ('T', 'it is stopped, by a signal or a debugger')])
@pytest.mark.parametrize('there', ['a', 'b'], ids=['this host', 'another'])
def test_a_silent_monitors_end_shows_earlier_findings(heartbeat, monkeypatch, there, letter, cause):
    monkeypatch.setattr(heartbeat_module, 'query_probe', lambda address: heartbeat.sampler({'pid': 1}))
    heartbeat.sampler.state = letter
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': there}, 'probes': [['b', 1]]})
    assert silence(heartbeat, 5) is None
    heartbeat.sampler.state = 'Z'
    assert silence(heartbeat, 1) is None
    assert heartbeat.death_reason() == 'worker 0, which watches the job, has been silent for 6 s: ' + cause


def test_a_monitor_killed_here_was_not_cut_off(heartbeat, monkeypatch):
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 5) is None
    monkeypatch.setattr(heartbeat_module, 'state_of', lambda process: '')
    assert silence(heartbeat, 1) is None
    assert heartbeat.death_reason() == 'worker 0, which watches the job, has been silent for 6 s: it hangs'


def test_silence_is_suspected_from_half_the_limit(heartbeat):
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 3) is None
    assert heartbeat.suspected_silence() is None
    assert silence(heartbeat, 2) is None
    assert heartbeat.suspected_silence() == 'worker 0, which watches the job, has been silent for 5 s: it hangs'


def test_a_monitor_that_died_recently_was_not_silent(heartbeat):
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 3) is None
    assert heartbeat.death_reason() == 'worker 0, which watches the job, died unexpectedly'


def test_a_cut_off_monitor_may_be_stopped(heartbeat, monkeypatch):
    answers = [heartbeat.sampler({'pid': 1})] * 2
    monkeypatch.setattr(heartbeat_module, 'query_probe', lambda address: answers.pop() if answers else None)
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'b'}, 'probes': [['b', 1]]})
    assert silence(heartbeat, 20)[1].endswith(
        's: it is stopped, a host hangs, or the network between it and this process is cut')
    assert not answers


def test_a_monitor_that_cannot_be_sampled_is_given_up(heartbeat, monkeypatch):
    heartbeat.sampler.busy = {1}
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'b'}})
    assert silence(heartbeat, 20)[0] == 6
    heartbeat.mark_heard()
    monkeypatch.setattr(heartbeat_module, 'query_probe', lambda address: None)
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'probes': [['b', 1]]})
    assert silence(heartbeat, 20)[0] == 6


def test_the_process_of_the_monitor_never_gives_it_up(heartbeat):
    heartbeat.handle_answer({'limit': 3, 'stall': 60, 'process': {'pid': os.getpid(), 'pid_space': 'a'}})
    heartbeat.sampler.busy = {os.getpid()}
    heartbeat.clock.now += 1.1  # the last answer of the monitor is recent
    heartbeat.due()
    heartbeat.clock.now += 7  # before the next one the script took the interpreter lock
    heartbeat.due()
    assert heartbeat.silence_reason() is None and not heartbeat.sees_monitor()


def test_a_monitor_in_a_container_may_share_the_id(heartbeat):
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': os.getpid(), 'pid_space': 'b'}})
    assert silence(heartbeat, 20)[0] == 6
