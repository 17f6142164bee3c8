"""A job that fails is started again and goes on where its newest checkpoint is, as if nothing had happened."""
import json
import os
import shlex
import signal
import sys

import pytest
from lab.jobs import start_command
from lab.launchers import REPOSITORY, job_command

from mxhybrid.base.proc import state_and_start

RESTART = [sys.executable, str(REPOSITORY / 'scripts' / 'restart.py')]
LAUNCH = [sys.executable, str(REPOSITORY / 'scripts' / 'launch.py')]
WORD_LM = REPOSITORY / 'examples' / 'word_lm.py'

# Prints its start, and ends as its first argument says; the start with the number of the second argument succeeds.
SCRIPT = """
import os, signal, sys, time
print('start', os.environ['MXHYBRID_RESTART'], flush=True)
what, good = sys.argv[1], sys.argv[2]
if os.environ['MXHYBRID_RESTART'] == good:
    sys.exit(0)
if what.startswith('SIG'):
    os.kill(os.getpid(), getattr(signal, what))
if what == 'wait':
    def end(number, frame):
        print('got', signal.Signals(number).name, flush=True)
        sys.exit(9)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    print('waiting', flush=True)
    time.sleep(60)
sys.exit(int(what))
"""


def start(tmp_path, restarts, what, good=-1, by=RESTART):
    """Start the script; `good` is the number of the start that succeeds."""
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    words = [sys.executable, str(path), what, str(good)]
    if by is LAUNCH:
        return start_command(LAUNCH + ['--restarts', str(restarts), '-n', '1', '-s', '0', '--launcher', 'local', '--']
                             + list(map(shlex.quote, words)), body=path)
    return start_command(RESTART + ['-n', str(restarts), '--'] + words, body=path)


def run(*args, **keywords):
    """Run it to its end; return its status, and the output of its starts."""
    with start(*args, **keywords) as job:
        result = job.wait(timeout=30)
    starts = [line.split()[1] for line in result.output.splitlines() if line.startswith('start ')]
    return result.returncode, starts, result


@pytest.mark.parametrize('name, status', [('nowhere', 127), ('.', 126)])
def test_an_impossible_command_has_the_status_of_shells(tmp_path, name, status):
    command = str(tmp_path / name)
    with start_command(RESTART + ['-n', '3', '--', command]) as job:
        result = job.wait(timeout=30)
    assert result.returncode == status and result.output.count(command) == 1


@pytest.mark.parametrize('by', [RESTART, LAUNCH], ids=['restart.py', 'launch.py'])
def test_a_command_is_started_until_it_succeeds(tmp_path, by):
    assert run(tmp_path, 3, '5', good=2, by=by)[:2] == (0, ['0', '1', '2'])


@pytest.mark.parametrize('restarts', [0, 2])
def test_a_command_that_never_succeeds_gives_its_status(tmp_path, restarts):
    status, starts, result = run(tmp_path, restarts, '7')
    assert (status, starts) == (7, list(map(str, range(restarts + 1))))
    assert ('as %d times before: giving up' % restarts in result.output) == (restarts > 0)


def test_a_crash_is_a_failure(tmp_path):
    assert run(tmp_path, 1, 'SIGKILL')[:2] == (137, ['0', '1'])


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_command_that_was_ended_is_not_started_again(tmp_path, name):
    status, starts, result = run(tmp_path, 5, name)
    assert (status, starts) == (128 + getattr(signal, name), ['0'])
    assert 'ended by %s: not started again' % name in result.output


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_signal_is_passed_on_and_ends_it_all(tmp_path, name):
    with start(tmp_path, 5, 'wait') as job:
        job.wait_for_output('waiting', timeout=20)
        job.kill(job.pid, getattr(signal, name))
        result = job.wait(timeout=20)
    assert result.returncode == 9
    assert result.output.count('start ') == 1 and 'got ' + name in result.output


def test_the_command_ends_with_a_killed_script(tmp_path):
    with start(tmp_path, 5, 'wait') as job:
        job.wait_for_output('waiting', timeout=20)
        job.kill(job.pid)
        result = job.wait(timeout=20)
    assert result.output.count('start ') == 1


@pytest.mark.parametrize('command', [RESTART + ['-n', '-1', '--', 'true'], RESTART + ['-n', '1'],
                                     RESTART + ['true'], LAUNCH + ['--restarts', 'x', '-n', '1', 'true'],
                                     LAUNCH + ['--restarts']])
def test_wrong_command_lines_are_refused(command):
    with start_command(command) as job:
        assert job.wait(timeout=20).returncode == 2


# ------------------------------------------------------------------------------------------------ a real job

SAVE_EVERY = 5
ARGUMENTS = ['--epochs', '2', '--max-tokens', '30000', '--vocab', '2000', '--samples', '128', '--embed', '24',
             '--hidden', '24', '--dropout', '0.2', '--layers', '2', '--save-every', str(SAVE_EVERY), '--resume']


def read_losses(path):
    """Losses by step, in the order in which they were computed, and the number of steps that were made twice with the
    same loss.
    """
    losses, again = {}, 0
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        again += entry['step'] in losses
        assert losses.setdefault(entry['step'], entry['loss']) == entry['loss'], 'step %d differs' % entry['step']
    return losses, again


def command_line(launcher, restarts, arguments):
    """list of str: the command that starts the language model, again if need be."""
    command = job_command(WORD_LM, launcher, 2, 1, arguments)
    if launcher == 'launch.py':
        return command[:2] + ['--restarts', str(restarts)] + command[2:]
    return RESTART + ['-n', str(restarts), '--'] + command


def word_lm(tmp_path, name, launcher, restarts):
    """Start the language model; returns the job and the file of its losses."""
    path = tmp_path / (name + '.losses')
    path.write_text('')
    arguments = ARGUMENTS + ['--checkpoint', str(tmp_path / name), '--losses', str(path)]
    env = {'MXHYBRID_DATA': os.environ.get('MXHYBRID_DATA')}
    return start_command(command_line(launcher, restarts, arguments), body=WORD_LM, env=env), path


def kill_between_checkpoints(job, path, first):
    """Kill worker 0 once it has made step `first`, and a step that no checkpoint has."""
    def steps():
        return len(path.read_text().splitlines())
    job.wait_until(lambda: steps() >= first, 120, 'step %d' % first)
    worker = next(process.pid for process in job.processes('worker') if process.rank == 0)

    def has_stopped_between():
        job.kill(worker, signal.SIGSTOP)  # on a busy machine, the next checkpoint may be written before a signal comes
        job.wait_until(lambda: state_and_start(worker)[0] == 'T', 20, 'worker 0 to stop')
        if steps() % SAVE_EVERY:
            return True
        job.kill(worker, signal.SIGCONT)
        return False
    job.wait_until(has_stopped_between, 60, 'a step between two checkpoints')
    job.kill(worker)


@pytest.mark.timeout(300)
def test_a_killed_job_goes_on_with_the_same_losses(tmp_path):
    """Worker 0 is killed between two checkpoints, in the second epoch."""
    job, path = word_lm(tmp_path, 'undisturbed', 'launch.py', 0)
    with job:
        last = job.wait(timeout=150).ok().output.splitlines()[-1]
    expected, again = read_losses(path)
    assert again == 0 and sorted(expected) == list(range(1, len(expected) + 1)) and len(expected) > 20
    job, path = word_lm(tmp_path, 'killed', 'horovodrun', 1)
    with job:
        kill_between_checkpoints(job, path, len(expected) // 2 + 2)
        output = job.wait(timeout=200).ok().output
    losses, again = read_losses(path)
    assert losses == expected and 0 < again < SAVE_EVERY
    assert output.count('start 2 of 2 follows') == output.count('resumed after') == 1
    assert 'final test' in last and last.split()[-1] == output.split()[-1]
