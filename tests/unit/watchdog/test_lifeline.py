"""Monitor and lifelines: a death is noticed and told, an orderly end is waited for.

Processes of the job are real ones that run statements of the tests, so that no test needs to sleep until something has
probably happened.  The module under test needs no MXNet, and the processes do without, to be quick.
"""
import json
import os
import signal
import socket
import threading
import time

import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.watchdog.admission import answer_challenge
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.messages import send
from mxhybrid.watchdog.monitor import Monitor

from ...helpers.waiting import until
from .members import CALL, FINISH, LIMIT_S, SECRET, Member, call, check_aborted, finish, finish_first, last_words, leave

pytestmark = pytest.mark.both_pythons


# ------------------------------------------------------------------------------------------ deaths


@pytest.mark.parametrize('victim', [0, 1, 2], ids=['worker 0', 'worker 1', 'a server'])
def test_a_killed_process_ends_and_is_named(job, victim):
    _, *members = job(2, 1)
    dead = members.pop(victim)
    dead.process.kill()
    for member in members:
        check_aborted('[mxhybrid] %s ends, because %s died unexpectedly' % (member.name, dead.name), member)


def test_a_stopped_process_does_not_delay_the_message(job):
    _, first, second, third = job(3)
    os.kill(second.process.pid, signal.SIGSTOP)
    third.process.kill()
    check_aborted('worker 2 died', first)
    os.kill(second.process.pid, signal.SIGCONT)
    check_aborted('worker 2 died', second)


@pytest.mark.parametrize('failing', [0, 1], ids=['a worker', 'a server'])
def test_a_failure_is_reported_with_its_cause(job, failing):
    _, *members = job(1, 1)
    members[failing].do("line.fail('no memory left')")
    for member in members:
        text = last_words(member)
        assert 'because %s failed: no memory left' % members[failing].name in text and 'died' not in text


def test_an_echo_of_a_death_awaits_the_cause(job):
    _, first, second, third = job(3)
    second.say("line.fail('a native error', echo=True)")
    third.process.kill()
    check_aborted('because worker 2 died', first, second)


def test_an_echo_without_a_cause_is_reported(job):
    _, first, second = job(2)
    second.do("line.fail('a native error', echo=True)")
    check_aborted('because worker 1 failed: a native error', first)


def test_a_process_that_joins_after_the_failure_ends_too(job):
    monitor, first = job(1)
    monitor.report_failure('the disk is full')
    check_aborted('the disk is full', first)
    late = Member(monitor.address, 'worker 1', 1)
    check_aborted('because the disk is full', late)


def test_workers_leave_when_worker_0_dies_with_the_monitor(job, monitor_process):
    process, address = monitor_process()
    members = job(2, address=address)
    process.kill()
    check_aborted('because worker 0, which watches the job, died unexpectedly', *members)


def test_a_dead_scheduler_is_noticed(job, monkeypatch):
    monkeypatch.setattr('mxhybrid.watchdog.scheduler.POLL_S', 0.05)
    monitor, first = job(1)
    with socket.create_server(('127.0.0.1', 0)) as scheduler:
        address = scheduler.getsockname()
        monitor.watch_scheduler(address, 60)
        scheduler.settimeout(LIMIT_S)
        scheduler.accept()[0].close()
        assert monitor.failure is None
    check_aborted('because the scheduler at 127.0.0.1:%d died' % address[1], first)


# ------------------------------------------------------------------------------------------ deaths after a fork

#: Each forks a child that lives on, inherits its connections, and is killed by the test.
FORKING = """
import os, time
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.monitor import Monitor
%s
pid = os.fork()
if pid:
    print(pid, flush=True)
time.sleep(60)
"""
FORKING_WORKER = FORKING % "Lifeline(('127.0.0.1', int(sys.argv[2])), 'worker 1', 1, 10, 'open sesame')"
FORKING_MONITOR = FORKING % """
monitor = Monitor('127.0.0.1', 1, 0, 'open sesame')
print(monitor.address[1], flush=True)
while not monitor.peers():  # until the test has connected
    time.sleep(0.01)
"""


@pytest.fixture
def kill_later():
    """Take the ids of processes that are killed after the test."""
    pids = []
    yield pids.append
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_the_death_of_a_worker_that_forked_is_noticed(run, kill_later):
    monitor = Monitor('127.0.0.1', 2, 0, SECRET)
    process = run(FORKING_WORKER, monitor.address[1])
    kill_later(int(process.stdout.readline()))
    process.kill()
    until(lambda: monitor.failure)
    assert monitor.failure == 'worker 1 died unexpectedly (killed, or crashed in native code)'


def test_the_death_of_a_monitor_that_forked_is_noticed(run, kill_later):
    process = run(FORKING_MONITOR)
    with socket.create_connection(('127.0.0.1', int(process.stdout.readline())), timeout=LIMIT_S) as connection:
        send(connection, answer_challenge(connection, SECRET, 'worker 1', 1))
        kill_later(int(process.stdout.readline()))
        process.kill()
        assert connection.recv(1) == b''


# ------------------------------------------------------------------------------------------ the orderly end


def test_all_are_released_when_the_last_worker_has_finished(job):
    monitor, first, second, server = job(2, 1)
    finish_first(first, second)
    assert first.silent(0.2)
    second.do(FINISH)
    assert first.answer() == 'ok'
    leave(first, second, server)
    assert monitor.failure is None


def test_a_worker_waits_until_no_worker_needs_the_servers(job):
    _, first, second, _ = job(2, 1)
    first.say('line.settle()')
    assert first.silent(0.2)
    second.do('line.settle()')
    assert first.answer() == 'ok'


def test_a_death_after_the_release_still_counts(job):
    _, first, second = job(2)
    finish(first, second)
    first.process.kill()
    check_aborted('because worker 0 died', second)


def test_a_death_after_leaving_is_no_failure(job):
    monitor, first, second = job(2)
    finish(first, second)
    first.do('line.bye()')
    first.process.kill()
    first.process.wait()
    leave(second)
    assert monitor.failure is None


def test_no_process_misses_a_monitor_after_leaving(job, monitor_process):
    process, address = monitor_process()
    first, second, server = job(2, 1, address=address)
    finish(first, second)
    first.say('line.part()')
    assert first.silent(1)
    second.do('line.part()')
    assert first.answer() == 'ok'
    process.communicate(timeout=LIMIT_S)
    assert [member.end() for member in (first, second, server)] == [(0, '')] * 3


def test_a_worker_that_has_left_learns_of_a_death(job):
    _, first, second = job(2)
    finish(first, second)
    first.say('line.part()')
    assert first.silent(0.2)
    second.process.kill()
    check_aborted('because worker 1 died', first)


@pytest.mark.parametrize('victim', [0, 1], ids=['the one that waits', 'the other one'])
def test_a_death_while_a_worker_waits_for_another(job, victim):
    _, *workers = job(2)
    finish_first(*workers)
    dead = workers.pop(victim)
    dead.process.kill()
    check_aborted('because %s died' % dead.name, *workers)


# ------------------------------------------------------------------------------------------ unequal numbers of calls


def test_a_call_past_an_ended_workers_is_refused(job):
    _, first, second = job(2)
    call(first, 2)
    call(second)
    finish_first(first, second)
    call(second)
    text = second.ask(CALL)
    assert text.startswith('JobError: worker 0 ended its script after 2 collective calls, this worker is at number 3')
    assert text.endswith('give every worker the same number of steps')


def test_a_worker_waiting_for_an_ended_one_ends(job):
    _, first, second, third = job(3)
    call(first)
    call(second, 2)
    first.say(FINISH)
    cause = 'worker 0 ended its script after 1 collective calls, this worker is at number 2'
    check_aborted(cause, second)
    check_aborted('because worker 1 failed: worker 1 cannot go on: ' + cause, first, third)


def test_equal_numbers_of_calls_end_in_any_order(job):
    _, *members = job(3)
    for member in members:
        call(member, 3)
    finish(members[2], members[0], members[1])
    leave(*members)


def test_a_worker_is_busy_until_everything_has_ended():
    monitor = Monitor('127.0.0.1', 1, 0, SECRET)
    line = Lifeline(monitor.address, 'worker 0', 0, 10, SECRET)
    try:
        with line.busy():
            with line.busy():
                assert line._busy
            assert line._busy
        assert not line._busy
    finally:
        line.bye()


# ------------------------------------------------------------------------------------------ the connection


@pytest.mark.parametrize('listens', [False, True])
def test_no_monitor_in_time_is_an_error(listens):
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        if listens:
            silent.listen()
        (_, port), started = silent.getsockname(), time.monotonic()
        with pytest.raises(JobError, match='no connection to the job monitor at 127.0.0.1:%d within 0.2 s' % port):
            Lifeline(('127.0.0.1', port), 'worker 0', 0, 0.2, SECRET)
    assert 0.2 <= time.monotonic() - started < LIMIT_S


def test_messages_may_arrive_in_pieces():
    monitor = Monitor('127.0.0.1', 1, 0, SECRET)
    with socket.create_connection(monitor.address) as peer, peer.makefile() as answers:
        peer.settimeout(LIMIT_S)
        hello = json.dumps(answer_challenge(peer, SECRET, 'worker 0', 0)).encode()
        for piece in (hello[:20], hello[20:] + b'\n{"do', b'ne": [4, ["push"]]}\n'):
            peer.sendall(piece)
            time.sleep(0.02)
        assert json.loads(answers.readline()) == {'finished': 0, 'log': [4, ['push']]}
        assert json.loads(answers.readline()) == {'release': True}


def test_failures_from_many_threads_are_reported_once():
    monitor = Monitor('127.0.0.1', 1, 0, SECRET)
    with socket.create_connection(monitor.address) as peer, peer.makefile() as answers:
        peer.settimeout(LIMIT_S)
        send(peer, answer_challenge(peer, SECRET, 'worker 0', 0))
        until(monitor.peers)
        threads = [threading.Thread(target=monitor.report_failure, args=('cause %d' % number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert json.loads(answers.readline()) == {'abort': monitor.failure}
        peer.sendall(b'{"bye": true}\n')
        peer.settimeout(0.2)
        with pytest.raises(OSError):
            peer.recv(1)
