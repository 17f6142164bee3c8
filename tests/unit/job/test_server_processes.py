"""Servers and scheduler of a job: how they are started, watched and ended, and the cause that a worker names then."""
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from lab.launchers import REPOSITORY

from mxhybrid.job import guard as guard_module, server_processes
from mxhybrid.job.guard import Guard
from mxhybrid.job.server_processes import ServerProcesses

from ...helpers.waiting import until

pytestmark = pytest.mark.both_pythons


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The file that the variable OUT of servers names."""
    monkeypatch.setenv('OUT', str(tmp_path / 'out'))
    return tmp_path / 'out'


@pytest.fixture
def start_servers(tmp_path, monkeypatch):
    """Start servers that run a text, by a stand-in for the package; gives them, and a list for their deaths."""
    started = []

    def start(text, *roles):
        servers = tmp_path / 'mxhybrid' / 'servers'
        servers.mkdir(parents=True)
        for path, content in (('../__init__', ''), ('__init__', ''), ('main', text), ('scheduler', text)):
            (servers / (path + '.py')).write_text(content)
        monkeypatch.syspath_prepend(str(tmp_path))
        started.append(ServerProcesses(list(roles)))
        return started[-1], []

    yield start
    for servers in started:
        servers.expect_end()
        for _, process in servers._processes:
            process.kill()
            process.wait()


def test_servers_get_no_variables_of_workers(start_servers, out, monkeypatch):
    for name in ('HOROVOD_RANK', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK', 'DMLC_ROLE', 'KEPT',
                 'MXHYBRID_ROLE', 'MXHYBRID_PARENT'):  # a worker has the last two in a check of the doctor
        monkeypatch.setenv(name, '3')
    servers, _ = start_servers("import json, os\njson.dump(dict(os.environ), open(os.environ['OUT'], 'w'))", 'server')
    servers.wait_for_exit()
    variables = json.loads(out.read_text())
    assert not re.findall('HOROVOD_|OMPI_|PMI_|PMIX_|DMLC_ROLE', ' '.join(variables))
    assert variables['KEPT'] == '3' and variables['MXHYBRID_ROLE'] == 'server'
    assert variables['MXHYBRID_PARENT'] == str(os.getpid())


READ_INSTRUCTIONS = """
import os, sys
sys.path.insert(0, %r)
os.environ['MXHYBRID_ROLE'] = 'scheduler'  # so that the package does not import MXNet
for name in [name for name in sys.modules if name.startswith('mxhybrid')]:
    del sys.modules[name]
from mxhybrid.servers.instructions import take_instructions
secret = take_instructions()
seen = open('/proc/self/environ').read() + str(os.environ)
open(os.environ['OUT'], 'w').write(repr((secret, secret in seen, os.environ['DMLC_NUM_SERVER'], sys.stdin.read())))
""" % str(REPOSITORY)


def test_servers_wait_for_instructions_and_hide_the_secret(start_servers, out):
    servers, _ = start_servers(READ_INSTRUCTIONS, 'server')
    servers.wait_for_imports()
    time.sleep(0.3)
    assert not out.exists()
    servers.configure({'DMLC_NUM_SERVER': '2'}, 'the secret')
    servers.wait_for_exit()
    assert out.read_text() == repr(('the secret', False, '2', ''))


def test_early_processes_serve_in_the_same_environment_only(start_servers, monkeypatch):
    start_servers('import sys; print(file=open(0, "w", closefd=False)); sys.stdin.read()')
    early = []
    for name in ('SAME', 'CHANGED'):
        server_processes.start_early(['server'])
        early.append(server_processes._early[0])
        if name == 'CHANGED':
            monkeypatch.setenv(name, '1')
        taken = server_processes.started(['server'])
        assert (taken is early[-1]) == (name == 'SAME') and taken.roles == ['server']
        taken.end()
    assert early[1]._processes[0][1].wait(30) == -9


@pytest.mark.parametrize('waits', [False, True])
def test_servers_without_instructions_end_with_their_worker(start_servers, out, waits):
    servers, _ = start_servers(READ_INSTRUCTIONS, 'server')
    process = servers._processes[0][1]
    if waits:
        assert select.select(servers._inputs, [], [], 30)[0]  # its line was not read: the connection will be reset
    servers._inputs[0].close()
    assert process.wait(30) == 0 and not out.exists()


def test_processes_that_start_early_have_imported_their_modules(start_servers, out):
    start_servers("import time; time.sleep(1); open(__import__('os').environ['OUT'], 'w')\n" + READ_INSTRUCTIONS)
    server_processes.start_early(['server'])
    assert out.exists()
    server_processes.started(['server']).end()


@pytest.mark.parametrize('program', ['raise SystemExit(3)', 'import time; time.sleep(600)'])
@pytest.mark.timeout(60)
def test_an_import_that_does_not_end_keeps_nobody_waiting(start_servers, monkeypatch, program):
    monkeypatch.setattr(server_processes, 'IMPORT_S', 0.3)
    start_servers(program)
    server_processes.start_early(['server', 'scheduler'])
    server_processes.started(['server', 'scheduler']).end()


def test_a_server_that_died_before_its_instructions_is_reported(start_servers):
    servers, deaths = start_servers('raise SystemExit(3)', 'server')
    process = servers._processes[0][1]
    process.wait(30)
    servers.configure({}, 'abc')
    servers.watch(deaths.append)
    until(lambda: deaths)
    assert deaths == ['the server with pid %d on host %s ended with exit status 3'
                      % (process.pid, socket.gethostname())]


def test_servers_have_only_the_import_path(start_servers, out, tmp_path, monkeypatch):
    planted = tmp_path / 'elsewhere'
    planted.mkdir()
    for name in ('secrets', 'beside'):
        (planted / (name + '.py')).write_text('raise SystemExit("planted")')
    (tmp_path / 'beside.py').write_text('')
    start_servers("import json, os, secrets, sys, beside\njson.dump(sys.path, open(os.environ['OUT'], 'w'))")
    monkeypatch.chdir(planted)
    ServerProcesses(['server']).wait_for_exit()
    assert json.loads(out.read_text()) == sys.path


def test_servers_outlive_the_thread_that_started_them(start_servers):
    started = []
    thread = threading.Thread(target=lambda: started.append(start_servers('import time; time.sleep(60)', 'server')))
    thread.start()
    thread.join()
    (servers, deaths), = started
    servers.watch(deaths.append)
    assert [role for role, _ in servers.pids()] == ['server']
    # Each look at it comes after the thread's end, and a signal would have come with that.
    time.sleep(1)
    assert not deaths and servers._processes[0][1].poll() is None


def test_an_impossible_start_is_the_callers_error(start_servers, monkeypatch):
    monkeypatch.setattr(sys, 'executable', '/nonexistent/python')
    with pytest.raises(FileNotFoundError, match='/nonexistent/python'):
        start_servers('', 'server')


def test_the_death_of_a_server_is_reported_once(start_servers):
    servers, deaths = start_servers('import time; time.sleep(60)', 'scheduler', 'server')
    servers.watch(deaths.append)
    pid = servers._processes[1][1].pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: deaths)
    assert deaths == ['the server with pid %d on host %s ended with signal 9 (SIGKILL); if nobody killed it, memory '
                      'ran out: see dmesg, or the limit of the container, and give it more memory, use more servers, '
                      'or keep rows of dynamic tables in files (MXHYBRID_STORAGE)' % (pid, socket.gethostname())]


def test_servers_may_end_after_wait_for_exit_and_must(start_servers, monkeypatch):
    monkeypatch.setattr('mxhybrid.job.server_processes.EXIT_GRACE_S', 0.2)
    servers, deaths = start_servers('import time; time.sleep(60)', 'server')
    servers.watch(deaths.append)
    servers.wait_for_exit()
    assert servers._processes[0][1].returncode == -signal.SIGKILL
    time.sleep(0.8)
    assert not deaths


SILENCE = 'worker 0, which watches the job, has been silent for 5 s: it hangs'


@pytest.mark.parametrize('silence, cause', [(None, 'the server ended'), (SILENCE, SILENCE)])
def test_a_silent_worker_0_outranks_an_ended_server(monkeypatch, silence, cause):
    sent, failures, texts = [], [], []
    guard = Guard(SimpleNamespace(), SimpleNamespace(fail=failures.append), None)
    guard.lifeline = SimpleNamespace(send=sent.append, suspected_silence=lambda: silence)
    monkeypatch.setattr(guard_module, 'leave', lambda text, cleanup: texts.append(text))
    guard._server_died('the server ended')
    assert sent == [{'server_died': 'the server ended'}]
    assert failures == [cause] and texts == [' ends, because ' + cause]
