"""Monitor and lifelines: processes that are stopped or whose messages come late."""
import os
import signal
import threading
import time

import pytest

from mxhybrid.base.settings import Limits
from mxhybrid.watchdog import heartbeat as heartbeat_module, monitor as monitor_module
from mxhybrid.watchdog.monitor import Monitor

from ...helpers.obedient import run_python
from .members import CHILD, LIMIT_S, MONITOR, SECRET, SERVER, WAIT, aborted, last_words, met

pytestmark = pytest.mark.both_pythons

#: Short enough for a test, and still more than a process that waits for a busy machine needs.
LIMITS = Limits(start=20, silence=4, stall=0)


def test_a_stopped_process_ends_the_job(job, monkeypatch):
    monkeypatch.setattr('mxhybrid.watchdog.failure_detector.GATHER_S', 0.5)
    monitor = Monitor('127.0.0.1', 3, 0, SECRET, LIMITS)
    first, second, third = job(3, address=monitor.address)
    assert met(first, second, third)
    os.kill(second.process.pid, signal.SIGSTOP)
    for member in (first, third):
        assert aborted(member, 'because worker 1 has been silent for')
    assert 'it is stopped, by a signal or a debugger' in monitor.failure
    second.process.wait(LIMIT_S)
    assert second.process.returncode == -signal.SIGKILL


def test_a_briefly_stopped_process_goes_on(job):
    monitor = Monitor('127.0.0.1', 2, 0, SECRET, LIMITS)
    first, second = job(2, address=monitor.address)
    assert met(first, second)
    os.kill(second.process.pid, signal.SIGSTOP)
    assert first.silent(2.5)
    os.kill(second.process.pid, signal.SIGCONT)
    assert first.silent(LIMITS.silence)
    assert [second.ask('call'), first.ask('call')] == ['ok', 'ok']
    assert monitor.failure is None


def test_an_answer_while_python_stood_still_counts(job):
    root = run_python(MONITOR.replace('silence=4', 'silence=2.5') + WAIT)
    try:
        host, port = root.stdout.readline().split()
        first, second = job(2, address=(host, int(port)))
        assert met(first, second)
        # Longer than a clock counts, and together with the second between two heartbeats longer than the limit.
        assert first.ask('lose_the_lock %g' % (heartbeat_module.AWAKE_S + 0.2)) == 'lost it'
        assert first.silent(2) and first.ask('call') == 'ok'
        assert root.poll() is None
    finally:
        root.kill()
        root.communicate()


def test_a_stopped_monitor_ends_all_and_is_ended(job):
    root = run_python(MONITOR + WAIT)
    try:
        host, port = root.stdout.readline().split()
        first, second = job(2, address=(host, int(port)))
        assert met(first, second)
        os.kill(root.pid, signal.SIGSTOP)
        said = [last_words(member) for member in (first, second)]
        assert all('because worker 0, which watches the job, has been silent for' in text for text in said), said
        # A process that learns of it after the other has killed the monitor reports the state that it sampled before.
        assert any('it is stopped, by a signal or a debugger' in text for text in said), said
        assert root.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        root.kill()
        root.communicate()


def test_a_stopped_monitors_child_writes_the_reason():
    root = run_python(MONITOR + CHILD + WAIT, SERVER)
    try:
        assert [root.stdout.readline() for _ in range(2)][1] == 'heard of the monitor\n'
        os.kill(root.pid, signal.SIGSTOP)
        said = root.communicate(timeout=LIMIT_S)[1]
        assert root.returncode == -signal.SIGKILL
        assert said.startswith('[mxhybrid] a server ends, because worker 0, which watches the job, has been silent')
        assert 'it is stopped, by a signal or a debugger' in said
    finally:
        root.kill()
        root.communicate()


def test_the_killer_of_a_monitor_writes_the_reason():
    root = run_python(MONITOR + WAIT)
    try:
        stubborn = SERVER.replace("print('heard", "line.before_leaving = lambda: time.sleep(600)\nprint('heard")
        member = run_python(stubborn, *root.stdout.readline().split())
        assert member.stdout.readline() == 'heard of the monitor\n'
        os.kill(root.pid, signal.SIGSTOP)
        said = member.communicate(timeout=LIMIT_S)[1]
        assert said.startswith('[mxhybrid] a server ends, because worker 0, which watches the job, has been silent')
        assert root.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        root.kill()
        root.communicate()


def test_a_long_stopped_monitor_blames_the_stop(job, monkeypatch):
    monkeypatch.setattr(heartbeat_module.time, 'monotonic', Skipping())
    monitor = Monitor('127.0.0.1', 2, 0, SECRET, LIMITS)
    first, second = job(2, address=monitor.address)
    while len(monitor.peers()) < 2:  # a process that is not admitted yet would count as a slow stranger
        time.sleep(0.01)
    heartbeat_module.time.monotonic.skip(1000)
    assert first.silent(LIMITS.silence)
    assert [second.ask('call'), first.ask('call')] == ['ok', 'ok']
    assert monitor.failure is None


class Skipping:
    """The clock of a process that lost time."""

    def __init__(self):
        self._clock, self._skipped = time.monotonic, 0.0

    def __call__(self):
        return self._clock() + self._skipped

    def skip(self, seconds):
        """Lose some."""
        self._skipped += seconds


def test_the_parent_of_a_server_reports_how_it_died(job, monkeypatch):
    monkeypatch.setattr(monitor_module, 'PARENT_S', LIMIT_S)
    monitor, parent, child = job(1, 1)
    parent.say('started %d' % child.process.pid)
    assert parent.answer() == 'ok'
    child.process.kill()
    parent.say('server_died the server was killed by SIGKILL')
    assert aborted(parent, 'because the server was killed by SIGKILL')


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
    assert parent.ask('started %d' % child.process.pid) == 'ok'
    parent.say('server_died the server was killed by SIGKILL')
    assert parent.ask('call') == 'ok'
    free.set()
    assert aborted(parent, 'because the server was killed by SIGKILL')


def test_an_unexplained_death_of_a_server_is_reported(job):
    _, parent, child = job(1, 1)
    assert parent.ask('started %d' % child.process.pid) == 'ok'
    child.process.kill()
    assert aborted(parent, 'because server 0 died unexpectedly')
