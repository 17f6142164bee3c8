"""The processes of a launch.py job that are ended, and those that are spared."""
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from mxhybrid.base.proc import state_and_start
from mxhybrid.job.launch_py_processes import end_processes_of_job

from ...helpers.obedient import killed_later, run_python
from ...helpers.waiting import until

pytestmark = pytest.mark.both_pythons

SLEEP = 'import time; print(1, flush=True); time.sleep(60)'


@pytest.fixture
def variables():
    """Variables of launch.py that no other job has."""
    return {'DMLC_PS_ROOT_URI': 'host-' + uuid.uuid4().hex, 'DMLC_PS_ROOT_PORT': '9091'}


@pytest.fixture
def start():
    """Start programs with variables; gives each process and the words that it prints first. None outlives the test."""
    with killed_later() as take:
        def start_program(program, **variables):
            process = take(subprocess.Popen([sys.executable, '-S', '-c', program], env=dict(os.environ, **variables),
                                            stdout=subprocess.PIPE))
            return process, process.stdout.readline().split()

        yield start_program


def end(variables, *roles):
    """End the processes of a job that have one of the roles."""
    end_processes_of_job((variables['DMLC_PS_ROOT_URI'], int(variables['DMLC_PS_ROOT_PORT'])), roles)


def test_only_named_roles_of_the_job_are_ended(start, variables):
    uri, port = variables['DMLC_PS_ROOT_URI'], variables['DMLC_PS_ROOT_PORT']
    ended = [start(SLEEP, DMLC_ROLE=role, **variables)[0] for role in ('server', 'scheduler')]
    spared = [start(SLEEP, **others)[0] for others in (
        dict(variables, DMLC_ROLE='worker'), dict(variables, DMLC_ROLE='server', DMLC_PS_ROOT_PORT=port + '0'),
        dict(variables, DMLC_ROLE='server', DMLC_PS_ROOT_URI=uri + '0'), variables, {'DMLC_ROLE': 'server'})]
    end(variables, 'scheduler', 'server')
    assert [process.wait(30) for process in ended] == [-signal.SIGTERM] * 2
    time.sleep(0.1)
    assert [process.poll() for process in spared] == [None] * 5


def test_processes_that_a_worker_has_started_are_spared(start, variables):
    helper = subprocess.Popen(['sleep', '60'], env=dict(os.environ, DMLC_ROLE='worker', **variables))
    worker, words = start(
        "import subprocess, sys, time\n"
        "children = [subprocess.Popen(command) for command in (\n"
        "    [sys.executable, '-S', '-c', 'import time; time.sleep(60)'],\n"
        "    ['sh', '-c', '\"%s\" -S -c \"import time; time.sleep(60)\"; true' % sys.executable])]\n"
        "print(*[child.pid for child in children], flush=True)\n"
        "time.sleep(60)", DMLC_ROLE='worker', **variables)
    children = [int(word) for word in words]

    def of_shell():
        with open('/proc/%d/task/%d/children' % (children[1], children[1])) as file:
            return [int(word) for word in file.read().split()]

    try:
        until(of_shell)
        children += of_shell()
        end(variables, 'worker')
        assert worker.wait(30) == -signal.SIGTERM
        time.sleep(0.1)
        assert not {state_and_start(pid)[0] for pid in children} & {'', 'Z', 'X'}
        assert helper.poll() is None
    finally:
        for pid in (*children, helper.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        helper.wait()


def test_a_server_behind_another_program_is_ended(start, variables):
    outer, words = start(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', %r], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()" % SLEEP, DMLC_ROLE='server', **variables)
    inner = int(words[0])
    try:
        end(variables, 'scheduler', 'server')
        assert outer.wait(30) == -signal.SIGTERM
        until(lambda: state_and_start(inner)[0] in ('', 'Z'))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(inner, signal.SIGKILL)


def test_a_failing_program_before_the_join_ends_nothing(start, variables):
    process, words = start(
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'import mxhybrid; raise ValueError()']).returncode)",
        DMLC_ROLE='worker', **variables)
    assert words == [b'1'] and process.wait(30) == 0


def test_the_process_that_ends_a_job_spares_itself(variables, monkeypatch):
    for name, value in dict(variables, DMLC_ROLE='worker').items():
        monkeypatch.setenv(name, value)
    process = run_python('from mxhybrid.job.launch_py_processes import end_processes_of_job\n'
                         'end_processes_of_job((sys.argv[2], 9091), ("worker",)); print("alive")',
                         variables['DMLC_PS_ROOT_URI'])
    assert process.communicate(timeout=30)[0] == 'alive\n' and process.returncode == 0
