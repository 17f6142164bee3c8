"""The identity of a process, which no later process with its id has, and the location of its script."""
import json
import os
import signal
import sys
import threading
import types

import pytest

from mxhybrid.watchdog import identity

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def sleeper(run):
    """A process, and how it introduced itself."""
    process = run('import json\nfrom mxhybrid.watchdog.identity import this_process\n'
                  'print(json.dumps(this_process()), flush=True)\nsys.stdin.read()')
    return process, json.loads(process.stdout.readline())


def test_a_stopped_process_here_can_be_ended(sleeper):
    process, known = sleeper
    assert identity.state_of(known) in ('S', 'R')
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert identity.state_of(known) == 'T'
    identity.kill_processes([known])
    assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize('change', [{'pid_space': 'elsewhere'}, {'started': '1'}])
def test_a_process_of_another_machine_or_time_is_spared(sleeper, change):
    process, known = sleeper
    identity.kill_processes([dict(known, **change), {}, None, {'pid': 'x', 'pid_space': 1}])
    assert identity.state_of(known) in ('S', 'R') and process.poll() is None


@pytest.mark.parametrize('line, text', [(81, 'train.py:81 in main'), (None, 'train.py:? in main')])
def test_the_place_of_a_script_may_have_no_line(monkeypatch, line, text):
    code = types.SimpleNamespace(co_filename='/home/me/train.py', co_name='main')
    frame = types.SimpleNamespace(f_code=code, f_lineno=line, f_back=None)
    monkeypatch.setattr(sys, '_current_frames', lambda: {threading.main_thread().ident: frame})
    assert identity.script_location() == text


def test_a_process_does_not_kill_itself():
    identity.kill_processes([identity.this_process()])
