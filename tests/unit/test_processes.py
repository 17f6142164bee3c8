"""Addresses, ports and the endings of processes."""
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest

from mxhybrid import processes
from mxhybrid.errors import SettingError

# ------------------------------------------------------------------------------------------ endings


@pytest.mark.parametrize('status, text', [
    (0, 'exit status 0'), (1, 'exit status 1'), (-9, 'signal 9 (SIGKILL)'), (-11, 'signal 11 (SIGSEGV)')])
def test_statuses_in_words(status, text):
    assert processes.describe_status(status) == text


def test_every_signal_can_be_described():
    # Real-time signals, 34 and up, have no names but for the first and the last.
    for number in range(1, signal.NSIG):
        assert processes.describe_status(-number).startswith('signal %d' % number)


def test_the_status_of_a_killed_process():
    process = subprocess.Popen(['sleep', '60'])
    process.terminate()
    assert processes.describe_status(process.wait()) == 'signal 15 (SIGTERM)'


# ------------------------------------------------------------------------------------------ addresses


def test_a_free_port_can_be_listened_on():
    port = processes.free_port('127.0.0.1')
    with socket.create_server(('127.0.0.1', port)):
        pass
    assert 0 < port < 65536


def test_loopback_has_its_interface_and_address():
    interface = processes.interface_of('127.0.0.1')
    assert interface is not None
    assert processes.interface_address(interface) == '127.0.0.1'


def test_an_address_of_no_interface_has_none():
    assert processes.interface_of('192.0.2.1') is None  # reserved for documentation


def test_an_unknown_interface_is_named_with_the_known_ones():
    with pytest.raises(SettingError) as caught:
        processes.interface_address('nosuch0')
    text = str(caught.value)
    assert "HOROVOD_GLOO_IFACE='nosuch0'" in text
    assert processes.interface_of('127.0.0.1') in text
    assert '--network-interface' in text


def test_the_address_towards_a_neighbour_is_ours():
    assert processes.address_towards('127.0.0.1', 9) == '127.0.0.1'


# ------------------------------------------------------------------------------------------ the host's own name


def name_resolves(monkeypatch, answer):
    """Have this host be called node7 and its name resolve to `answer`, or raise it."""
    def resolve(name):
        assert name == 'node7'
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, 'gethostname', lambda: 'node7')
    monkeypatch.setattr(socket, 'gethostbyname', resolve)


def test_a_host_name_with_a_network_address_passes(monkeypatch):
    name_resolves(monkeypatch, '10.0.0.7')
    assert processes.check_host_name() == '10.0.0.7'


@pytest.mark.parametrize('address', ['127.0.0.1', '127.0.1.1'])
def test_a_host_name_on_loopback_is_refused_with_the_line_to_write(monkeypatch, address):
    name_resolves(monkeypatch, address)
    with pytest.raises(SettingError) as caught:
        processes.check_host_name()
    text = str(caught.value)
    assert "'node7' resolves to %s" % address in text
    assert '/etc/hosts' in text and '"<its network address> node7"' in text


def test_a_host_name_that_does_not_resolve_is_refused_with_the_line_to_write(monkeypatch):
    name_resolves(monkeypatch, socket.gaierror(-2, 'Name or service not known'))
    with pytest.raises(SettingError) as caught:
        processes.check_host_name()
    text = str(caught.value)
    assert "'node7' does not resolve" in text and 'Name or service not known' in text
    assert '/etc/hosts' in text and '"<its network address> node7"' in text


# ------------------------------------------------------------------------------------------ the rest of a job


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


def test_only_the_named_roles_of_the_same_job_are_ended(sleeper):
    uri, port = 'host-' + uuid.uuid4().hex, '9091'
    same = {'DMLC_PS_ROOT_URI': uri, 'DMLC_PS_ROOT_PORT': port}
    ended = [sleeper(DMLC_ROLE='server', **same), sleeper(DMLC_ROLE='scheduler', **same)]
    spared = [sleeper(DMLC_ROLE='worker', **same),
              sleeper(DMLC_ROLE='server', DMLC_PS_ROOT_URI=uri, DMLC_PS_ROOT_PORT='90910'),
              sleeper(DMLC_ROLE='server', DMLC_PS_ROOT_URI=uri + '0', DMLC_PS_ROOT_PORT=port),
              sleeper(**same), sleeper(DMLC_ROLE='server')]
    processes.end_processes_of_job(uri, port, ('scheduler', 'server'))
    assert [process.wait(5) for process in ended] == [-signal.SIGTERM] * 2
    time.sleep(0.1)
    assert [process.poll() for process in spared] == [None] * 5


def test_the_process_that_ends_a_job_spares_itself(tmp_path):
    uri = 'host-' + uuid.uuid4().hex
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import types\n"
               "package = types.ModuleType('mxhybrid'); package.__path__ = [sys.argv[1] + '/mxhybrid']\n"
               "sys.modules['mxhybrid'] = package\n"
               "from mxhybrid.processes import end_processes_of_job\n"
               "end_processes_of_job(sys.argv[2], '1', ('worker',)); print('alive')")
    package_parent = os.path.dirname(os.path.dirname(processes.__file__))
    done = subprocess.run([sys.executable, '-c', program, package_parent, uri], stdout=subprocess.PIPE, timeout=30,
                          env=dict(os.environ, DMLC_ROLE='worker', DMLC_PS_ROOT_URI=uri, DMLC_PS_ROOT_PORT='1'))
    assert done.returncode == 0 and done.stdout == b'alive\n'


def write_module(directory, text):
    """Make ``python -m mxhybrid.server`` run `text`, in a package that needs no MXNet."""
    (directory / 'mxhybrid').mkdir()
    (directory / 'mxhybrid' / '__init__.py').write_text('')
    (directory / 'mxhybrid' / 'server.py').write_text(text)


@pytest.fixture
def children(tmp_path, monkeypatch):
    """Children of a stand-in for the package whose servers run the text given."""
    made = []

    def make(text, **environment):
        write_module(tmp_path, text)
        monkeypatch.chdir(tmp_path)  # python -m looks there first
        monkeypatch.setattr(processes, '__file__', str(tmp_path / 'mxhybrid' / 'processes.py'))
        deaths = []
        made.append(processes.Children(environment, deaths.append))
        return made[-1], deaths

    yield make
    for each in made:
        each.expect_end()
        for _, process in each._processes:
            process.kill()
            process.wait()


def until(condition):
    """Wait for a condition, a few seconds at most."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_children_get_their_role_and_parent_but_no_workers_variables(children, tmp_path, monkeypatch):
    for name in ('HOROVOD_RANK', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK', 'DMLC_ROLE'):
        monkeypatch.setenv(name, '3')
    monkeypatch.setenv('KEPT', 'yes')
    made, _ = children("import json, os\njson.dump(dict(os.environ), open(os.environ['OUT'], 'w'))",
                       DMLC_NUM_SERVER='2', OUT=str(tmp_path / 'out'))
    made.start('server', 'abc')
    made.farewell()
    text = (tmp_path / 'out').read_text()
    assert not re.findall('HOROVOD_|OMPI_|PMI_|PMIX_|DMLC_ROLE', text)
    for part in ('"KEPT": "yes"', '"MXHYBRID_ROLE": "server"', '"DMLC_NUM_SERVER": "2"',
                 '"MXHYBRID_PARENT": "%d"' % os.getpid(), '"MXHYBRID_SECRET": "abc"'):
        assert part in text
    assert 'MXHYBRID_SECRET' not in os.environ


def test_the_death_of_a_child_is_told_once_with_its_role_and_status(children):
    made, deaths = children('import time; time.sleep(60)')
    made.start('scheduler', 'abc')
    made.start('server', 'abc')
    made.watch()
    pid = made._processes[1][1].pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: deaths)
    assert deaths == ['the server with pid %d on host %s ended with signal 9 (SIGKILL)' % (pid, socket.gethostname())]


def test_children_may_end_after_the_farewell_and_must(children, monkeypatch):
    monkeypatch.setattr(processes, 'FAREWELL_S', 0.2)
    made, deaths = children('import time; time.sleep(60)')
    made.start('server', 'abc')
    made.watch()
    made.farewell()
    assert made._processes[0][1].returncode == -signal.SIGKILL
    time.sleep(0.8)
    assert not deaths
