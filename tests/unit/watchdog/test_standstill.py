"""Workers that wait for each other, and the call in which they differ."""
import itertools
import json
import re

import pytest

from mxhybrid.watchdog import script as script_module
from mxhybrid.watchdog.call_log import MAX_CALLS, CallLog, RecentCalls, checked_calls, difference_of_calls
from mxhybrid.watchdog.script import AN_ARRAY, ScriptWatcher

from . import watching
from .watching import LIMITS, Watch

pytestmark = pytest.mark.both_pythons

FORWARD, STEP = 'a call of a network that is split', 'a step of a Trainer'

# ------------------------------------------------------------------------------------------ logs


def test_a_log_keeps_the_last_calls_and_their_numbers():
    log = CallLog()
    assert log.recent() == RecentCalls(1, []) and log.recent().last == 0
    for number in range(1, MAX_CALLS + 11):
        log.add('call %d' % (number % 7))
    recent = log.recent()
    assert (recent.first, recent.last, len(recent.names)) == (11, MAX_CALLS + 10, MAX_CALLS)
    assert recent.names[12 - recent.first] == 'call 5'
    assert log.times('call 1') == sum(number % 7 == 1 for number in range(1, MAX_CALLS + 11)) and log.times('none') == 0
    assert checked_calls(json.loads(json.dumps(recent))) == recent


def test_the_first_number_with_other_calls_is_the_difference():
    logs = {0: RecentCalls(1, ['a', 'b', 'c']), 2: RecentCalls(2, ['b', 'd', 'e', 'f']),
            1: RecentCalls(1, ['x', 'b', 'c', 'c']), 3: None}
    assert difference_of_calls(logs) == (
        'the first difference is call number 3: worker 0 made c, worker 1 made c, worker 2 made d')


@pytest.mark.parametrize('logs', [
    {}, {0: RecentCalls(1, ['a'])}, {0: RecentCalls(1, ['a']), 1: None},
    {0: RecentCalls(1, ['a']), 1: RecentCalls(1, ['a', 'b'])}, {0: RecentCalls(1, ['a']), 1: RecentCalls(9, ['b'])},
    {0: RecentCalls(1, []), 1: RecentCalls(1, ['b'])}])
def test_logs_without_a_difference(logs):
    assert difference_of_calls(logs) == ''


@pytest.mark.parametrize('value', [None, 5, [1], ['x', []], [1, 2], [1, [], 3]])
def test_a_value_that_is_not_a_log(value):
    with pytest.raises((TypeError, ValueError)):
        checked_calls(value)

# ------------------------------------------------------------------------------------------ failures


def beats(*names, waiting=AN_ARRAY, **more):
    """Return a heartbeat of a worker that has made these calls and waits."""
    return dict({'calls': len(names), 'call': names[-1], 'log': [1, list(names)], 'waiting': waiting}, **more)


def test_workers_waiting_after_other_calls_are_named(pair, caplog):
    failure = pair.wait(200, pair.peers, worker0=beats(FORWARD, FORWARD, STEP, location='train.py:9'),
                        worker1=beats(FORWARD, STEP, FORWARD))
    assert failure.reason == (
        'workers have waited for each other for 101 s: worker0 waits at train.py:9, after call number 3, %s; worker1 '
        'waits at train.py:1, after call number 3, %s; the first difference is call number 2: worker 0 made %s, '
        'worker 1 made %s; make the same calls, and the same backward passes, in the same order on every worker'
        % (STEP, FORWARD, FORWARD, STEP))
    assert failure.silent == []
    assert [text.split(' s: ')[0].rsplit(' ', 1)[1] for text in caplog.messages] == ['11', '21', '41', '81']


def test_workers_that_join_have_another_deadline(pair):
    joining = {'calls': 0, 'call': '', 'log': [1, []], 'waiting': AN_ARRAY}
    assert pair.wait(200, pair.peers, worker0=joining, worker1=joining) is None


def test_workers_that_wait_after_the_same_calls_end_too(pair):
    failure = pair.wait(200, pair.peers, worker0=beats(FORWARD), worker1=beats(FORWARD))
    assert failure.reason.startswith('workers have waited for each other for 101 s')
    assert 'difference' not in failure.reason


def test_a_worker_that_waits_while_another_has_ended(pair):
    pair.peers[1].has_ended = True
    failure = pair.wait(200, pair.peers, worker0=beats(STEP, waiting='votes'), worker1=beats(FORWARD, waiting=None))
    assert 'worker1 has ended its script, after call number 1, ' + FORWARD in failure.reason
    assert ('the first difference is call number 1: worker 0 made %s, worker 1 made %s' % (STEP, FORWARD)
            in failure.reason)


ERROR = 'got an error of MXNet after call number 1, a call: potrf'


@pytest.mark.parametrize('first, second, reason', [
    (beats('votes', waiting='votes'), beats(STEP, waiting=None),
     '.*worker0 waits at train.py:1, after call number 1, votes; worker1 computes at.*'),
    (beats(FORWARD, FORWARD, STEP, waiting=None), beats(FORWARD, STEP, waiting=None),
     'worker1 has kept the other workers waiting.*the first difference is call number 2.*'),
    (beats(FORWARD, STEP, waiting=None, failure=ERROR), beats(FORWARD, waiting=None),
     'worker1 has kept the other workers waiting.*; worker0 ' + ERROR),
    (beats(FORWARD), beats(FORWARD, failure=ERROR), '.*in the same order on every worker; worker1 ' + ERROR)],
    ids=['one computes', 'one is ahead', 'an error of the one ahead', 'an error of one of two that wait'])
def test_the_reason_says_what_both_workers_do(pair, first, second, reason):
    failure = pair.wait(200, pair.peers, worker0=first, worker1=second)
    assert re.fullmatch(reason, failure.reason), failure.reason


@pytest.mark.parametrize('first, second', [
    (beats(FORWARD), beats(FORWARD, waiting=None)), (beats(FORWARD), beats(FORWARD, busy=True)),
    (beats(FORWARD, waiting=None), beats(STEP, waiting=None))])
def test_a_worker_that_is_running_ends_nothing(pair, first, second):
    assert pair.wait(500, pair.peers, worker0=first, worker1=second) is None


def test_time_counts_from_the_last_change_on(pair):
    for line in range(20):
        mine = beats(FORWARD, location='train.py:%d' % line)
        assert pair.wait(90, pair.peers, worker0=mine, worker1=mine) is None


def test_without_a_limit_of_stalls_there_are_warnings_only(caplog, monkeypatch):
    monkeypatch.setattr(watching, 'LIMITS', LIMITS._replace(stall=0.0))
    watch = Watch(2, worker0='a', worker1='b')
    assert watch.wait(300, watch.peers, worker0=beats(FORWARD), worker1=beats(STEP)) is None
    assert caplog.records

# ------------------------------------------------------------------------------------------ the script of a process


def test_a_script_without_new_calls_is_idle():
    script = ScriptWatcher()
    assert [script.is_idle(calls, now) for calls, now in ((1, 0), (1, 2), (1, 3), (2, 4), (2, 6), (2, 7))] == [
        False, False, True, False, False, True]


PROGRAM = """
import os, threading, time
sys.path.insert(0, sys.argv[2])
import mxnet
from mxhybrid.watchdog.script import ScriptWatcher

def watch():
    script = ScriptWatcher()
    reasons = []
    for _ in range(5):
        reasons.append(str(script.waits_for(None, True)))
        time.sleep(1)
    print(*reasons, script.waits_for('votes', True), script.waits_for(None, False), sep='; ', flush=True)
    os._exit(0)
threading.Thread(target=watch).start()
"""
MXNET = 'import time\ndef wait():\n    time.sleep(60)\ndef compute():\n    while True: pass\n'


@pytest.mark.parametrize('body, waits', [
    ('mxnet.wait()', True), ('time.sleep(60)', False),
    ('threading.Thread(target=mxnet.compute, daemon=True).start(); mxnet.wait()', False)],
    ids=['in a library', 'in the script', 'while another thread computes'])
def test_the_reason_for_which_a_script_waits(run, body, waits, tmp_path):
    (tmp_path / 'mxnet').mkdir()
    (tmp_path / 'mxnet' / '__init__.py').write_text(MXNET)
    process = run(PROGRAM + body, tmp_path)
    *reasons, in_call, busy = process.communicate(timeout=60)[0].rstrip('\n').split('; ')
    # The script may enter the library after the first look; a verdict takes two.
    verdicts = set(reasons[2:])
    # One sample may miss that a thread computes, where the machine itself stood still.
    assert verdicts == {AN_ARRAY} if waits else 'None' in verdicts
    assert (in_call, busy) == ('votes', 'None')


@pytest.mark.parametrize('step, expected', [(0, AN_ARRAY), (1 << 20, None)])
def test_a_script_that_uses_files_goes_on(step, expected, monkeypatch):
    clock, moved = itertools.count(), itertools.count(0, step)
    monkeypatch.setattr(script_module, '_is_in_libraries', lambda: True)
    monkeypatch.setattr(script_module.proc, 'disk_bytes', lambda: next(moved))
    monkeypatch.setattr(script_module, 'sample_threads',
                        lambda pid: {'time_s': next(clock), 'threads': {'1': [0.0, 0.0, 0]}})
    script = ScriptWatcher()
    assert [script.waits_for(None, True) for _ in range(3)][-1] == expected
