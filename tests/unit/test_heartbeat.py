"""Beats: who is silent, who does not come, who does not go on; and a clock that counts only time awake."""
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxhybrid import heartbeat
from mxhybrid.heartbeat import AWAKE_S, GATHER_S, AwakeClock, Limits, Pulse, Vigil

LIMITS = Limits(start=30.0, silence=10.0, stall=100.0)


class Time:
    """A clock set by hand; `pass_` goes on in steps short enough to count in full."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Watch:
    """A vigil over processes that beat when told to."""

    def __init__(self, workers, **hosts):
        self.time = Time()
        self.vigil = Vigil(workers, LIMITS, self.time)
        self.peers = []
        for name, host in hosts.items():
            who = {'name': name, 'rank': int(name[-1]) if name.startswith('worker') else -1}
            self.vigil.joined(who)
            self.peers.append(who)
            self.beat(who, me={'pid': 2 ** 22 + len(self.peers), 'host': host, 'place': host, 'started': '1'})

    def beat(self, who, calls=0, call='', at='train.py:1', **more):
        self.vigil.heard(who)
        return self.vigil.beat(who, dict(more, calls=calls, call=call, at=at, waiting=None))

    def wait(self, seconds, beating=(), **beat):
        """Let time pass while some beat every second; the first verdict, if there is one."""
        for _ in range(int(seconds)):
            self.time.now += 1
            for who in beating:
                self.beat(who, **beat.get(who['name'], {}))
            verdict = self.vigil.look(self.peers)
            if verdict is not None:
                return verdict
        return None


# ------------------------------------------------------------------------------------------ the clock


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_a_clock_counts_only_what_lies_between_frequent_looks(gaps):
    time = Time()
    clock = AwakeClock(time)
    for gap in gaps:
        time.now += gap
        clock.look()
    assert clock.seconds == pytest.approx(sum(min(gap, AWAKE_S) for gap in gaps))


def test_a_clock_that_goes_back_stands_still():
    time = Time()
    clock = AwakeClock(time)
    time.now = -5
    assert clock.look() == 0
    time.now = -4
    assert clock.look() == 1


# ------------------------------------------------------------------------------------------ silence


def test_a_silent_worker_is_named_with_seconds_and_likely_causes():
    watch = Watch(2, worker0='a', worker1='b')
    first, second = watch.peers
    assert watch.wait(LIMITS.silence + GATHER_S, [first]) is None
    verdict = watch.wait(1, [first])
    assert verdict.text == ('worker1 has said nothing for 13 s: it is stopped, its host hangs, or the network to it is '
                            'cut')
    assert [process['host'] for process in verdict.silent] == ['b']


def test_any_message_counts_as_a_sign_of_life():
    watch = Watch(2, worker0='a', worker1='b')
    for _ in range(3):
        assert watch.wait(LIMITS.silence, watch.peers[:1]) is None
        watch.vigil.heard(watch.peers[1])
    assert watch.wait(60, watch.peers) is None


def test_a_host_of_which_nobody_says_anything_is_named_as_one():
    watch = Watch(4, worker0='a', worker1='a', worker2='b', worker3='b', server='b')
    verdict = watch.wait(60, watch.peers[:2])
    assert verdict.text.startswith('host b (worker2, worker3, server) has said nothing for ')
    assert verdict.text.endswith('it hangs, or its network is cut')
    assert len(verdict.silent) == 3


def test_of_a_host_that_lives_only_the_silent_are_named():
    watch = Watch(4, worker0='a', worker1='a', worker2='b', worker3='b')
    verdict = watch.wait(60, watch.peers[:3])
    assert verdict.text.startswith('worker3 has said nothing') and 'worker2' not in verdict.text


def test_where_all_other_hosts_are_silent_the_own_network_is_blamed(monkeypatch):
    monkeypatch.setattr(heartbeat.socket, 'gethostname', lambda: 'a')
    watch = Watch(3, worker0='a', worker1='b', worker2='c')
    verdict = watch.wait(60, watch.peers[:1])
    assert verdict.text.startswith('all other hosts have said nothing for')
    assert 'the network of host a, where worker 0 runs, is cut' in verdict.text


def test_a_monitor_that_was_stopped_blames_nobody():
    watch = Watch(2, worker0='a', worker1='b')
    watch.time.now += 1000
    assert watch.vigil.look(watch.peers) is None
    assert watch.wait(60, watch.peers) is None


def test_who_has_left_may_be_silent():
    watch = Watch(2, worker0='a', worker1='b')
    watch.peers[1]['bye'] = True
    assert watch.wait(60, watch.peers[:1]) is None


# ------------------------------------------------------------------------------------------ absence


def test_a_worker_that_does_not_come_is_named():
    watch = Watch(3, worker0='a', worker2='b')
    verdict = watch.wait(60, watch.peers)
    assert verdict.text == 'worker 1 did not come within 30 s'


def test_a_child_that_does_not_come_is_named_and_one_that_came_is_not():
    watch = Watch(1, worker0='a')
    watch.vigil.expect(watch.peers[0], [['server', 71], ['scheduler', 72]])
    server = {'name': 'server', 'rank': -1}
    watch.vigil.joined(server)
    watch.peers.append(server)
    watch.beat(server, me={'pid': 71, 'host': 'a', 'place': 'a', 'started': '1'})
    assert watch.vigil.has_parent(server) and not watch.vigil.has_parent(watch.peers[0])
    verdict = watch.wait(60, watch.peers)
    assert verdict.text == 'the scheduler with pid 72 on host a did not come within 30 s'


def test_a_child_that_is_faster_than_what_its_parent_says_is_there():
    watch = Watch(1, worker0='a', server='a')
    watch.beat(watch.peers[1], me={'pid': 71, 'host': 'a', 'place': 'a', 'started': '1'})
    watch.vigil.expect(watch.peers[0], [['server', 71]])
    assert watch.vigil.has_parent(watch.peers[1])
    assert watch.wait(100, watch.peers) is None


# ------------------------------------------------------------------------------------------ not going on


def test_a_worker_that_is_busy_for_all_is_told_of_but_ends_no_job(caplog):
    watch = Watch(2, worker0='a', worker1='a')
    with caplog.at_level(logging.WARNING, 'mxhybrid.heartbeat'):
        assert watch.wait(500, watch.peers, worker0={'busy': True}, worker1={'calls': 1}) is None
    assert caplog.records and all('worker0 has not come' in record.getMessage() for record in caplog.records)
    assert watch.wait(50, watch.peers, worker0={'busy': False}, worker1={'calls': 1}) is None  # it counts anew
    verdict = watch.wait(500, watch.peers, worker0={'busy': False}, worker1={'calls': 1})
    assert verdict.text.startswith('worker0 has not come')


def test_a_worker_for_which_the_others_wait_is_named_with_its_place_at_doubled_intervals(caplog):
    watch = Watch(3, worker0='a', worker1='a', worker2='b')
    ahead = {'calls': 9, 'call': 'push of net_dense0_weight'}
    with caplog.at_level(logging.WARNING, 'mxhybrid.heartbeat'):
        verdict = watch.wait(200, watch.peers, worker0=ahead, worker1=dict(ahead, calls=8),
                             worker2={'calls': 5, 'at': 'train.py:81 in evaluate'})
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0] == ('worker2 has not come to the calls in which others wait (push of net_dense0_weight, number 9; '
                        'it made 5) for 11 s: it is at train.py:81 in evaluate')
    assert [text.split(' s: ')[0].rsplit(' ', 1)[1] for text in texts] == ['11', '21', '41', '81']
    assert verdict.text.startswith('worker2 has not come') and '101 s' in verdict.text and verdict.silent == []


def test_a_worker_that_catches_up_is_not_missed_any_more(caplog):
    watch = Watch(2, worker0='a', worker1='b')
    with caplog.at_level(logging.WARNING, 'mxhybrid.heartbeat'):
        for calls in range(20):
            assert watch.wait(9, watch.peers, worker0={'calls': calls + 1}, worker1={'calls': calls}) is None
    assert not caplog.records


def test_equal_numbers_of_calls_are_no_stall():
    watch = Watch(2, worker0='a', worker1='b')
    assert watch.wait(500, watch.peers, worker0={'calls': 4}, worker1={'calls': 4}) is None


def test_a_worker_whose_script_has_ended_is_not_missed():
    watch = Watch(2, worker0='a', worker1='b')
    watch.peers[1]['done'] = True
    assert watch.wait(500, watch.peers, worker0={'calls': 4}, worker1={'calls': 3}) is None


# ------------------------------------------------------------------------------------------ a process


def test_the_first_beat_introduces_and_later_ones_do_not():
    pulse = Pulse(60, is_worker=True)
    assert pulse.due()
    first = pulse.beat(3, 'push', None)
    assert first['me']['pid'] == os.getpid() and first['calls'] == 3
    assert first['at'].startswith('test_heartbeat.py:')
    assert not pulse.due()
    assert 'me' not in pulse.beat(3, 'push', None)


def test_a_server_says_no_more_than_that_it_lives():
    pulse = Pulse(60, is_worker=False)
    pulse.beat(0, '', None)
    assert pulse.beat(0, '', None) == {}


def test_silence_of_the_monitor_counts_by_its_own_limit(monkeypatch):
    time = Time()
    monkeypatch.setattr(heartbeat.time, 'monotonic', time)
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


@pytest.fixture
def sleeper():
    """A process, and how it introduced itself."""
    program = ('import json, sys; from mxhybrid.heartbeat import introduction; '
               'print(json.dumps(introduction()), flush=True); sys.stdin.read()')
    process = subprocess.Popen([sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process, json.loads(process.stdout.readline())
    process.kill()
    process.communicate()


def test_a_stopped_process_of_this_machine_is_recognised_and_can_be_ended(sleeper):
    process, known = sleeper
    assert heartbeat.state_of(known) in ('S', 'R')
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert heartbeat.state_of(known) == 'T'
    heartbeat.end_processes([known])
    assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize('change', [{'place': 'elsewhere'}, {'started': '1'}])
def test_a_process_of_another_machine_or_time_is_spared(sleeper, change):
    process, known = sleeper
    heartbeat.end_processes([dict(known, **change), {}, None, {'pid': 'x', 'place': 1}])
    assert heartbeat.state_of(known) in ('S', 'R') and process.poll() is None


@pytest.mark.parametrize('line, text', [(81, 'train.py:81 in main'), (None, 'train.py:? in main')])
def test_the_place_of_a_script_may_have_no_line(monkeypatch, line, text):
    code = types.SimpleNamespace(co_filename='/home/me/train.py', co_name='main')
    frame = types.SimpleNamespace(f_code=code, f_lineno=line, f_back=None)
    monkeypatch.setattr(sys, '_current_frames', lambda: {threading.main_thread().ident: frame})
    assert heartbeat.place_of_script() == text


def test_nobody_ends_itself():
    heartbeat.end_processes([heartbeat.introduction()])
