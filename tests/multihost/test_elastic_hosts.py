"""``mxhybrid run`` over emulated hosts: hosts are lost, come and go, and the job continues with what is left."""
import json
import os
import re
import signal
import sys

import numpy as np
import pytest
from lab.cluster import EmulatedCluster
from lab.emulation import run
from lab.files import replace_file
from lab.jobs import run_job
from lab.launchers import REPOSITORY
from lab.processes import MARKER, send_signal
from lab.reports import DIRECTORY

from mxhybrid.base.proc import state_and_start

from ..parallel.elastic import (
    BODY,
    EVERY,
    discovery_script,
    first_steps,
    read_steps,
    run_command,
    wait_for_step,
)

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    """Weights of one process."""
    directory = tmp_path_factory.mktemp('alone')
    return run_job(BODY, 'none', args=[directory]).ok().results[0]


def start(cluster, directory, options, arguments=(), env=None):
    """Start a job by a launcher on the first host."""
    command = run_command([*options, '--network-interface', 'e0'],
                          [directory, '--every', EVERY, '--pause', 0.3, *arguments])
    return cluster.start(0, command, env=env, body=BODY)


def kill_host(cluster, index):
    """Kill all processes of a host, its sshd too."""
    for pid in cluster.pids(cluster.hosts[index].namespace):
        send_signal(pid, signal.SIGKILL)


def assert_weights(result, expected, workers):
    """All workers of the last generation have the weights of one process, up to rounding."""
    assert result.results[0]['workers'] == workers
    for name in ('users', 'words', 'score'):
        np.testing.assert_allclose(result.results[0][name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_lost_host_costs_the_steps_since_the_commit(tmp_path, expected):
    """The host of worker 0 is lost, then the next one; that of the launcher is left."""
    with EmulatedCluster(hosts=3) as cluster:
        options = ['--min-np', 1, '--max-np', 3, '-H', 'hostb:1,hostc:1,hosta:1']
        with start(cluster, tmp_path, options) as job:
            wait_for_step(job, tmp_path, 0, 8)
            kill_host(cluster, 1)
            wait_for_step(job, tmp_path, 1, 13)
            kill_host(cluster, 2)
            result = job.wait(timeout=200).ok()
    assert_weights(result, expected, 1)
    steps = read_steps(tmp_path)
    assert [workers for generation, workers in sorted({(made[0], made[2]) for made in steps})] == [3, 2, 1]
    first = first_steps(tmp_path)
    assert first[1] > 5 and first[2] > 10
    assert 'host hostb is left out' in result.output and 'generation 1: 2 workers on hostc:1, hosta:1' in result.output


@pytest.mark.slow
def test_two_lost_neighbours_fall_back_to_the_disk(tmp_path, expected):
    with EmulatedCluster(hosts=4) as cluster:
        options = ['--min-np', 1, '--max-np', 3, '-H', 'hostb:1,hostc:1,hostd:1']
        with start(cluster, tmp_path, options, ['--save-at', 4]) as job:
            wait_for_step(job, tmp_path, 0, 8)
            kill_host(cluster, 1)
            kill_host(cluster, 2)
            result = job.wait(timeout=200).ok()
    assert_weights(result, expected, 1)
    assert 'no keeper has a commit any more: the job continues from the newest checkpoint on disk' in result.output
    assert first_steps(tmp_path)[1] == 5


def test_hosts_come_and_go_without_a_lost_step(tmp_path, expected):
    hosts = tmp_path / 'hosts'
    replace_file(hosts, 'hostb\n')
    with EmulatedCluster(hosts=4) as cluster:
        options = ['--min-np', 1, '--max-np', 2, '--host-discovery-script',
                   discovery_script(tmp_path, 'cat %s' % hosts)]
        with start(cluster, tmp_path, options) as job:
            wait_for_step(job, tmp_path, 0, 3)
            replace_file(hosts, 'hostb\nhostc\n')
            wait_for_step(job, tmp_path, 1, 11)
            replace_file(hosts, 'hostc\nhostd\n')  # worker 0 is on hostb, which has the commit
            result = job.wait(timeout=200).ok()
        cluster.assert_idle()
    assert_weights(result, expected, 2)
    steps = read_steps(tmp_path)
    assert [step for _, step, _ in steps] == list(range(1, 31)), 'no step is lost or repeated'
    assert [workers for generation, workers in sorted({(made[0], made[2]) for made in steps})] == [1, 2, 2]
    assert 'generation 2: 2 workers on hostc:1, hostd:1' in result.output


def test_stopped_workers_of_earlier_generations_disturb_nothing(tmp_path, expected):
    """Worker 1 stops before its keeper knows it, and continues two generations later; worker 0 stops in a commit.

    The servers of its host stop, too: they would kill a silent worker.  horovodrun ends only the ssh of another host.
    """
    def stop(generation, host):
        held = tmp_path / ('held.%d' % generation)
        job.wait_until(held.exists, 100, 'a worker to be at its moment')
        stopped = [process.pid for process in job.processes() if process.role in ('worker', 'server', 'scheduler')
                   and cluster.host_of(process.pid) == host and process.environ['MXHYBRID_RESTART'] == str(generation)]
        assert int(held.read_text()) in stopped and len(stopped) > 1
        for pid in stopped:
            job.kill(pid, signal.SIGSTOP)
        return stopped

    def running(pids):
        return [pid for pid in pids if state_and_start(pid)[0] not in ('', 'Z', 'X')]

    with EmulatedCluster(hosts=3) as cluster:
        options = ['-np', 2, '-H', 'hostb:1,hostc:1']
        with start(cluster, tmp_path, options, ['--hold'], {'MXHYBRID_SILENCE_TIMEOUT': 5}) as job:
            first = stop(0, 2)
            second = stop(1, 1)
            assert running(first) == first
            wait_for_step(job, tmp_path, 2, 7)
            assert not running(second), 'the keeper kills a worker that writes into its folder; its servers follow'
            for pid in first:
                send_signal(pid, signal.SIGCONT)  # a server ends with its worker
            job.wait_until(lambda: not running(first), 60, 'the end of the processes of generation 0')
            result = job.wait(timeout=200).ok()
        cluster.assert_idle()
    assert_weights(result, expected, 2)
    first = first_steps(tmp_path)
    assert first[2] == 6 and set(first) == {1, 2}


WORD_LM = REPOSITORY / 'examples' / 'word_lm.py'


def word_lm_command(hosts, arguments=()):
    """list of str: the language model, elastic, with a worker on each host."""
    return [sys.executable, '-m', 'mxhybrid', 'run', '-np', str(len(hosts)), '--min-np', '2', '-H',
            ','.join(host + ':1' for host in hosts), '--network-interface', 'e0', sys.executable, str(WORD_LM),
            '--elastic', '--save-every', '10', '--batch-size', '60', *arguments]


def test_a_host_that_is_cut_off_comes_back(tmp_path):
    """The example, of which a host loses its network for a time, which costs the steps since the commit.

    The job has more epochs than it can make, and ends by Ctrl-C.
    """
    losses = tmp_path / 'losses'
    losses.write_text('')
    arguments = ['--losses', str(losses), '--max-tokens', '30000', '--vocab', '1000', '--samples', '64', '--embed', '8',
                 '--hidden', '8', '--bptt', '5', '--epochs', '10000']

    def steps():
        return [json.loads(line) for line in losses.read_text().splitlines()]

    with EmulatedCluster(hosts=3) as cluster:
        command = word_lm_command([host.name for host in cluster.hosts], arguments)
        env = {'MXHYBRID_DATA': os.environ.get('MXHYBRID_DATA') or os.path.expanduser('~/.cache/mxhybrid')}
        with cluster.start(0, command, env=env, body=WORD_LM) as job:
            job.wait_until(lambda: len(steps()) > 20, 120, 'step 20')
            run('ip', '-n', cluster.switch, 'link', 'set', 'port2', 'down')
            job.wait_for_output('generation 1: 2 workers on hosta:1, hostb:1', timeout=90)
            steps_made = len(steps())
            job.wait_until(lambda: len(steps()) > steps_made, 90, 'a step of two hosts')
            run('ip', '-n', cluster.switch, 'link', 'set', 'port2', 'up')
            job.wait_for_output('generation 2: 3 workers on hosta:1, hostb:1, hostc:1', timeout=120)
            steps_made = len(steps())
            job.wait_until(lambda: len(steps()) > steps_made + 10, 90, 'steps of three hosts')
            job.kill(job.pid, signal.SIGINT)
            job.wait(timeout=30).failed('ended by SIGINT')
        cluster.assert_idle()
    steps_made = [entry['step'] for entry in steps()]
    assert sorted(set(steps_made)) == list(range(1, max(steps_made) + 1))
    assert len(steps_made) - len(set(steps_made)) <= 10 and steps_made[-1] == max(steps_made)


def test_launch_py_over_ssh_continues_on_other_hosts(tmp_path, expected):
    (tmp_path / 'hosts').write_text('hostb\nhostc\nhostd\n')
    with EmulatedCluster(hosts=4) as cluster:
        passed = [word for name in ('PYTHONPATH', MARKER, DIRECTORY) for word in ('--env', name)]
        command = [sys.executable, str(REPOSITORY / 'scripts' / 'launch.py'), '--min-np', '2', '-n', '3', '-s', '3',
                   '--launcher', 'ssh', '-H', str(tmp_path / 'hosts'), *passed, sys.executable, str(BODY),
                   str(tmp_path), '--every', str(EVERY), '--pause', '0.3']
        with cluster.start(0, command, body=BODY) as job:
            wait_for_step(job, tmp_path, 0, 8)
            kill_host(cluster, 1)
            result = job.wait(timeout=200).ok()
    assert_weights(result, expected, 2)
    assert first_steps(tmp_path)[1] == 6
    # The scheduler of ps-lite gives ranks in the order in which workers come; the host with the commit is the first.
    assert re.search('generation 1: 2 workers on (hostc:1, hostd:1|hostd:1, hostc:1)\n', result.output)
