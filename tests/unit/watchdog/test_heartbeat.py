"""What a process says and hears: a clock that counts only time awake, the first beat, the silence of the monitor."""
import os

import pytest
from hypothesis import given, strategies as st

from mxhybrid.watchdog import heartbeat as heartbeat_module
from mxhybrid.watchdog.heartbeat import AWAKE_S, AwakeClock, Heartbeat

from .watching import Seen, Time


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_a_clock_counts_only_what_lies_between_frequent_looks(gaps):
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


def test_the_first_beat_introduces_and_later_ones_do_not():
    heartbeat = Heartbeat(60, is_worker=True)
    assert heartbeat.due()
    first = heartbeat.message(3, 'push', None)
    assert first['process']['pid'] == os.getpid() and first['calls'] == 3
    assert first['location'].startswith('test_heartbeat.py:')
    assert not heartbeat.due()
    assert 'process' not in heartbeat.message(3, 'push', None)


def test_a_server_says_no_more_than_that_it_lives():
    heartbeat = Heartbeat(60, is_worker=False)
    heartbeat.message(0, '', None)
    assert heartbeat.message(0, '', None) == {}


def test_silence_of_the_monitor_counts_by_its_own_limit(monkeypatch):
    time = Time()
    monkeypatch.setattr(heartbeat_module.time, 'monotonic', time)
    heartbeat = Heartbeat(60, is_worker=True)
    heartbeat._clock = AwakeClock(time)
    heartbeat.handle_answer({'limit': 5})
    for _ in range(5):
        time.now += 1
        heartbeat.due()
        assert heartbeat.silence_reason() is None
    time.now += 1
    heartbeat.due()
    assert heartbeat.silence_reason().startswith('worker 0, which watches the job, has said nothing for 6 s: ')
    heartbeat.mark_heard()
    assert heartbeat.silence_reason() is None
    time.now += 500  # this process was stopped
    heartbeat.due()
    assert heartbeat.silence_reason() is None


# ------------------------------------------------------------------------------------------ looks at the monitor


@pytest.fixture
def heartbeat(monkeypatch):
    """A process that misses the monitor, and what is to be seen of the monitor's process."""
    clock = Time()
    monkeypatch.setattr(heartbeat_module.time, 'monotonic', clock)
    heartbeat = Heartbeat(60, is_worker=True)
    heartbeat._clock = AwakeClock(clock)
    heartbeat.clock, heartbeat.see_monitor = clock, Seen(clock)
    monkeypatch.setattr(heartbeat_module, 'sample_process', heartbeat.see_monitor)
    monkeypatch.setattr(heartbeat_module, 'state_of', lambda process: 'S' if process['pid_space'] == 'a' else '')
    monkeypatch.setattr(heartbeat_module, 'pid_space', lambda: 'a')
    return heartbeat


def silence(heartbeat, seconds):
    """The first that the heartbeat has to say within some seconds, and when."""
    for second in range(seconds):
        heartbeat.clock.now += 1
        heartbeat.due()
        text = heartbeat.silence_reason()
        if text is not None:
            return second + 1, text
    return None


def test_a_monitor_that_computes_is_waited_for_and_in_the_end_given_up(heartbeat):
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    heartbeat.see_monitor.busy = {1}
    assert silence(heartbeat, 59) is None
    second, text = silence(heartbeat, 10)
    assert second <= 3 and text.startswith('worker 0, which watches the job, has said nothing for')
    assert text.endswith('a long sort or pickle.loads, say')


def test_a_monitor_that_hangs_is_given_up_as_soon_as_ever(heartbeat):
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 20) == (6, 'worker 0, which watches the job, has said nothing for 6 s: it hangs')
    heartbeat.mark_heard()
    heartbeat.see_monitor.busy = {1}
    assert silence(heartbeat, 30) is None
    heartbeat.see_monitor.busy = set()
    assert silence(heartbeat, 20)[0] == 6


@pytest.mark.parametrize('stall', [0, 600])
def test_a_monitor_on_another_host_is_seen_by_its_witnesses(heartbeat, monkeypatch, stall):
    asked = []

    def answer(address):
        asked.append(address)
        return heartbeat.see_monitor({'pid': 1}) if address == ('b', 2) else None

    monkeypatch.setattr(heartbeat_module, 'query_probe', answer)
    heartbeat.handle_answer({'limit': 8, 'stall': stall, 'process': {'pid': 1, 'pid_space': 'b'}, 'probes': [['b', 1], ['b', 2]]})
    heartbeat.see_monitor.busy = {1}
    assert silence(heartbeat, 500) is None and set(asked) == {('b', 1), ('b', 2)}
    heartbeat.see_monitor.busy = set()
    assert silence(heartbeat, 20) == (9, 'worker 0, which watches the job, has said nothing for 509 s: it hangs')


@pytest.mark.parametrize('letter, cause', [('S', 'it hangs'), ('T', 'it is stopped, by a signal or a debugger')])
@pytest.mark.parametrize('there', ['a', 'b'], ids=['this host', 'another'])
def test_who_learns_that_a_silent_monitor_was_ended_says_what_was_seen_before(heartbeat, monkeypatch, there, letter, cause):
    monkeypatch.setattr(heartbeat_module, 'query_probe', lambda address: heartbeat.see_monitor({'pid': 1}))
    heartbeat.see_monitor.state = letter
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': there}, 'probes': [['b', 1]]})
    assert silence(heartbeat, 5) is None
    heartbeat.see_monitor.state = 'Z'
    assert silence(heartbeat, 1) is None
    assert heartbeat.death_reason() == 'worker 0, which watches the job, has said nothing for 6 s: ' + cause


def test_a_monitor_that_was_ended_on_this_host_was_not_cut_off(heartbeat, monkeypatch):
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 5) is None
    monkeypatch.setattr(heartbeat_module, 'state_of', lambda process: '')
    assert silence(heartbeat, 1) is None
    assert heartbeat.death_reason() == 'worker 0, which watches the job, has said nothing for 6 s: it hangs'


def test_a_monitor_that_died_of_late_was_not_silent(heartbeat):
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'a'}})
    assert silence(heartbeat, 3) is None
    assert heartbeat.death_reason() == 'worker 0, which watches the job, died without a word'


def test_a_monitor_that_was_seen_before_its_host_was_cut_off_may_be_either(heartbeat, monkeypatch):
    answers = [heartbeat.see_monitor({'pid': 1})] * 2
    monkeypatch.setattr(heartbeat_module, 'query_probe', lambda address: answers.pop() if answers else None)
    heartbeat.handle_answer({'limit': 8, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'b'}, 'probes': [['b', 1]]})
    assert silence(heartbeat, 20)[1].endswith('s: it is stopped, a host hangs, or the network between it and this process '
                                          'is cut')
    assert not answers


def test_a_monitor_that_nobody_sees_is_given_up(heartbeat, monkeypatch):
    heartbeat.see_monitor.busy = {1}
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': 1, 'pid_space': 'b'}})
    assert silence(heartbeat, 20)[0] == 6
    heartbeat.mark_heard()
    monkeypatch.setattr(heartbeat_module, 'query_probe', lambda address: None)
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'probes': [['b', 1]]})
    assert silence(heartbeat, 20)[0] == 6


def test_the_monitors_own_process_is_no_witness_of_it_and_waits_for_it(heartbeat):
    heartbeat.handle_answer({'limit': 3, 'stall': 60, 'process': {'pid': os.getpid(), 'pid_space': 'a'}})
    heartbeat.see_monitor.busy = {os.getpid()}
    heartbeat.clock.now += 1.1  # its last answer has come only just
    heartbeat.due()
    heartbeat.clock.now += 7  # before the next one the script took the interpreter lock
    heartbeat.due()
    assert heartbeat.silence_reason() is None and not heartbeat.sees_monitor()


def test_a_monitor_in_another_container_may_have_the_same_process_id(heartbeat):
    heartbeat.handle_answer({'limit': 5, 'stall': 60, 'process': {'pid': os.getpid(), 'pid_space': 'b'}})
    assert silence(heartbeat, 20)[0] == 6
