"""Monitor and lifelines: a death is noticed and told, an orderly end is waited for.

Processes of the job are real ones that obey lines on their standard input, so that no test needs to sleep until
something has probably happened.  The module under test needs no MXNet, and the processes do without, to be quick.
"""
import json
import os
import selectors
import signal
import socket
import threading
import time

import pytest

from mxhybrid.base.errors import JobError
from mxhybrid.base.sealed import prove
from mxhybrid.base.settings import Limits
from mxhybrid.watchdog import heartbeat as heartbeat_module, monitor as monitor_module
from mxhybrid.watchdog.admission import answer_challenge
from mxhybrid.watchdog.leaving import ABORT_STATUS
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.messages import send
from mxhybrid.watchdog.monitor import Monitor

from ...helpers.obedient import Obedient, run_python

pytestmark = pytest.mark.both_pythons

LIMIT_S = 30
SECRET = 'open sesame'

PACKAGE = """
import sys, types
package = types.ModuleType('mxhybrid')
package.__path__ = [sys.argv[1]]
sys.modules['mxhybrid'] = package
from mxhybrid.watchdog import lifeline
from mxhybrid.watchdog import leaving
from mxhybrid.watchdog.leaving import leave
from mxhybrid.watchdog.lifeline import Lifeline
from mxhybrid.watchdog.monitor import Monitor
from mxhybrid.base.errors import JobError
lifeline.LAST_WORDS_S = 0.05
"""

MEMBER = PACKAGE + """
import ctypes, os, time
address, name, rank = (sys.argv[2], int(sys.argv[3])), sys.argv[4], int(sys.argv[5])
def say(text):
    print(text, flush=True)
line = Lifeline(address, name, rank, 10, 'open sesame', lambda: os.write(2, b'cleaned up\\n'))
say('connected')
for command in sys.stdin:
    word, _, rest = command.strip().partition(' ')
    if word == 'call':
        try:
            line.count_call('a push')
            say('ok')
        except JobError as error:
            say('JobError: %s' % error)
    elif word == 'wait_for_end_of':
        while int(rest) not in line._ended:
            time.sleep(0.01)
        say('ok')
    elif word == 'meet':
        while line._heartbeat.monitor is None:
            time.sleep(0.01)
        say('met')
    elif word == 'lose_the_lock':
        send = line._sender.send
        def send_and_lose_it(message):
            line._sender.send = send
            sent = send(message)
            ctypes.PyDLL(None).usleep(int(float(rest) * 1e6))
            say('lost it')
            return sent
        line._sender.send = send_and_lose_it
        line._heartbeat.sample_monitor = lambda: None  # as on a host without a process that sees the monitor's
    elif word == 'finish':
        say(line.finish())
    elif word == 'settle':
        line.settle()
        say('settled')
    elif word == 'fail':
        line.fail(rest)
        say('ok')
    elif word == 'echo':
        line.fail(rest, echo=True)
        say('ok')
    elif word == 'started':
        line.send({'servers': [['server', int(rest)]]})
        say('ok')
    elif word == 'server_died':
        line.send({'server_died': rest})
    elif word == 'part':
        line.part()
        say('parted')
    elif word == 'leave':
        line.bye()
        say('ok')
"""

MONITOR = PACKAGE + """
from mxhybrid.base.settings import Limits
monitor = Monitor('127.0.0.1', 2, 0, 'open sesame', Limits(silence=4))
print('%s %d' % monitor.address, flush=True)
"""

WAIT = 'sys.stdin.read()'

SERVER = PACKAGE + """
import time
line = Lifeline((sys.argv[2], int(sys.argv[3])), 'a server', -1, 10, 'open sesame')
while line._heartbeat.monitor is None:
    time.sleep(0.01)
print('heard of the monitor', flush=True)
time.sleep(600)
"""

#: In the monitor's process: starts the server, which the kernel ends together with it (PR_SET_PDEATHSIG).
CHILD = """
import ctypes, signal, subprocess
child = subprocess.Popen([sys.executable, '-S', '-c', sys.argv[2], sys.argv[1], *map(str, monitor.address)],
                         preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))
"""


class Member(Obedient):
    """A process of the job, with a lifeline to the monitor."""

    def __init__(self, address, name, rank):
        super().__init__(MEMBER, address[0], address[1], name, rank)

    def silent(self, seconds):
        """Return whether the process writes nothing for some time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return not selector.select(seconds)

    def end(self):
        """Wait for the end; exit status and standard error."""
        _, text = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, text


@pytest.fixture
def job():
    """Start members of one job; the monitor listens in this process."""
    members = []

    def start(workers, servers=0, address=None):
        monitor = None
        if address is None:
            monitor = Monitor('127.0.0.1', workers, servers, SECRET)
            address = monitor.address
        new = [Member(address, 'worker %d' % rank, rank) for rank in range(workers)]
        new += [Member(address, 'server %d' % number, -1) for number in range(servers)]
        members.extend(new)
        assert [member.answer() for member in new] == ['connected'] * len(new)
        return (monitor, *new) if monitor is not None else new

    yield start
    for member in members:
        if member.process.poll() is None:
            member.process.kill()
        member.process.communicate()


def last_words(member):
    """Return the output of a process that ended by itself, and cleaned up before."""
    member.process.wait(LIMIT_S)  # its standard input stays open: no other reason to end
    status, stderr = member.end()
    assert status == ABORT_STATUS == 1
    assert stderr.startswith('[mxhybrid] ') and stderr.endswith('cleaned up\n')
    return stderr


def aborted(member, text):
    """Return whether a process ended by itself because of `text`."""
    return text in last_words(member)


def met(*members):
    """Wait until the monitor and these processes know each other, and can sample each other."""
    return [member.ask('meet') for member in members] == ['met'] * len(members)


# ------------------------------------------------------------------------------------------ deaths


@pytest.mark.parametrize('victim', [0, 1, 2], ids=['worker 0', 'worker 1', 'a server'])
def test_a_killed_process_ends_all_others_and_is_named_by_them(job, victim):
    _, *members = job(2, 1)
    dead = members.pop(victim)
    dead.process.kill()
    name = ['worker 0', 'worker 1', 'server 0'][victim]
    for member in members:
        assert aborted(member, 'because %s died unexpectedly' % name)


def test_each_process_begins_with_its_name(job):
    _, first, second = job(2)
    second.process.kill()
    assert aborted(first, '[mxhybrid] worker 0 ends, because worker 1 died')


def test_a_stopped_process_does_not_delay_the_message_to_the_others(job):
    _, first, second, third = job(3)
    os.kill(second.process.pid, signal.SIGSTOP)
    third.process.kill()
    assert aborted(first, 'worker 2 died')
    os.kill(second.process.pid, signal.SIGCONT)
    assert aborted(second, 'worker 2 died')


def test_a_failure_is_reported_with_its_cause(job):
    _, first, second = job(1, 1)
    assert second.ask('fail no memory left') == 'ok'
    assert aborted(first, 'because server 0 failed: no memory left')
    assert aborted(second, 'because server 0 failed: no memory left')


def test_the_first_failure_is_the_one_that_all_name(job):
    monitor, first, second, third = job(3)
    second.process.kill()
    assert aborted(third, 'worker 1 died')
    assert aborted(first, 'worker 1 died')
    monitor.report_failure('something later')
    assert 'worker 1 died' in monitor.failure


def test_an_echo_of_a_death_waits_for_the_true_cause(job):
    _, first, second, third = job(3)
    second.say('echo a native error')
    third.process.kill()
    assert aborted(first, 'because worker 2 died')
    assert aborted(second, 'because worker 2 died')


def test_an_echo_without_another_cause_is_reported_in_the_end(job):
    _, first, second = job(2)
    assert second.ask('echo a native error') == 'ok'
    assert aborted(first, 'because worker 1 failed: a native error')


def test_a_process_that_joins_after_the_failure_ends_too(job):
    monitor, first = job(1)
    monitor.report_failure('the disk is full')
    assert aborted(first, 'the disk is full')
    late = Member(monitor.address, 'worker 1', 1)
    assert aborted(late, 'because the disk is full')


def test_workers_leave_when_worker_0_dies_with_the_monitor(job):
    root = run_python(MONITOR + WAIT)
    try:
        host, port = root.stdout.readline().split()
        first, second = job(2, address=(host, int(port)))
        root.kill()
        for member in (first, second):
            assert aborted(member, 'because worker 0, which watches the job, died unexpectedly')
    finally:
        root.kill()
        root.communicate()


def test_a_dead_scheduler_is_noticed(job, monkeypatch):
    monkeypatch.setattr('mxhybrid.watchdog.scheduler.POLL_S', 0.05)
    monitor, first = job(1)
    with socket.create_server(('127.0.0.1', 0)) as scheduler:
        address = scheduler.getsockname()
        monitor.watch_scheduler(address, 60)
        scheduler.settimeout(LIMIT_S)
        scheduler.accept()[0].close()
        assert monitor.failure is None
    assert aborted(first, 'because the scheduler at 127.0.0.1:%d died' % address[1])


# ------------------------------------------------------------------------------------------ silence

#: Short enough for a test, and still more than a process that waits for a busy machine needs.
LIMITS = Limits(start=20, silence=4, stall=0)


def test_a_stopped_process_ends_all_others_and_is_ended_by_one_of_its_machine(job, monkeypatch):
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


def test_a_process_that_was_stopped_for_a_moment_goes_on(job):
    monitor = Monitor('127.0.0.1', 2, 0, SECRET, LIMITS)
    first, second = job(2, address=monitor.address)
    assert met(first, second)
    os.kill(second.process.pid, signal.SIGSTOP)
    assert first.silent(2.5)
    os.kill(second.process.pid, signal.SIGCONT)
    assert first.silent(LIMITS.silence)
    assert [second.ask('call'), first.ask('call')] == ['ok', 'ok']
    assert monitor.failure is None


def test_an_answer_that_came_while_python_did_not_run_is_an_answer(job):
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


def test_a_child_of_a_stopped_monitor_writes_the_reason_before_it_ends_with_the_monitor():
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


def test_a_process_that_kills_a_stopped_monitor_writes_the_reason_despite_unsent_messages():
    root = run_python(MONITOR + WAIT)
    try:
        stubborn = SERVER.replace("print('heard", "line.before_leaving(lambda: time.sleep(600))\nprint('heard")
        member = run_python(stubborn, *root.stdout.readline().split())
        assert member.stdout.readline() == 'heard of the monitor\n'
        os.kill(root.pid, signal.SIGSTOP)
        said = member.communicate(timeout=LIMIT_S)[1]
        assert said.startswith('[mxhybrid] a server ends, because worker 0, which watches the job, has been silent')
        assert root.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        root.kill()
        root.communicate()


def test_a_monitor_that_was_stopped_for_long_blames_the_stop_and_not_the_others(job, monkeypatch):
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


def test_a_server_whose_parent_does_not_explain_its_death_is_reported(job):
    _, parent, child = job(1, 1)
    assert parent.ask('started %d' % child.process.pid) == 'ok'
    child.process.kill()
    assert aborted(parent, 'because server 0 died unexpectedly')


# ------------------------------------------------------------------------------------------ the orderly end


def test_all_are_released_when_the_last_worker_has_finished(job):
    monitor, first, second, server = job(2, 1)
    first.say('finish')
    assert second.ask('wait_for_end_of 0') == 'ok'
    assert first.silent(0.2)
    assert second.ask('finish') == 'True'
    assert first.answer() == 'True'
    for member in (first, second, server):
        assert member.ask('leave') == 'ok'
    for member in (first, second, server):
        assert member.end() == (0, '')
    assert monitor.failure is None


def test_a_worker_waits_until_no_worker_needs_the_servers(job):
    _, first, second, _ = job(2, 1)
    first.say('settle')
    assert first.silent(0.2)
    assert second.ask('settle') == 'settled'
    assert first.answer() == 'settled'


def test_a_death_after_the_release_still_counts_for_those_that_have_not_left(job):
    monitor, first, second = job(2)
    first.say('finish')
    assert second.ask('finish') == 'True' and first.answer() == 'True'
    first.process.kill()
    assert aborted(second, 'because worker 0 died')


def test_the_death_of_a_process_that_has_left_is_no_failure(job):
    monitor, first, second = job(2)
    first.say('finish')
    assert second.ask('finish') == 'True' and first.answer() == 'True'
    assert first.ask('leave') == 'ok'
    first.process.kill()
    first.process.wait()
    assert second.ask('leave') == 'ok'
    assert second.end() == (0, '')
    assert monitor.failure is None


def test_no_process_misses_a_monitor_after_all_workers_have_left(job):
    root = run_python(MONITOR + WAIT)
    try:
        host, port = root.stdout.readline().split()
        first, second, server = job(2, 1, address=(host, int(port)))
        first.say('finish')
        assert second.ask('finish') == 'True' and first.answer() == 'True'
        first.say('part')
        assert first.silent(1)
        assert second.ask('part') == 'parted' and first.answer() == 'parted'
        root.communicate(timeout=LIMIT_S)
        for member in (first, second, server):
            assert member.end() == (0, '')
    finally:
        root.kill()
        root.communicate()


def test_a_worker_that_has_left_learns_of_a_death(job):
    _, first, second = job(2)
    first.say('finish')
    assert second.ask('finish') == 'True' and first.answer() == 'True'
    first.say('part')
    assert first.silent(0.2)
    second.process.kill()
    assert aborted(first, 'because worker 1 died')


def test_a_failing_process_does_not_take_the_end_of_its_connection_for_a_death(job):
    monitor, first, second = job(2)
    assert first.ask('fail no memory left') == 'ok'
    assert aborted(second, 'because worker 0 failed: no memory left')
    status, text = first.end()
    assert 'died' not in text


def test_a_worker_that_waits_for_the_others_learns_of_a_death(job):
    _, first, second = job(2)
    first.say('finish')
    assert second.ask('wait_for_end_of 0') == 'ok'
    second.process.kill()
    assert aborted(first, 'because worker 1 died')


def test_a_killed_process_that_had_finished_still_fails_the_job(job):
    _, first, second = job(2)
    first.say('finish')
    assert second.ask('wait_for_end_of 0') == 'ok'
    first.process.kill()
    assert aborted(second, 'because worker 0 died')


# ------------------------------------------------------------------------------------------ unequal numbers of calls


def test_a_call_past_those_of_an_ended_worker_is_refused(job):
    _, first, second = job(2)
    assert [first.ask('call') for _ in range(2)] == ['ok'] * 2
    assert second.ask('call') == 'ok'
    first.say('finish')
    assert second.ask('wait_for_end_of 0') == 'ok'
    assert second.ask('call') == 'ok'
    text = second.ask('call')
    assert text.startswith('JobError: worker 0 ended its script after 2 collective calls, this worker is at number 3')
    assert text.endswith('give every worker the same number of steps')


def test_a_worker_that_waits_in_such_a_call_ends_and_all_others_with_it(job):
    _, first, second, third = job(3)
    assert first.ask('call') == 'ok'
    assert [second.ask('call') for _ in range(2)] == ['ok'] * 2
    first.say('finish')
    cause = 'worker 0 ended its script after 1 collective calls, this worker is at number 2'
    assert aborted(second, cause)
    assert aborted(first, 'because worker 1 failed: worker 1 cannot go on: ' + cause)
    assert aborted(third, 'because worker 1 failed: worker 1 cannot go on: ' + cause)


def test_equal_numbers_of_calls_end_in_any_order(job):
    _, *members = job(3)
    for member in members:
        assert [member.ask('call') for _ in range(3)] == ['ok'] * 3
    for member in (members[2], members[0], members[1]):
        member.say('finish')
    assert [member.answer() for member in members] == ['True'] * 3
    assert [member.ask('leave') for member in members] == ['ok'] * 3
    assert [member.end() for member in members] == [(0, '')] * 3


def test_a_worker_is_busy_until_all_that_takes_long_has_ended():
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


def bound_socket():
    """Return a socket that refuses connections until it listens; no other process gets its port meanwhile."""
    sock = socket.socket()
    sock.bind(('127.0.0.1', 0))
    return sock


def test_no_monitor_in_time_is_an_error_with_address_and_limit():
    with bound_socket() as unheard:
        address = unheard.getsockname()
        started = time.monotonic()
        with pytest.raises(JobError,
                           match=r'no connection to the job monitor at 127.0.0.1:%d within 0.2 s' % address[1]):
            Lifeline(address, 'worker 0', 0, 0.2, SECRET)
    assert 0.2 <= time.monotonic() - started < LIMIT_S


def test_a_monitor_that_comes_late_is_waited_for():
    with bound_socket() as server:
        member = Member(server.getsockname(), 'worker 0', 0)
        try:
            time.sleep(0.3)
            server.listen()
            server.settimeout(LIMIT_S)
            peer, _ = server.accept()
            with peer, peer.makefile() as lines:
                peer.sendall(b'{"challenge": "7"}\n')
                assert json.loads(lines.readline()) == {'hello': {
                    'name': 'worker 0', 'rank': 0, 'proof': prove(SECRET, '7', 'worker 0', 0)}}
                assert member.answer() == 'connected'
        finally:
            member.process.kill()
            member.process.communicate()


def test_strangers_and_garbage_do_not_disturb_the_monitor(job):
    monitor, first = job(1)
    for data in (b'GET / HTTP/1.1\r\n\r\n', b'[1]\n7\nnull\n"x"\n', b'\xff\xfe\n', b'{"done": 3}\n{"fail": "x"}\n',
                 b''):
        with socket.create_connection(monitor.address) as stranger:
            stranger.sendall(data)
    assert first.ask('finish') == 'True' and first.ask('leave') == 'ok'
    assert first.end() == (0, '')
    assert monitor.failure is None and monitor._thread.is_alive()


def test_messages_may_arrive_in_pieces():
    monitor = Monitor('127.0.0.1', 1, 0, SECRET)
    with socket.create_connection(monitor.address) as peer, peer.makefile() as answers:
        peer.settimeout(LIMIT_S)
        hello = json.dumps(answer_challenge(peer, SECRET, 'worker 0', 0)).encode()
        for piece in (hello[:20], hello[20:] + b'\n{"do', b'ne": 4}\n'):
            peer.sendall(piece)
            time.sleep(0.02)
        assert json.loads(answers.readline()) == {'finished': 0, 'calls': 4}
        assert json.loads(answers.readline()) == {'release': True}


def test_failures_from_many_threads_are_reported_once():
    monitor = Monitor('127.0.0.1', 1, 0, SECRET)
    with socket.create_connection(monitor.address) as peer, peer.makefile() as answers:
        peer.settimeout(LIMIT_S)
        send(peer, answer_challenge(peer, SECRET, 'worker 0', 0))
        while not monitor._peers:
            time.sleep(0.01)
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
