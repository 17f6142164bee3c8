"""Faults of elastic jobs on this host at rare moments, scripts that cannot run on all numbers of workers, and discovery
scripts that fail.
"""
import pytest
from lab.files import replace_file
from lab.jobs import start_command

from . import (
    BODY,
    discovery_script,
    finish,
    first_steps,
    keeper_pid,
    read_steps,
    run_command,
    start,
    wait_for_step,
    worker_pid,
)

pytestmark = pytest.mark.timeout(400)


def test_faults_in_the_middle_of_a_restore(tmp_path, undisturbed):
    """Worker 0, then a server, is killed when a part of a commit is restored: the same commit is restored again."""
    with start(tmp_path, arguments=['--pause', 0.2, '--hold-restores', 2]) as job:
        wait_for_step(job, tmp_path, 0, 12)  # the commit of step 5 is complete before that of step 10 begins
        job.kill(worker_pid(job, 1))
        job.wait_until((tmp_path / 'restoring.1').exists, 90, 'the restore of generation 1')
        job.kill(worker_pid(job, 0))
        job.wait_until((tmp_path / 'restoring.2').exists, 90, 'the restore of generation 2')
        job.kill(job.processes('server')[0].pid)
        result = finish(job, undisturbed)
    commit = (tmp_path / 'restoring.1').read_text()
    assert (tmp_path / 'restoring.2').read_text() == commit and '/%s\n' % commit in result.output
    first = first_steps(tmp_path)
    assert set(first) == {0, 3} and first[3] in (6, 11) and result.results[0]['resets'] == [3]


@pytest.mark.parametrize('part', ['arrays', 'tables', 'rows'])
def test_a_commit_lost_in_its_restore_leaves_no_part(tmp_path, undisturbed, part):
    """The keeper is killed before a part of its commit is restored; there is no checkpoint on disk."""
    with start(tmp_path, arguments=['--pause', 0.1, '--hold-restores', 1, '--hold-before', part]) as job:
        wait_for_step(job, tmp_path, 0, 12)
        job.kill(worker_pid(job, 1))
        job.wait_until((tmp_path / 'restoring.1').exists, 90, 'the restore of generation 1')
        keeper = keeper_pid(job)
        job.kill(keeper)
        job.wait_until(lambda: keeper not in [process.pid for process in job.processes()], 30, 'the end of the keeper')
        replace_file(tmp_path / 'go', '')
        result = finish(job, undisturbed)
    steps = [step for generation, step, _ in read_steps(tmp_path) if generation]
    assert steps == list(range(1, 31)) and result.results[0]['resets'] == [2]


@pytest.mark.parametrize('has_committed', [True, False])
def test_a_job_waits_until_its_plan_fits(tmp_path, undisturbed, has_committed):
    """A host with one of two workers goes, and the plan does not fit one worker; then it comes back."""
    hosts = tmp_path / 'hosts'
    replace_file(hosts, 'localhost:2')
    options = ['--min-np', 1, '--host-discovery-script', discovery_script(tmp_path, 'cat %s' % hosts)]
    arguments = ['--pause', 0.3, '--plan-for', 2] + ([] if has_committed else ['--hold'])
    with start(tmp_path, options, arguments) as job:
        if has_committed:
            wait_for_step(job, tmp_path, 0, 3)
            replace_file(hosts, 'localhost:1')
        else:
            job.wait_until((tmp_path / 'held.0').exists, 90, 'worker 1 before its State')
            replace_file(hosts, 'localhost:1')
            job.wait_for_output('asked to leave', timeout=30)
            job.kill(worker_pid(job, 1))
        job.wait_for_output('waiting for hosts', timeout=90)
        replace_file(hosts, 'localhost:2')
        result = finish(job, undisturbed)
    assert 'the script cannot run on 1 workers: InputError: plan: ' in result.output
    assert 'for 2 workers, but the job has 1' in result.output and ('attempt' in result.output) != has_committed
    steps = read_steps(tmp_path)
    assert [step for _, step, _ in steps] == list(range(1, 31))
    assert set(first_steps(tmp_path)) == ({0, 2} if has_committed else {2})


def test_a_job_takes_the_most_workers_that_fit(tmp_path):
    """The plan fits one and three workers, and one of three goes; then it comes back."""
    hosts = tmp_path / 'hosts'
    replace_file(hosts, 'localhost:3')
    options = ['-np', 3, '--min-np', 1, '--host-discovery-script', discovery_script(tmp_path, 'cat %s' % hosts)]
    with start(tmp_path, options, ['--pause', 0.3, '--plan-for', 3, 1]) as job:
        wait_for_step(job, tmp_path, 0, 3)
        replace_file(hosts, 'localhost:2')
        job.wait_until(lambda: any(workers == 1 for _, _, workers in read_steps(tmp_path)), 90, 'a step of one worker')
        replace_file(hosts, 'localhost:3')
        result = job.wait(timeout=150).ok()
    assert 'the script cannot run on 2 workers: InputError: plan: ' in result.output and 'attempt' not in result.output
    steps = read_steps(tmp_path)
    assert [step for _, step, _ in steps] == list(range(1, 31))
    assert {(generation, workers) for generation, _, workers in steps} == {(0, 3), (2, 1), (3, 3)}


def test_a_job_ends_if_its_plan_fits_no_more(tmp_path):
    hosts = tmp_path / 'hosts'
    replace_file(hosts, 'localhost:2')
    options = ['--min-np', 1, '--elastic-timeout', 3,
               '--host-discovery-script', discovery_script(tmp_path, 'cat %s' % hosts)]
    with start(tmp_path, options, ['--pause', 0.3, '--plan-for', 2]) as job:
        wait_for_step(job, tmp_path, 0, 3)
        replace_file(hosts, 'localhost:1')
        result = job.wait(timeout=120).failed('the job has 1', 'after 3 s: the job ends. Add hosts, or change --min-np')
    assert result.output.count('the script cannot run on 1 workers: InputError: plan: ') == 2
    assert 'generation 2' not in result.output and result.returncode == 1


@pytest.mark.parametrize('with_script', [False, True])
def test_a_job_ends_if_its_plan_never_fitted(tmp_path, with_script):
    options = ['--max-np', 1]
    if with_script:
        options += ['--host-discovery-script', discovery_script(tmp_path, 'echo localhost')]
    with start_command(run_command(options, [tmp_path, '--plan-for', 2]), body=BODY) as job:
        result = job.wait(timeout=90).failed('the script cannot run on 1 workers: InputError: plan: ')
    assert 'generation 1' not in result.output and 'waiting' not in result.output and result.returncode == 1


#: Outcomes of a discovery script, by the word in a file, and the problems that the launcher names.
DISCOVERY = """
echo >> {0}.runs
case $(cat {0}) in
    good) echo localhost:2;;
    fails) exit 1;;
    twice) echo localhost:1; echo localhost:2;;
    slow) sleep 1000;;
esac
"""
PROBLEMS = {'fails': 'ended with status 1', 'empty': 'printed no host', 'slow': 'took more than 10 s',
            'twice': "the output: host 'localhost' is given twice: give it once, with all of its workers"}


def test_a_job_trains_while_its_discovery_script_fails(tmp_path, undisturbed):
    """The job waits for the first list; then it goes on with the last one, and names each problem once."""
    mode = tmp_path / 'mode'
    replace_file(mode, 'fails')

    def wait_for_runs(count):
        runs = (tmp_path / 'mode.runs').read_text().count('\n')
        job.wait_until(lambda: (tmp_path / 'mode.runs').read_text().count('\n') >= runs + count, 60, 'more runs')

    script = discovery_script(tmp_path, DISCOVERY.format(mode))
    with start(tmp_path, ['--host-discovery-script', script], ['--hold-at', 29]) as job:
        job.wait_for_output('ended with status 1: waiting for hosts', timeout=30)
        for word in ('good', 'empty', 'fails', 'twice', 'slow'):
            replace_file(mode, word)
            if word == 'good':
                wait_for_step(job, tmp_path, 0, 3)
            else:
                job.wait_for_output(PROBLEMS[word] + ': the hosts stay localhost', timeout=60)
            if word != 'slow':
                wait_for_runs(3)
        (tmp_path / 'go').write_text('')
        result = finish(job, undisturbed)  # the script ends, too
    assert set(first_steps(tmp_path)) == {0}
    for problem in PROBLEMS.values():
        assert result.output.count(problem + ': the hosts stay localhost') == 1, problem


@pytest.mark.parametrize('word', sorted(PROBLEMS))
def test_a_discovery_script_that_always_fails_ends_the_job(tmp_path, word):
    mode = tmp_path / 'mode'
    mode.write_text(word)
    script = discovery_script(tmp_path, DISCOVERY.format(mode))
    options = ['-np', 2, '--elastic-timeout', 2, '--host-discovery-script', script]
    with start_command(run_command(options, [tmp_path]), body=BODY) as job:
        result = job.wait(timeout=60).failed('%s after 2 s: the job ends' % PROBLEMS[word])
    assert result.output.count('the hosts stay none') == 1 and 'generation 0' not in result.output
