"""What a process says and hears: a clock that counts only time awake, the first beat, the silence of the monitor."""
import os

import pytest
from hypothesis import given, strategies as st

from mxhybrid.watchdog import beats
from mxhybrid.watchdog.beats import AWAKE_S, AwakeClock, Pulse

from .watching import Seen, Time

pytestmark = pytest.mark.both_pythons


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
    pulse = Pulse(60, is_worker=True)
    assert pulse.due()
    first = pulse.beat(3, 'push', None)
    assert first['me']['pid'] == os.getpid() and first['calls'] == 3
    assert first['at'].startswith('test_beats.py:')
    assert not pulse.due()
    assert 'me' not in pulse.beat(3, 'push', None)


def test_a_server_says_no_more_than_that_it_lives():
    pulse = Pulse(60, is_worker=False)
    pulse.beat(0, '', None)
    assert pulse.beat(0, '', None) == {}


def test_silence_of_the_monitor_counts_by_its_own_limit(monkeypatch):
    time = Time()
    monkeypatch.setattr(beats.time, 'monotonic', time)
    pulse = Pulse(60, is_worker=True)
    pulse._clock = AwakeClock(time)
    pulse.answered({'limit': 5})
    for _ in range(5):
        time.now += 1
        pulse.due()
        assert pulse.silence() is None
    time.now += 1
    pulse.due()
    assert pulse.silence().startswith('worker 0, which watches the job, has said nothing for 6 s: ')
    pulse.heard()
    assert pulse.silence() is None
    time.now += 500  # this process was stopped
    pulse.due()
    assert pulse.silence() is None


# ------------------------------------------------------------------------------------------ looks at the monitor


@pytest.fixture
def pulse(monkeypatch):
    """A process that misses the monitor, and what is to be seen of the monitor's process."""
    clock = Time()
    monkeypatch.setattr(beats.time, 'monotonic', clock)
    pulse = Pulse(60, is_worker=True)
    pulse._clock = AwakeClock(clock)
    pulse.clock, pulse.see_monitor = clock, Seen(clock)
    monkeypatch.setattr(beats, 'look_at', pulse.see_monitor)
    monkeypatch.setattr(beats, 'state_of', lambda process: 'S' if process['pid_space'] == 'a' else '')
    monkeypatch.setattr(beats, 'pid_space', lambda: 'a')
    return pulse


def silence(pulse, seconds):
    """The first that the pulse has to say within some seconds, and when."""
    for second in range(seconds):
        pulse.clock.now += 1
        pulse.due()
        text = pulse.silence()
        if text is not None:
            return second + 1, text
    return None


def test_a_monitor_that_computes_is_waited_for_and_in_the_end_given_up(pulse):
    pulse.answered({'limit': 5, 'stall': 60, 'me': {'pid': 1, 'pid_space': 'a'}})
    pulse.see_monitor.busy = {1}
    assert silence(pulse, 59) is None
    second, text = silence(pulse, 10)
    assert second <= 3 and text.startswith('worker 0, which watches the job, has said nothing for')
    assert text.endswith('a long sort or pickle.loads, say')


def test_a_monitor_that_hangs_is_given_up_as_soon_as_ever(pulse):
    pulse.answered({'limit': 5, 'stall': 60, 'me': {'pid': 1, 'pid_space': 'a'}})
    assert silence(pulse, 20) == (6, 'worker 0, which watches the job, has said nothing for 6 s: it hangs')
    pulse.heard()
    pulse.see_monitor.busy = {1}
    assert silence(pulse, 30) is None
    pulse.see_monitor.busy = set()
    assert silence(pulse, 20)[0] == 6


@pytest.mark.parametrize('stall', [0, 600])
def test_a_monitor_on_another_host_is_seen_by_its_witnesses(pulse, monkeypatch, stall):
    asked = []

    def answer(address):
        asked.append(address)
        return pulse.see_monitor({'pid': 1}) if address == ('b', 2) else None

    monkeypatch.setattr(beats, 'ask_witness', answer)
    pulse.answered({'limit': 8, 'stall': stall, 'me': {'pid': 1, 'pid_space': 'b'}, 'witnesses': [['b', 1], ['b', 2]]})
    pulse.see_monitor.busy = {1}
    assert silence(pulse, 500) is None and set(asked) == {('b', 1), ('b', 2)}
    pulse.see_monitor.busy = set()
    assert silence(pulse, 20) == (9, 'worker 0, which watches the job, has said nothing for 509 s: it hangs')


@pytest.mark.parametrize('letter, cause', [('S', 'it hangs'), ('T', 'it is stopped, by a signal or a debugger')])
@pytest.mark.parametrize('there', ['a', 'b'], ids=['this host', 'another'])
def test_who_learns_that_a_silent_monitor_was_ended_says_what_was_seen_before(pulse, monkeypatch, there, letter, cause):
    monkeypatch.setattr(beats, 'ask_witness', lambda address: pulse.see_monitor({'pid': 1}))
    pulse.see_monitor.state = letter
    pulse.answered({'limit': 8, 'stall': 60, 'me': {'pid': 1, 'pid_space': there}, 'witnesses': [['b', 1]]})
    assert silence(pulse, 5) is None
    pulse.see_monitor.state = 'Z'
    assert silence(pulse, 1) is None
    assert pulse.death() == 'worker 0, which watches the job, has said nothing for 6 s: ' + cause


def test_a_monitor_that_was_ended_on_this_host_was_not_cut_off(pulse, monkeypatch):
    pulse.answered({'limit': 8, 'stall': 60, 'me': {'pid': 1, 'pid_space': 'a'}})
    assert silence(pulse, 5) is None
    monkeypatch.setattr(beats, 'state_of', lambda process: '')
    assert silence(pulse, 1) is None
    assert pulse.death() == 'worker 0, which watches the job, has said nothing for 6 s: it hangs'


def test_a_monitor_that_died_of_late_was_not_silent(pulse):
    pulse.answered({'limit': 8, 'stall': 60, 'me': {'pid': 1, 'pid_space': 'a'}})
    assert silence(pulse, 3) is None
    assert pulse.death() == 'worker 0, which watches the job, died without a word'


def test_a_monitor_that_was_seen_before_its_host_was_cut_off_may_be_either(pulse, monkeypatch):
    answers = [pulse.see_monitor({'pid': 1})] * 2
    monkeypatch.setattr(beats, 'ask_witness', lambda address: answers.pop() if answers else None)
    pulse.answered({'limit': 8, 'stall': 60, 'me': {'pid': 1, 'pid_space': 'b'}, 'witnesses': [['b', 1]]})
    assert silence(pulse, 20)[1].endswith('s: it is stopped, a host hangs, or the network between it and this process '
                                          'is cut')
    assert not answers


def test_a_monitor_that_nobody_sees_is_given_up(pulse, monkeypatch):
    pulse.see_monitor.busy = {1}
    pulse.answered({'limit': 5, 'stall': 60, 'me': {'pid': 1, 'pid_space': 'b'}})
    assert silence(pulse, 20)[0] == 6
    pulse.heard()
    monkeypatch.setattr(beats, 'ask_witness', lambda address: None)
    pulse.answered({'limit': 5, 'stall': 60, 'witnesses': [['b', 1]]})
    assert silence(pulse, 20)[0] == 6


def test_the_monitors_own_process_is_no_witness_of_it_and_waits_for_it(pulse):
    pulse.answered({'limit': 3, 'stall': 60, 'me': {'pid': os.getpid(), 'pid_space': 'a'}})
    pulse.see_monitor.busy = {os.getpid()}
    pulse.clock.now += 1.1  # its last answer has come only just
    pulse.due()
    pulse.clock.now += 7  # before the next one the script took the interpreter lock
    pulse.due()
    assert pulse.silence() is None and not pulse.is_beside_the_monitor()


def test_a_monitor_in_another_container_may_have_the_same_process_id(pulse):
    pulse.answered({'limit': 5, 'stall': 60, 'me': {'pid': os.getpid(), 'pid_space': 'b'}})
    assert silence(pulse, 20)[0] == 6
