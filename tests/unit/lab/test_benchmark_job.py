"""The benchmark's jobs: ports, processes, and signals that end them."""
import contextlib
import os
import signal
import socket
import sys
import time

import pytest
from lab.benchmark import testbeds
from lab.benchmark.contender_job import ContenderJob
from lab.benchmark.interruption import Interrupted, Signals
from lab.processes import JobFailed, find_processes

pytestmark = pytest.mark.both_pythons


class SignalledAmidCleaningUp(testbeds.Loopback):
    """The host of a user that interrupts while a job is being ended."""

    def kill_processes(self):
        os.kill(os.getpid(), signal.SIGTERM)


class JobOnly(ContenderJob):
    """A job of one process, which waits for its standard input."""

    def __enter__(self):
        self.start_worker(0, [sys.executable, '-c', 'input()'], {})
        return self


@contextlib.contextmanager
def interrupted(number):
    """Expects that a signal ends the block."""
    with pytest.raises(Interrupted) as caught:
        yield
    assert caught.value.number == number


@pytest.fixture
def signals():
    """Install the handlers that scripts/bench has while it runs; no signal is ignored, as it is in the background."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    with Signals() as installed:
        yield installed
    for number, handler in before.items():
        signal.signal(number, handler)


def until(condition):
    """Wait for something; the variables of a process, say, show only after a moment, when it is loaded."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting(signals, testbed):
    return JobOnly(testbed, 1, 1, 30.0, {}, signals.check)


def test_a_signal_ends_a_job_that_waits(signals):
    with interrupted(signal.SIGINT), signals.deferred(), waiting(signals, testbeds.Loopback()) as job:
        os.kill(os.getpid(), signal.SIGINT)
        job.wait()
    assert not find_processes(job.marker) and not job.directory.exists()


def test_variables_of_the_command_line_win(signals):
    with JobOnly(testbeds.Loopback(), 1, 1, 30.0, {'A': 'extra'}, signals.check) as job:
        job.start_worker(1, [sys.executable, '-c', 'import os; print(os.environ["A"], os.environ["B"])'],
                         {'A': 'own', 'B': 1})
        until(lambda: job._workers[1].poll() is not None)
        assert job.outputs()[1] == 'extra 1\n'


def test_a_worker_whose_benchmark_is_gone_ends(signals):
    code = 'from lab.benchmark.interruption import die_with_parent; die_with_parent(); input()'
    with JobOnly(testbeds.Loopback(), 1, 1, 30.0, {'MXHYBRID_BENCH_PARENT': '1'}, signals.check) as job:
        job.start_worker(1, [sys.executable, '-c', code], {})
        with pytest.raises(JobFailed, match='worker 1 on localhost ended .*\n.*the benchmark .* is gone'):
            job.wait()


def test_a_process_that_shows_no_variables_is_ended_too(signals):
    # As any does for a moment when it starts.
    argv = ['env', '-i', sys.executable, '-c', 'import time; time.sleep(600)']
    with JobOnly(testbeds.Loopback(), 1, 1, 30.0, {}, signals.check) as job:
        job.start_helper('helper', 0, argv, {})
        until(lambda: [process.pid for process in find_processes(job.marker)] == [job._workers[0].pid])
        assert job._helpers[0].poll() is None
    assert job._helpers[0].poll() == -signal.SIGKILL


def test_a_signal_waits_for_the_cleaning_up(signals):
    with interrupted(signal.SIGTERM):
        with signals.deferred(), waiting(signals, SignalledAmidCleaningUp()) as job:
            until(lambda: find_processes(job.marker))
        raise AssertionError('the signal was forgotten')
    assert not find_processes(job.marker) and not job.directory.exists()


def test_a_signal_ends_at_once_what_leaves_nothing_behind(signals):
    with interrupted(signal.SIGHUP):
        os.kill(os.getpid(), signal.SIGHUP)
        raise AssertionError('the signal was forgotten')


def test_a_signal_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)



def test_a_port_is_held_until_the_job_ends(signals):
    with ContenderJob(testbeds.Loopback(), 1, 1, 30.0, {}, signals.check) as job:
        address = '127.0.0.1', job.reserve_port()
        with socket.socket() as other, pytest.raises(OSError, match='in use'):
            other.bind(address)
        with socket.create_server(address):  # sets SO_REUSEADDR, as ps-lite does
            socket.create_connection(address, timeout=10).close()


def test_a_port_that_cannot_be_had_is_no_crash(signals):
    class Broken(testbeds.Loopback):
        def argv(self, host, argv):
            return ['false']

    with pytest.raises(JobFailed, match='no free port on localhost'), ContenderJob(
            Broken(), 1, 1, 30.0, {}, signals.check) as job:
        job.reserve_port()
