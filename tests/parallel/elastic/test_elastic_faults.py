"""Faults of elastic jobs on this host at rare moments."""
import pytest

from . import assert_same_weights, read_steps, start, wait_for_step, worker_pid


@pytest.mark.timeout(400)
def test_faults_in_the_middle_of_a_restore(tmp_path, undisturbed):
    """Worker 0, then a server, is killed when a part of a commit is restored: the same commit is restored again."""
    directory = tmp_path / 'restore'
    with start(directory, arguments=['--pause', 0.2, '--hold-restores', 2]) as job:
        wait_for_step(job, directory, 0, 12)  # the commit of step 5 is complete before that of step 10 begins
        job.kill(worker_pid(job, 1))
        job.wait_until((directory / 'restoring.1').exists, 90, 'the restore of generation 1')
        job.kill(worker_pid(job, 0))
        job.wait_until((directory / 'restoring.2').exists, 90, 'the restore of generation 2')
        job.kill(job.processes('server')[0].pid)
        result = job.wait(timeout=150).ok()
    assert_same_weights(result, undisturbed)
    commit = (directory / 'restoring.1').read_text()
    assert (directory / 'restoring.2').read_text() == commit and '/%s\n' % commit in result.output
    steps = read_steps(directory)
    assert {generation for generation, _, _ in steps} == {0, 3} and result.results[0]['resets'] == [3]
    assert min(step for generation, step, _ in steps if generation == 3) in (6, 11)
