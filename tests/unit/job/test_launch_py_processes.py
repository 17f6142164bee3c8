"""The processes of a launch.py job that are ended, and those that are spared."""
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from mxhybrid.job import launch_py_processes
from mxhybrid.job.launch_py_processes import end_processes_of_job

pytestmark = pytest.mark.both_pythons


def until(condition):
    """Wait for a condition, half a minute at most."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


@pytest.fixture
def sleeper():
    """Start processes with variables of launch.py; none outlives the test."""
    started = []

    def start(**variables):
        process = subprocess.Popen([sys.executable, '-S', '-c', 'import time; print(1, flush=True); time.sleep(60)'],
                                   env=dict(os.environ, **variables), stdout=subprocess.PIPE)
        process.stdout.readline()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_only_named_roles_of_the_job_are_ended(sleeper):
    uri, port = 'host-' + uuid.uuid4().hex, '9091'
    same = {'DMLC_PS_ROOT_URI': uri, 'DMLC_PS_ROOT_PORT': port}
    ended = [sleeper(DMLC_ROLE='server', **same), sleeper(DMLC_ROLE='scheduler', **same)]
    spared = [sleeper(DMLC_ROLE='worker', **same),
              sleeper(DMLC_ROLE='server', DMLC_PS_ROOT_URI=uri, DMLC_PS_ROOT_PORT='90910'),
              sleeper(DMLC_ROLE='server', DMLC_PS_ROOT_URI=uri + '0', DMLC_PS_ROOT_PORT=port),
              sleeper(**same), sleeper(DMLC_ROLE='server')]
    end_processes_of_job((uri, int(port)), ('scheduler', 'server'))
    assert [process.wait(30) for process in ended] == [-signal.SIGTERM] * 2
    time.sleep(0.1)
    assert [process.poll() for process in spared] == [None] * 5


def test_processes_that_a_worker_has_started_are_spared(sleeper, tmp_path):
    same = dict(os.environ, DMLC_ROLE='worker', DMLC_PS_ROOT_URI='host-' + uuid.uuid4().hex, DMLC_PS_ROOT_PORT='9091')
    helper = subprocess.Popen(['sleep', '60'], env=same)
    program = ("import subprocess, sys, time\n"
               "children = [subprocess.Popen(command) for command in (\n"
               "    [sys.executable, '-S', '-c', 'import time; time.sleep(60)'],\n"
               "    ['sh', '-c', '\"%s\" -S -c \"import time; time.sleep(60)\"; true' % sys.executable])]\n"
               "print(*[child.pid for child in children], flush=True)\n"
               "time.sleep(60)")
    worker = subprocess.Popen([sys.executable, '-S', '-c', program], env=same, stdout=subprocess.PIPE)
    try:
        children = [int(word) for word in worker.stdout.readline().split()]

        def of_shell():
            with open('/proc/%d/task/%d/children' % (children[1], children[1])) as file:
                return [int(word) for word in file.read().split()]
        until(of_shell)
        children += of_shell()
        end_processes_of_job((same['DMLC_PS_ROOT_URI'], 9091), ('worker',))
        assert worker.wait(30) == -signal.SIGTERM
        time.sleep(0.1)
        for pid in children:
            with open('/proc/%d/stat' % pid) as file:
                assert file.read().rpartition(')')[2].split()[0] not in 'ZX'
            os.kill(pid, signal.SIGKILL)
        assert helper.poll() is None
    finally:
        for process in (worker, helper):
            process.kill()
            process.wait()
        worker.stdout.close()


def test_a_server_behind_another_program_is_ended():
    same = {'DMLC_PS_ROOT_URI': 'host-' + uuid.uuid4().hex, 'DMLC_PS_ROOT_PORT': '9091', 'DMLC_ROLE': 'server'}
    program = ("import subprocess, sys\n"
               "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; print(1, flush=True); "
               "time.sleep(60)'], stdout=subprocess.PIPE)\n"
               "child.stdout.readline()\n"
               "print(child.pid, flush=True)\n"
               "child.wait()")
    outer = subprocess.Popen([sys.executable, '-S', '-c', program], env=dict(os.environ, **same),
                             stdout=subprocess.PIPE)
    inner = int(outer.stdout.readline())
    try:
        end_processes_of_job((same['DMLC_PS_ROOT_URI'], 9091), ('scheduler', 'server'))
        assert outer.wait(30) == -signal.SIGTERM

        def state():
            try:
                with open('/proc/%d/stat' % inner) as file:
                    return file.read().rpartition(')')[2].split()[0]
            except OSError:
                return 'gone'
        until(lambda: state() in ('gone', 'Z'))
    finally:
        outer.kill()
        outer.wait()
        outer.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(inner, signal.SIGKILL)


def test_a_failing_program_before_the_join_ends_nothing():
    program = ("import subprocess, sys\n"
               "print(subprocess.run([sys.executable, '-c', 'import mxhybrid; raise ValueError()']).returncode)")
    variables = dict(os.environ, DMLC_ROLE='worker', DMLC_PS_ROOT_URI='host-' + uuid.uuid4().hex,
                     DMLC_PS_ROOT_PORT='9091')
    done = subprocess.run([sys.executable, '-S', '-c', program], env=variables, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b'1\n')


def test_the_process_that_ends_a_job_spares_itself(tmp_path):
    uri = 'host-' + uuid.uuid4().hex
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import types\n"
               "package = types.ModuleType('mxhybrid'); package.__path__ = [sys.argv[1] + '/mxhybrid']\n"
               "sys.modules['mxhybrid'] = package\n"
               "from mxhybrid.job.launch_py_processes import end_processes_of_job\n"
               "end_processes_of_job((sys.argv[2], 1), ('worker',)); print('alive')")
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(launch_py_processes.__file__)))
    done = subprocess.run([sys.executable, '-c', program, package_parent, uri], stdout=subprocess.PIPE, timeout=30,
                          env=dict(os.environ, DMLC_ROLE='worker', DMLC_PS_ROOT_URI=uri, DMLC_PS_ROOT_PORT='1'))
    assert done.returncode == 0 and done.stdout == b'alive\n'
