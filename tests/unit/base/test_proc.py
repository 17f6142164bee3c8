"""Processes as ``/proc`` describes them: this one, a child, a zombie, one that has gone."""
import os
import subprocess
import sys

import pytest
from lab.processes import read_command

from mxhybrid.base import proc


@pytest.fixture
def child():
    """A process that waits for the end of its input, with a variable of its own."""
    program = 'import sys; print(flush=True); sys.stdin.read()'
    process = subprocess.Popen([sys.executable, '-S', '-c', program, 'a (b) c'], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env=dict(os.environ, MARK='x=\xe9'))
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_running_process(child):
    assert child.pid in proc.pids() and proc.is_own(child.pid)
    assert proc.read_environ(child.pid)['MARK'] == 'x=\xe9'
    assert read_command(child.pid)[-1] == 'a (b) c'
    assert proc.read_executable(child.pid) == proc.read_executable(os.getpid()) != ''
    state, start = proc.state_and_start(child.pid)
    assert state in 'SR' and start.isdigit() and proc.state_and_start(child.pid)[1] == start
    assert next(proc.ancestors(child.pid)) == os.getpid() and list(proc.ancestors(child.pid))[-1] in (0, 1)
    assert all(ran >= 0 and waited >= 0 and turns >= 0 for ran, waited, turns in proc.thread_times(child.pid).values())
    assert str(child.pid) in proc.thread_times(child.pid)


def test_a_zombie_has_neither_environment_nor_command(child):
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (proc.read_environ(child.pid), read_command(child.pid)) == ({}, [])
    assert proc.state_and_start(child.pid)[0] == 'Z'


def test_a_process_that_has_gone_has_nothing(child):
    child.kill()
    child.wait()
    assert not proc.is_own(child.pid) and child.pid not in proc.pids()
    assert not (proc.read_environ(child.pid) or read_command(child.pid) or proc.read_executable(child.pid)
                or proc.read_stat(child.pid) or proc.thread_times(child.pid) or list(proc.ancestors(child.pid)))
    assert proc.state_and_start(child.pid) == ('', '')


def test_readings_of_the_kernel():
    assert proc.disk_bytes() >= 0 and len(proc.boot_id()) == 36
