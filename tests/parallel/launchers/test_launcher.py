"""scripts/launch.py: real jobs of MXNet's own dist_sync, whole, failing, killed and interrupted.

Every job is watched by `jobs`: one that is out of time, or leaves a process behind, fails its test.
"""
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lab import reports
from lab.cluster import SSHD_CONFIG, write_ssh_files
from lab.jobs import run_job, start_command, start_job
from lab.launchers import REPOSITORY, job_command
from lab.processes import MARKER, PATIENCE

from mxhybrid.messaging.addresses import reserve_port

from ...helpers.tracker_ports import tracker_ports
from ...helpers.turns import by_turns, slow
from . import BODIES

BODY = BODIES / 'launched.py'
LAUNCH = str(REPOSITORY / 'scripts' / 'launch.py')
SSHD = shutil.which('sshd', path=os.environ.get('PATH', '') + os.pathsep + '/usr/sbin')

pytestmark = pytest.mark.timeout(120)


def launch(*words, **kwargs):
    """Start scripts/launch.py with these words of its command line."""
    return start_command([sys.executable, LAUNCH, *words], body=BODY, **kwargs)


#: Arguments of a body for tests that ask only for processes: they stay for a minute, and do not import MXNet.
IDLE = ['--idle', '--stay', '60']


def running_job(*args, workers=2):
    """Start a job whose workers are all up, and stay for a minute."""
    job = start_job(BODY, 'launch.py', workers, 1, ['--stay', '60', *args])
    for rank in range(workers):
        job.wait_for_output('worker %d of %d is up' % (rank, workers), timeout=60)
    return job


def test_job_of_several_servers_and_workers():
    result = run_job(BODY, 'launch.py', workers=3, servers=2, timeout=60).ok()
    assert sorted(result.results) == [0, 1, 2]
    assert set(re.findall(r'\[(.*)\]<stdout>:worker \d of 3 is up', result.output)) == {'task 0', 'task 1', 'task 2'}
    for values in result.results.values():
        np.testing.assert_array_equal(values['value'], np.full((3, 2), 6.0))
        assert values['environment']['DMLC_NUM_SERVER'] == '2'


@pytest.mark.parametrize('role, how, status', by_turns(['worker', 'server', 'scheduler'], [
    ('raise', 1), ('exit7', 7), ('kill', 137)]) + [('worker', 'tell', 7)])
def test_first_failure_is_named_and_its_status_kept(role, how, status):
    task = {'worker': '1', 'server': '2', 'scheduler': None}[role]
    args = ['--die', how, '--role', role] + (['--task', task] if task else [])
    result = run_job(BODY, 'launch.py', workers=2, servers=1, args=args, timeout=20)
    assert result.returncode == status
    who = 'scheduler, pid' if role == 'scheduler' else '%s with DMLC_TASK_ID=%s, pid' % (role, task)
    result.failed(who, 'failed first: ' + ('killed by SIGKILL' if how == 'kill' else 'exit status %d' % status))


@pytest.mark.parametrize('role', ['worker', 'server', 'scheduler'])
def test_killed_process_ends_running_job(role):
    with running_job() as job:
        victim = job.processes(role)[0]
        killed = time.monotonic()
        job.kill(victim.pid)
        result = job.wait(timeout=10)
    assert time.monotonic() - killed < 10 * PATIENCE
    assert result.returncode == 137
    result.failed(role, 'pid %d failed first: killed by SIGKILL; ending the other 3' % victim.pid)


def test_processes_deaf_to_sigterm_are_killed():
    with running_job('--deaf', '--idle') as job:
        job.kill(job.processes('worker')[0].pid)
        assert job.wait(timeout=10).returncode == 137


@pytest.mark.parametrize('number, status', [(signal.SIGINT, 130), (signal.SIGTERM, 143), slow(signal.SIGHUP, 129),
                                            (signal.SIGKILL, -9)])
def test_signal_to_launcher_ends_job(number, status):
    with running_job('--idle') as job:
        job.kill(job.pid, number)
        assert job.wait(timeout=10).returncode == status  # and nothing left a few seconds later


DYING_LAUNCHER = """
import os, runpy, signal, subprocess, sys, time
start = subprocess.Popen
def start_and_die(*args, **how):
    start(*args, **how)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen = start_and_die
sys.argv = [%r, '-n', '1', '-s', '1', '--launcher', 'local', 'sleep', '60']
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def test_a_killed_launcher_takes_a_starting_process_along():
    with start_command([sys.executable, '-c', DYING_LAUNCHER % str(LAUNCH)]) as job:
        assert job.wait(timeout=20).returncode == -signal.SIGKILL


def test_killed_launcher_takes_along_what_shells_started():
    # bash stays as the parent of the command here, so python's parent is not the launcher.
    command = job_command(BODY, 'launch.py', 2, 1, IDLE) + ['&&', 'true']
    with start_command(command, body=BODY) as job:
        job.wait_for_output('worker 0 of 2 is up', timeout=60)
        job.kill(job.pid)
        assert job.wait(timeout=10).returncode == -signal.SIGKILL


def test_children_that_outlive_their_worker_are_ended():
    run_job(BODY, 'launch.py', workers=2, servers=1, args=['--leave-child'], timeout=60).ok()


def test_servers_that_linger_are_ended_and_named():
    result = run_job(BODY, 'launch.py', workers=2, servers=1, args=['--no-store'], timeout=60).ok()
    assert 'all workers ended with 0, but' in result.output
    assert 'server with DMLC_TASK_ID=2' in result.output


def test_jobs_started_at_once_do_not_share_a_port():
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(start_job(BODY, 'launch.py', 1, 1)) for _ in range(3)]
        results = [job.wait(timeout=90).ok() for job in jobs]
    ports = {result.results[0]['environment']['DMLC_PS_ROOT_PORT'] for result in results}
    assert len(ports) == 3


def test_environment_options():
    words = ['-n', '1', '-s', '1', '--launcher', 'local', '--env', 'FOR_ALL:a:b c', '--env', 'NOT_SET_HERE',
             '--env-worker', 'OF_ROLE:worker', '--env-server', 'OF_ROLE:server',
             sys.executable, str(BODY), *IDLE]
    with launch(*words) as job:
        job.wait_for_output('worker 0 of 1 is up', timeout=60)
        for role in ('worker', 'server', 'scheduler'):
            job.wait_for_processes(role, 1, timeout=20)
        seen = {role: job.processes(role)[0].environ for role in ('worker', 'server', 'scheduler')}
        job.kill(job.pid, signal.SIGTERM)
        result = job.wait(timeout=10)
    assert {env['FOR_ALL'] for env in seen.values()} == {'a:b c'}
    assert {role: env.get('OF_ROLE') for role, env in seen.items()} \
        == {'worker': 'worker', 'server': 'server', 'scheduler': None}
    assert 'NOT_SET_HERE: not set here' in result.output


@pytest.mark.parametrize('dashes', [[], ['--']], ids=['plain', 'dashes'])
def test_a_command_keeps_its_options_in_a_shell(dashes):
    script = 'import sys; print("the words are", sys.argv[1:]); sys.exit(5)'
    words = ['-n', '1', '-s', '1', '--launcher=local', *dashes, 'X=5;', sys.executable, '-c', shlex.quote(script),
             '-n', '9', '--env', 'A', '--num-workers', '4', '-h', '--queue', '$X', '--', '--p3']
    with launch(*words) as job:
        result = job.wait(timeout=20)
    assert result.returncode == 5
    result.failed("the words are ['-n', '9', '--env', 'A', '--num-workers', '4', '-h', '--queue', '5', '--', '--p3']")


def test_one_worker_without_servers_runs_plainly():
    words = ['-n', '1', '-s', '0', '--launcher', 'local', '--env-worker', 'OF_ROLE:worker', sys.executable, str(BODY)]
    with launch(*words) as job:
        environment = job.wait(timeout=30).ok().results[0]['environment']
    assert environment['OF_ROLE'] == 'worker'
    assert not [name for name in environment if name.startswith('DMLC_')]


@pytest.mark.parametrize('words, message', [
    (['-n', '2', '-s', '0', '--launcher', 'local'], '-s/--num-servers is 0'),
    (['-n', '1', '-s', '0'], '-s/--num-servers is 0'),
    (['-n', '0', '-s', '1', '--launcher', 'local'], '-n/--num-workers is 0'),
    (['-n', '1', '-s', '-1', '--launcher', 'local'], '-s/--num-servers is -1'),
    (['-n', '1', '--launcher', 'ssh'], 'needs -H/--hostfile'),
    (['-n', '1', '--launcher', 'ssh', '-H', 'no-such-file'], 'no-such-file is not a file'),
    (['-n', '1', '--launcher', 'local', '-H', 'hosts'], '--launcher local takes none'),
])
def test_wrong_command_lines_are_refused(words, message):
    with launch(*words, 'true') as job:
        result = job.wait(timeout=10)
    assert result.returncode == 2
    result.failed(message)
    assert 'Traceback' not in result.output


def test_hosts_that_others_cannot_reach_are_refused(tmp_path):
    (tmp_path / 'hosts').write_text('localhost:2222\nelsewhere slots=2\n')
    with launch('-n', '2', '-s', '1', '--launcher', 'ssh', '-H', str(tmp_path / 'hosts'), 'true') as job:
        job.wait(timeout=10).failed('localhost is 127.0.0.1, which other hosts cannot reach')


# ---------------------------------------------------------------------------------------------------- ssh

@pytest.fixture
def ssh_host(tmp_path):
    """Run an sshd for this user on the loopback address; return the hostfile and variables by which launch.py uses it.
    """
    if SSHD is None or shutil.which('ssh') is None:
        pytest.skip('needs openssh-server and openssh-client')
    write_ssh_files(tmp_path, shutil.which('ssh'))
    reservation = reserve_port('127.0.0.1')
    port = reservation.getsockname()[1]
    (tmp_path / 'sshd_config').write_text(SSHD_CONFIG.format(address='127.0.0.1', port=port, directory=tmp_path))
    hostfile = tmp_path / 'hosts'
    hostfile.write_text(f'127.0.0.1:{port}\n')
    server = subprocess.Popen([SSHD, '-D', '-e', '-f', str(tmp_path / 'sshd_config')], stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), timeout=1):
                break
            assert server.poll() is None and time.monotonic() < deadline, 'sshd did not start'
            time.sleep(0.05)
        with tracker_ports():
            yield hostfile, {'PATH': f'{tmp_path}/bin{os.pathsep}{os.environ["PATH"]}'}
    finally:
        server.terminate()
        server.wait(10)
        reservation.close()


def launch_by_ssh(ssh_host, *args, workers=2):
    """Start a job over ssh. Marker and paths travel by --env, as a user's variables do."""
    hostfile, env = ssh_host
    names = [MARKER, reports.DIRECTORY, 'PYTHONPATH', 'PYTHONUNBUFFERED']
    options = [word for name in names for word in ('--env', name)] + ['--env-worker', 'WORDS:two $words']
    return launch('-n', str(workers), '-s', '1', '--launcher', 'ssh', '-H', str(hostfile), *options,
                  sys.executable, str(BODY), *args, env=env, cwd=Path(__file__).parent)


def test_ssh_job(ssh_host):
    with launch_by_ssh(ssh_host) as job:
        result = job.wait(timeout=60).ok()
    assert sorted(result.results) == [0, 1]
    for values in result.results.values():
        np.testing.assert_array_equal(values['value'], np.full((3, 2), 3.0))
        assert values['environment']['WORDS'] == 'two $words'


def test_ssh_worker_fails(ssh_host):
    with launch_by_ssh(ssh_host, '--die', 'exit7', '--role', 'worker') as job:
        result = job.wait(timeout=30)
    assert result.returncode == 7
    result.failed('worker on 127.0.0.1, pid', 'failed first: exit status 7')


@pytest.mark.parametrize('victim, status', [('server', 255), ('launcher', -9)])
def test_ssh_remote_processes_end_with_the_job(ssh_host, victim, status):
    with launch_by_ssh(ssh_host, '--stay', '60') as job:
        for rank in (0, 1):
            job.wait_for_output('worker %d of 2 is up' % rank, timeout=60)
        job.kill(job.pid if victim == 'launcher' else job.processes(victim)[0].pid)
        assert job.wait(timeout=15, grace=8).returncode == status
