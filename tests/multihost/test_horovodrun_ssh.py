"""kvstore='hybrid' over two hosts by horovodrun and ssh; the doctor; Slurm's script; a host with an unknown name."""
import json
import sys

import numpy as np
import pytest
from lab import jobs
from lab.cluster import EmulatedCluster
from lab.jobs import start_command
from lab.launchers import SCRIPTS, beside_python, job_command, over_hosts

from ..parallel.launchers import BODIES as LAUNCHER_BODIES
from . import BODIES

BODY = BODIES / 'train.py'
TABLE = 'net_sparseembedding0_weight'


def horovodrun(job=(BODY,)):
    """Command line for two workers on each of two hosts."""
    return over_hosts([('hosta', 2), ('hostb', 2)], job)


@pytest.fixture(scope='module')
def expected():
    """Weights after training on the joint batches in one process, with MXNet's own store."""
    return jobs.run_job(BODY, 'none', args=['local']).ok().results[0]['weights']


def test_trains_like_one_process(cluster, expected):
    before = [cluster.traffic(i) for i in range(2)]
    with cluster.start(0, horovodrun(), body=BODY) as job:
        servers = job.wait_for_processes('server', 2, timeout=120)
        where = sorted(cluster.host_of(server.pid) for server in servers)
        schedulers = [cluster.host_of(process.pid) for process in job.processes('scheduler')]
        result = job.wait(timeout=120).ok()
    cluster.assert_idle()

    assert where == [0, 1], 'one server on each host'
    assert schedulers == [0], 'the scheduler runs beside rank 0'
    assert [result.results[rank]['host'] for rank in range(4)] == ['hosta', 'hosta', 'hostb', 'hostb']
    for rank in range(4):
        assert result.results[rank]['workers'] == 4
        weights = result.results[rank]['weights']
        assert sorted(weights) == sorted(expected)
        for name in expected:
            np.testing.assert_allclose(weights[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    # Half of the table lives on the other host, and in the end every worker asks for all of it.
    half = expected[TABLE].nbytes // 2
    for i in range(2):
        received, sent = (after - start for start, after in zip(before[i], cluster.traffic(i)))
        assert received > half and sent > half


def test_slurm(cluster, tmp_path):
    """The unchanged batch script, without Slurm: the test provides the variables and the scontrol that it needs."""
    tools = tmp_path / 'bin'
    tools.mkdir()
    for name, command in (('scontrol', '[ "$*" = "show hostnames hosts[a-b]" ] && printf "hosta\\nhostb\\n"'),
                          ('python', 'exec %s "$@"' % sys.executable),
                          ('horovodrun', 'exec %s %s "$@"' % (sys.executable, beside_python('horovodrun')))):
        (tools / name).write_text('#!/bin/sh\n%s\n' % command)
        (tools / name).chmod(0o755)
    script = SCRIPTS / 'templates' / 'slurm.sbatch'
    env = {'INTERFACE': 'e0', 'SLURM_SUBMIT_DIR': str(tmp_path), 'SLURM_JOB_NODELIST': 'hosts[a-b]',
           'SLURM_JOB_NUM_NODES': '2', 'SLURM_NTASKS_PER_NODE': '1', 'SLURM_CPUS_PER_TASK': '1'}
    argv = ['bash', '-c', 'PATH=%s:$PATH exec bash "$@"' % tools, '-', str(script),
            sys.executable, '-m', 'mxhybrid.commands.sanity', '--out', str(tmp_path)]
    output = cluster.run(0, argv, env=env, timeout=250).ok().output

    assert '2 workers of horovodrun on hosta, hostb' in output and '[ ]' not in output
    assert '2 workers and 2 servers joined the job; sums of rows and of a dense array are right' in output
    assert 'no problem was found' in output
    results = [json.loads((tmp_path / ('rank%d.json' % rank)).read_text()) for rank in range(2)]
    assert results[0]['hosts'] == ['hosta', 'hostb'] and results[0]['servers'] == 2
    for result in results:
        assert len(result['errors']) == 8 and max(result['errors'].values()) < 2e-5
    # Half of the rows are updated by the other host's server.
    assert sum(result['bytes']['sent'] for result in results) > results[0]['fewest'] > 0


def test_a_host_name_that_means_loopback():
    with EmulatedCluster(hosts=2, loopback_names=[1]) as cluster:
        with cluster.start(0, horovodrun(('-m', 'mxhybrid', 'doctor'))) as doctor:
            output = doctor.wait(timeout=150).failed('joining a job was not tried').output
        # Found on the one host, reported by worker 0, on the other.
        assert '[0]<stdout>:    [ ] host name hostb is 127.0.1.1' in output and '(hostb)' in output
        assert '[1]<stdout>' not in output and '[ ] host name hosta' not in output
        cluster.assert_idle()
        with cluster.start(0, horovodrun(), body=BODY) as job:
            job.wait_for_processes('worker', 1, timeout=60)
            job.wait(timeout=30).failed('hostb', '127.0.1.1', '/etc/hosts')
        cluster.assert_idle()


LONE_BODY = LAUNCHER_BODIES / 'lone_task.py'


def renamed(command):
    """list of str: a command on this host, under a name that does not resolve."""
    return ['unshare', '--uts', 'sh', '-c', 'hostname "$0" && exec "$@"', 'nobody-knows-this-host'] + command


@pytest.mark.parametrize('launcher', ['horovodrun', 'launch.py'])
def test_a_job_on_one_host(launcher):
    with start_command(renamed(job_command(LONE_BODY, launcher, 2)), body=LONE_BODY) as job:
        result = job.wait(timeout=60).failed("host name 'nobody-knows-this-host' does not resolve", '/etc/hosts')
    assert 'trained' not in result.output and 'Signal' not in result.output


def test_the_doctor():
    command = [sys.executable, '-m', 'mxhybrid', 'doctor', '--timeout', '30']
    with start_command(renamed(command)) as job:
        job.wait(timeout=60).failed("[ ] host name 'nobody-knows-this-host' does not resolve", 'Horovod')
