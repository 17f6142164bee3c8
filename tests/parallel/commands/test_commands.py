"""The command mxhybrid in real jobs: the doctor under each launcher, the selftest, and how both end."""
import json
import os
import signal
import sys

import pytest
from lab import jobs
from lab.launchers import REPOSITORY, job_command

MXHYBRID = [sys.executable, '-m', 'mxhybrid']


def launched(launcher, workers, *arguments):
    """The command line of a doctor in each worker of a job."""
    return job_command('-m', launcher, workers, 1, ('mxhybrid', 'doctor') + arguments)


def broken_mxnet(directory):
    """A search path on which MXNet is found, but cannot be imported."""
    (directory / 'mxnet').mkdir()
    (directory / 'mxnet' / '__init__.py').write_text('raise OSError("libmxnet.so: cannot open shared object file")\n')
    return os.pathsep.join([str(directory), str(REPOSITORY)])


def test_doctor_in_a_job(tmp_path):
    """The doctor works under launch.py; tests/multihost/test_horovodrun_ssh.py tests it under horovodrun, too."""
    path = tmp_path / 'found.json'
    with jobs.start_command(launched('launch.py', 2, '--json', str(path))) as job:
        output = job.wait(timeout=200).ok().output
    content = json.loads(path.read_text())
    findings = {one['name']: one for one in content['findings']}
    assert content['ok'] and content['workers'] == 2 and [report['rank'] for report in content['reports']] == [0, 1]
    assert findings['joining']['text'].startswith('2 workers and 1 server joined the job; sums of rows')
    assert findings['clocks']['level'] == 'fine' and abs(findings['clocks']['data']['seconds'][1]) < 1
    assert output.count('no problem was found') == 1, 'one report, by worker 0'


@pytest.mark.parametrize('launcher', ['horovodrun', 'launch.py'])
def test_doctor_where_nobody_can_join(launcher, tmp_path):
    """Break MXNet and Horovod: the findings of workers are reported all the same, and no worker waits."""
    argv = launched(launcher, 2)
    at = argv.index('-m') - 1  # for the workers only: the launcher itself must find the real one
    argv[at:at] = ['env', 'PYTHONPATH=' + broken_mxnet(tmp_path)]
    with jobs.start_command(argv) as job:
        output = job.wait(timeout=90).failed('[ ] import mxnet fails: OSError: libmxnet.so').output
    if launcher == 'horovodrun':  # by worker 0, for all
        assert output.count('[ ] import mxnet fails') == 1 and 'joining a job was not tried' in output
        assert output.count('[ ] Horovod 0.28.1 without MXNet support') == 1


def test_selftest():
    with jobs.start_command(MXHYBRID + ['selftest', '-np', '2']) as job:
        result = job.wait(timeout=250).ok()
    lines = [line.split() for line in result.output.splitlines() if line.strip().startswith('[')]
    assert [line[:2] for line in lines] == [['[X]', name] for name in ('python', 'horovodrun', 'mxhybrid', 'launch.py')]
    assert result.output.count(' sent, ') == 3 and 'the results of all jobs are right' in result.output


def test_selftest_says_what_failed(tmp_path):
    """Jobs that cannot work: the output of their processes is shown."""
    env = {'PYTHONPATH': broken_mxnet(tmp_path)}
    with jobs.start_command(MXHYBRID + ['selftest', '-np', '2', '--launcher', 'launch.py'], env=env) as job:
        output = job.wait(timeout=90).failed('[ ] launch.py', '1 of 1 jobs failed').output
    assert 'worker 0 ended with exit status 1' in output and '| OSError: libmxnet.so: cannot open' in output


def test_selftest_out_of_time():
    with jobs.start_command(MXHYBRID + ['selftest', '--launcher', 'horovodrun', '--timeout', '1']) as job:
        job.wait(timeout=60).failed('[ ] horovodrun', 'not ended after 1 s')


@pytest.mark.parametrize('launcher, number', [('horovodrun', signal.SIGINT), ('launch.py', signal.SIGTERM)])
def test_selftest_interrupted(launcher, number):
    with jobs.start_command(MXHYBRID + ['selftest', '--launcher', launcher]) as job:
        job.wait_for_output('mxhybrid: selftest on', timeout=30)
        job.wait_until(lambda: any('mxhybrid.commands.sanity' in process.cmdline for process in job.processes()), 60,
                       'a worker')
        job.kill(job.pid, number)
        result = job.wait(timeout=30)  # and none of its processes is left
    assert result.returncode == 128 + number, result.output


def test_selftest_killed():
    """The jobs end even if the process that started them is killed."""
    with jobs.start_command(MXHYBRID + ['selftest', '--launcher', 'launch.py']) as job:
        job.wait_for_processes('server', 1, timeout=60)
        job.kill(job.pid, signal.SIGKILL)
        result = job.wait(timeout=30)
    assert result.returncode == -signal.SIGKILL
