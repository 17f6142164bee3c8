"""Jobs of ``mxhybrid run`` on this host continue after faults, from commits in memory or from checkpoints on disk."""
import os
import signal
import subprocess

import pytest
from lab.jobs import start_command
from lab.launchers import job_command
from lab.processes import read_environ

from . import BODY, EVERY, finish, first_steps, keeper_pid, read_steps, start, wait_for_step, worker_pid

pytestmark = pytest.mark.timeout(400)


def test_killed_processes_cost_the_steps_since_the_commit(tmp_path, undisturbed):
    """A worker, a server and worker 0 are killed, one after the other."""
    with start(tmp_path, arguments=['--pause', 0.2]) as job:
        wait_for_step(job, tmp_path, 0, 7)
        job.kill(worker_pid(job, 1))
        wait_for_step(job, tmp_path, 1, 13)
        job.kill(job.processes('server')[0].pid)
        wait_for_step(job, tmp_path, 2, 22)  # the commit of step 20 is written during step 21
        job.kill(worker_pid(job, 0))
        result = finish(job, undisturbed)
    steps, first = read_steps(tmp_path), first_steps(tmp_path)
    for generation in range(1, 4):
        last = max(step for number, step, _ in steps if number == generation - 1)
        assert first[generation] in (last // EVERY * EVERY + 1, last + 1), steps  # it may be killed in the commit
    assert result.results[0]['resets'] == [3]
    assert 'restored from /proc/' in result.output and 'attempt 1 of 3' in result.output
    assert 'attempt 2 of 3' not in result.output  # each generation has made a commit


def workers_of(job, generation):
    """The process ids of the workers of a generation, by rank."""
    return {process.rank: process.pid for process in job.processes('worker')
            if read_environ(process.pid).get('MXHYBRID_RESTART') == str(generation)}


def test_a_generation_that_stands_by_takes_over(tmp_path, undisturbed):
    """A worker is killed, then one that stands by, and then worker 0."""
    with start(tmp_path, ['--standby'], ['--wait-after', 8, 18]) as job:
        job.wait_for_output('generation 1 stands by', timeout=90)
        job.kill(workers_of(job, 0)[1])
        job.wait_for_output('generation 1: 2 workers on localhost:2, which stood by', timeout=30)
        (tmp_path / 'go-8').touch()
        job.wait_for_output('generation 2 stands by', timeout=90)
        job.kill(workers_of(job, 2)[0])
        job.wait_until(lambda: not workers_of(job, 2), 30, 'the end of those that stand by')
        job.kill(workers_of(job, 1)[0])
        (tmp_path / 'go-18').touch()
        result = finish(job, undisturbed)
    assert 'generation 3: 2 workers on localhost:2\n' in result.output and result.results[0]['resets'] == [3]
    assert [made[0] for made in read_steps(tmp_path)] == sorted(made[0] for made in read_steps(tmp_path))


def test_sigterm_of_a_worker_loses_no_step(tmp_path, undisturbed):
    with start(tmp_path, ['--blacklist-cooldown-range', 1, 1], ['--pause', 0.2]) as job:
        wait_for_step(job, tmp_path, 0, 7)
        job.kill(worker_pid(job, 1), signal.SIGTERM)
        wait_for_step(job, tmp_path, 1, 13)
        job.kill(keeper_pid(job), signal.SIGTERM)
        result = finish(job, undisturbed)
    steps = read_steps(tmp_path)
    assert [step for _, step, _ in steps] == list(range(1, 31)) and steps[-1][0] == 2
    assert 'it is taken away (SIGTERM)' in result.output and 'ended with' not in result.output


def test_a_killed_keeper_does_not_end_training(tmp_path, undisturbed):
    """The commits of the keeper are lost; the first one of the next keeper has all rows."""
    with start(tmp_path, arguments=['--pause', 0.3]) as job:
        wait_for_step(job, tmp_path, 0, 7)
        job.kill(keeper_pid(job))
        job.wait_for_output('another one was started', timeout=30)
        after = read_steps(tmp_path)[-1][1]
        wait_for_step(job, tmp_path, 0, after // EVERY * EVERY + EVERY + 2)  # a commit is written during the next step
        job.kill(worker_pid(job, 0))
        result = finish(job, undisturbed)
    first = first_steps(tmp_path)
    assert set(first) == {0, 1} and first[1] > after // EVERY * EVERY + EVERY
    assert 'a commit failed, and training continues' in result.output


def test_checkpoints_on_disk_are_enough(tmp_path, undisturbed):
    with start(tmp_path, arguments=['--pause', 0.2, '--checkpoints']) as job:
        wait_for_step(job, tmp_path, 0, 7)
        job.kill(worker_pid(job, 1))
        wait_for_step(job, tmp_path, 1, 13)
        job.kill(worker_pid(job, 0), signal.SIGTERM)  # nobody tells: a failure
        result = finish(job, undisturbed)
    assert 'attempt 2 of 3' not in result.output


def test_faults_in_a_commit_and_at_the_start(tmp_path, undisturbed):
    """Worker 0 dies while it writes a commit, a worker when it starts, the scheduler dies, and a worker is stopped."""
    env = {'MXHYBRID_SILENCE_TIMEOUT': 5}
    with start(tmp_path, arguments=['--pause', 0.2, '--die-in-commit'], env=env) as job:
        job.wait_for_output('generation 1:', timeout=90)
        job.wait_until(lambda: any(process.rank == 1 for process in job.processes('worker')), 60, 'worker 1')
        job.kill(worker_pid(job, 1))
        wait_for_step(job, tmp_path, 2, 13)
        job.kill(job.processes('scheduler')[0].pid)
        wait_for_step(job, tmp_path, 3, 17)
        job.kill(worker_pid(job, 1), signal.SIGSTOP)
        result = finish(job, undisturbed)
    first = first_steps(tmp_path)
    assert first[2] == 6, 'the commit that was not complete counts not'
    assert first[3] >= 11 and first[4] >= 16 and set(first) == {0, 2, 3, 4}
    assert 'attempt 2 of 3' in result.output and 'attempt 3 of 3' not in result.output


def test_commits_fail_while_a_keeper_has_no_memory(tmp_path, undisturbed):
    with start(tmp_path, arguments=['--pause', 0.3]) as job:
        wait_for_step(job, tmp_path, 0, 6)
        pid = keeper_pid(job)
        status = os.statvfs('/proc/%d/root/dev/shm' % pid)
        resize = ['nsenter', '-t', str(pid), '-m', 'mount', '-o']
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        subprocess.run([*resize, 'remount,size=%d' % used, '/dev/shm'], check=True)
        job.wait_for_output('a commit failed, and training continues', timeout=60)
        subprocess.run([*resize, 'remount,size=1g', '/dev/shm'], check=True)
        step = read_steps(tmp_path)[-1][1] // EVERY * EVERY + EVERY
        wait_for_step(job, tmp_path, 0, step + 2)
        job.kill(worker_pid(job, 1))
        result = finish(job, undisturbed)
    assert 'No space left on device' in result.output
    assert first_steps(tmp_path)[1] > step


def test_launch_py_continues_from_commits(tmp_path, undisturbed):
    command = job_command(BODY, 'launch.py', 2, 1, [tmp_path, '--every', EVERY, '--pause', 0.2])
    with start_command([*command[:2], '--reset-limit', '1', *command[2:]], body=BODY) as job:
        wait_for_step(job, tmp_path, 0, 7)
        job.kill(worker_pid(job, 1))
        result = finish(job, undisturbed)
    assert 'restored from /proc/' in result.output
    assert first_steps(tmp_path)[1] in (6, 11)


def test_a_step_that_always_fails_ends_the_job(tmp_path):
    with start(tmp_path, ['--reset-limit', 1], ['--fail-at', 9, '--pause', 0.3]) as job:
        result = job.wait(timeout=150).failed('giving up after 2 failures', 'step 9 always fails')
    assert result.returncode not in (0, 2)
    # The first failure comes after a commit, and counts as the first one.
    assert set(first_steps(tmp_path)) == {0, 1}


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_the_job(tmp_path, number):
    with start(tmp_path, arguments=['--pause', 0.5]) as job:
        wait_for_step(job, tmp_path, 0, 3)
        job.kill(job.pid, number)
        result = job.wait(timeout=30).failed('ended by ' + number.name)
    assert 'generation 1' not in result.output


def test_nothing_outlives_a_killed_launcher(tmp_path):
    with start(tmp_path, arguments=['--pause', 0.5]) as job:
        wait_for_step(job, tmp_path, 0, 3)
        job.kill(job.pid)
        result = job.wait(timeout=10)  # raises if a process is left
    assert result.returncode == -signal.SIGKILL
