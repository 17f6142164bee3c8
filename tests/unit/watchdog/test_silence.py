"""Monitor and lifelines: processes that are stopped or whose messages come late."""
import os
import signal
import threading
import time

import pytest

from mxhybrid.base.settings import Limits
from mxhybrid.watchdog import heartbeat as heartbeat_module, monitor as monitor_module

from ...helpers.obedient import WITHOUT_MXNET
from ...helpers.waiting import until
from .members import CHILD, LIMIT_S, SERVER, call, check_aborted, last_words, meet

pytestmark = pytest.mark.both_pythons

#: Short enough for a test, and still more than a process that waits for a busy machine needs.
LIMITS = Limits(start=20, silence=4, stall=0)


def test_a_stopped_process_ends_the_job(job, monkeypatch):
    monkeypatch.setattr('mxhybrid.watchdog.failure_detector.GATHER_S', 0.5)
    monitor, first, second, third = job(3, limits=LIMITS)
    meet(first, second, third)
    os.kill(second.process.pid, signal.SIGSTOP)
    check_aborted('because worker 1 has been silent for', first, third)
    assert 'it is stopped, by a signal or a debugger' in monitor.failure
    second.process.wait(LIMIT_S)
    assert second.process.returncode == -signal.SIGKILL


def test_a_briefly_stopped_process_goes_on(job):
    monitor, first, second = job(2, limits=LIMITS)
    meet(first, second)
    os.kill(second.process.pid, signal.SIGSTOP)
    assert first.silent(2.5)
    os.kill(second.process.pid, signal.SIGCONT)
    assert first.silent(LIMITS.silence)
    call(second)
    call(first)
    assert monitor.failure is None


def test_an_answer_while_python_stood_still_counts(job, monitor_process):
    process, address = monitor_process(silence_s=2.5)
    first, second = job(2, address=address)
    meet(first, second)
    # Longer than a clock counts, and together with the second between two heartbeats longer than the limit.
    first.do('lose_the_lock(%g)' % (heartbeat_module.AWAKE_S + 0.2))
    assert first.silent(2)
    call(first)
    assert process.poll() is None


def test_a_stopped_monitor_ends_all_and_is_ended(job, monitor_process):
    process, address = monitor_process()
    members = job(2, address=address)
    meet(*members)
    os.kill(process.pid, signal.SIGSTOP)
    said = [last_words(member) for member in members]
    assert all('because worker 0, which watches the job, has been silent for' in text for text in said), said
    # A process that learns of it after the other has killed the monitor reports the state that it sampled before.
    assert any('it is stopped, by a signal or a debugger' in text for text in said), said
    assert process.wait(LIMIT_S) == -signal.SIGKILL


SERVER_ENDS = '[mxhybrid] a server ends, because worker 0, which watches the job, has been silent'


def test_a_stopped_monitors_child_writes_the_reason(monitor_process):
    process, _ = monitor_process(CHILD, WITHOUT_MXNET + SERVER)
    assert process.stdout.readline() == 'heard of the monitor\n'
    os.kill(process.pid, signal.SIGSTOP)
    said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == -signal.SIGKILL
    assert said.startswith(SERVER_ENDS) and 'it is stopped, by a signal or a debugger' in said


def test_the_killer_of_a_monitor_writes_the_reason(run, monitor_process):
    process, address = monitor_process()
    stubborn = SERVER.replace("print('heard", "line.before_leaving = lambda: time.sleep(600)\nprint('heard")
    member = run(stubborn, *address)
    assert member.stdout.readline() == 'heard of the monitor\n'
    os.kill(process.pid, signal.SIGSTOP)
    assert member.communicate(timeout=LIMIT_S)[1].startswith(SERVER_ENDS)
    assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_a_long_stopped_monitor_blames_the_stop(job, monkeypatch):
    clock, skipped_s = time.monotonic, [0.0]
    monkeypatch.setattr(heartbeat_module.time, 'monotonic', lambda: clock() + skipped_s[0])
    monitor, first, second = job(2, limits=LIMITS)
    until(lambda: len(monitor.peers()) == 2)  # a process that is not admitted yet would count as a slow stranger
    skipped_s[0] = 1000.0
    assert first.silent(LIMITS.silence)
    call(second)
    call(first)
    assert monitor.failure is None


STARTED = "line.send({'servers': [['server', %d]]})"
SERVER_DIED = "line.send({'server_died': 'the server was killed by SIGKILL'})"


def test_the_parent_of_a_server_reports_how_it_died(job, monkeypatch):
    monkeypatch.setattr(monitor_module, 'PARENT_S', LIMIT_S)
    _, parent, child = job(1, 1)
    parent.do(STARTED % child.process.pid)
    child.process.kill()
    parent.say(SERVER_DIED)
    check_aborted('because the server was killed by SIGKILL', parent)


def test_messages_from_before_an_end_are_handled_before_it(job, monkeypatch):
    monitor, parent, child = job(1, 1)
    busy, free, look = threading.Event(), threading.Event(), monitor._check_processes

    def look_late():
        busy.set()
        free.wait(LIMIT_S)
        look()
    monkeypatch.setattr(monitor, '_check_processes', look_late)
    assert busy.wait(LIMIT_S)
    child.process.kill()
    child.process.wait(LIMIT_S)
    # Both are there when the monitor gets to them, the end first.
    parent.do(STARTED % child.process.pid)
    parent.do(SERVER_DIED)
    call(parent)
    free.set()
    check_aborted('because the server was killed by SIGKILL', parent)


def test_an_unexplained_death_of_a_server_is_reported(job):
    _, parent, child = job(1, 1)
    parent.do(STARTED % child.process.pid)
    child.process.kill()
    check_aborted('because server 0 died unexpectedly', parent)
