"""A job that fails is started again and goes on where its newest checkpoint is, as if nothing had happened."""
import json
import os
import re
import shlex
import signal
import sys

import pytest
from lab.jobs import start_command
from lab.launchers import REPOSITORY, job_command

from mxhybrid.base.proc import state_and_start

RUN = [sys.executable, '-m', 'mxhybrid', 'run']
LAUNCH = [sys.executable, str(REPOSITORY / 'scripts' / 'launch.py')]
WORD_LM = REPOSITORY / 'examples' / 'word_lm.py'

# Prints its start, and ends as its first argument says; the start with the number of the second argument succeeds.
SCRIPT = """
import os, signal, sys
print('start', os.environ['MXHYBRID_RESTART'], flush=True)
what, good = sys.argv[1], sys.argv[2]
if os.environ['MXHYBRID_RESTART'] == good:
    sys.exit(0)
if what.startswith('SIG'):
    os.kill(os.getpid(), getattr(signal, what))
sys.exit(int(what))
"""


def run(tmp_path, restarts, what, good=-1, by=RUN):
    """Run the script to its end, `good` is the number of the start that succeeds; return its status and its starts."""
    path = tmp_path / 'script.py'
    path.write_text(SCRIPT)
    words = [sys.executable, str(path), what, str(good)]
    if by is LAUNCH:
        command = LAUNCH + ['--reset-limit', str(restarts), '-n', '1', '-s', '0', '--launcher', 'local', '--'] + list(
            map(shlex.quote, words))
    else:
        command = RUN + ['--reset-limit=%d' % restarts, '-np', '1', *words]
    with start_command(command, body=path) as job:
        result = job.wait(timeout=60)
    return result.returncode, re.findall(r'start (\d+)$', result.output, re.MULTILINE), result


@pytest.mark.parametrize('by', [RUN, LAUNCH], ids=['run', 'launch.py'])
@pytest.mark.parametrize('what', ['5', 'SIGKILL', 'SIGTERM'])
def test_a_command_is_started_until_it_succeeds(tmp_path, by, what):
    assert run(tmp_path, 3, what, good=2, by=by)[:2] == (0, ['0', '1', '2'])


@pytest.mark.parametrize('restarts', [0, 2])
def test_a_command_that_never_succeeds_gives_its_status(tmp_path, restarts):
    status, starts, result = run(tmp_path, restarts, '7', by=LAUNCH)
    assert (status, starts) == (7, list(map(str, range(restarts + 1))))
    assert 'giving up after %d failures' % (restarts + 1) in result.output


@pytest.mark.parametrize('words, message', [
    (RUN + ['-np', '1'], 'the command of a worker is missing'),
    (RUN + ['true'], 'the number of workers is missing: give -np'),
    (RUN + ['-np', '1', '--reset-limit', '-1', 'true'], '--reset-limit is -1'),
    (RUN + ['-np', '2', '-H', 'a:1', 'true'], '-H has places for 1 workers, fewer than the 2'),
    (RUN + ['-np', '2', '-H', 'a:1,a:1', 'true'], "host 'a' is given twice"),
    (RUN + ['-np', '2', '-H', 'a:x', 'true'], "'a:x' is not a host"),
    (RUN + ['--min-np', '3', '--max-np', '2', 'true'], '--min-np is 3, more than the 2'),
    (RUN + ['-np', '1', '-H', 'a', '--host-discovery-script', 'b', 'true'], 'are both given'),
    (RUN + ['-np', '1', '--blacklist-cooldown-range', '5', '1', 'true'], 'the lower one first'),
    (LAUNCH + ['--reset-limit', 'x', '-n', '1', 'true'], 'invalid int value'),
    (LAUNCH + ['--reset-limit', '1', '-n', '1', '--launcher', 'mpi', 'true'], 'cannot run elastic jobs'),
    (LAUNCH + ['--reset-limit'], '--reset-limit')])
def test_wrong_command_lines_are_refused(words, message):
    with start_command(words) as job:
        result = job.wait(timeout=20)
    assert result.returncode == 2 and message in result.output


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


def perplexity(output):
    """The last result of the language model."""
    return re.search('final test perplexity (.*)', output).group(1)


def command_line(launcher, restarts, arguments):
    """list of str: the command that starts the language model, again if need be."""
    if launcher == 'launch.py':
        command = job_command(WORD_LM, launcher, 2, 1, arguments)
        return command[:2] + ['--reset-limit', str(restarts)] + command[2:]
    return RUN + ['-np', '2', '--reset-limit', str(restarts), sys.executable, str(WORD_LM), *arguments]


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
        last = perplexity(job.wait(timeout=150).ok().output)
    expected, again = read_losses(path)
    assert again == 0 and sorted(expected) == list(range(1, len(expected) + 1)) and len(expected) > 20
    job, path = word_lm(tmp_path, 'killed', 'horovodrun', 1)
    with job:
        kill_between_checkpoints(job, path, len(expected) // 2 + 2)
        output = job.wait(timeout=200).ok().output
    losses, again = read_losses(path)
    assert losses == expected and 0 < again < SAVE_EVERY
    assert output.count('attempt 1 of 1') == output.count('resumed after') == 1
    assert last == perplexity(output)
