"""Jobs with a failing process end non-zero in time and name the first failure; strangers change nothing."""
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from lab.jobs import run_job, start_job
from lab.processes import PATIENCE

from ...helpers.turns import by_turns, slow
from . import BODIES

BODY = BODIES / 'faults.py'
LAUNCHERS = ['horovodrun', 'launch.py']

#: Seconds in which a job must be over after a process of it failed.
DEADLINE_S = 30


@pytest.mark.parametrize('launcher, rank', by_turns(LAUNCHERS, [0, 1, -1]))
def test_exception_in_a_worker(launcher, rank):
    """An error of one worker, or the same one of all, is written in full once; other processes point to it."""
    result = run_job(BODY, launcher, workers=3, args=[rank, 'raise', 5], timeout=60)
    result.failed('ValueError: deliberately wrong', 'worker %d (host' % max(rank, 0))
    assert 'step 8' not in result.output
    assert result.output.count('Traceback') == 1 + (launcher == 'horovodrun')  # which writes one of its own
    assert result.output.count('words, at last') == 1
    told = re.findall(r'ends, because worker (\d) \(.*\) failed: ValueError: deliberately wrong, .* '
                      r'\.\.\. \(in full in the output of worker \1\)', result.output)
    assert len(set(told)) == 1 and rank in (-1, int(told[0]))
    assert '\n[%s]<stderr>:ValueError: deliberately wrong' % told[0] in result.output
    if launcher == 'horovodrun':
        assert len(told) == 4  # two workers, the scheduler and the server


@pytest.mark.parametrize('launcher', [slow('horovodrun'), 'launch.py'])  # the former ends the others by itself
def test_exception_before_the_store(launcher):
    result = run_job(BODY, launcher, workers=2, args=[1, 'early', 0], timeout=DEADLINE_S + 15)
    result.failed('ValueError: deliberately early')


@pytest.mark.parametrize('launcher, rank, what, words', by_turns(LAUNCHERS, [
    (1, 'exit', ['worker 1 ended its script after', 'same number of steps']),
    (0, 'exit', ['worker 0 ended its script after', 'same number of steps']),
    (0, 'server', ['KeyError', 'server']),
]))
def test_other_ends(launcher, rank, what, words):
    # Servers that hear of a worker's failure may be gone before that worker.
    named = ['launch.py: %s with' % ('server' if what == 'server' else 'worker')] if launcher == 'launch.py' else []
    run_job(BODY, launcher, workers=2, args=[rank, what, 4], timeout=60).failed(*words, *named)


def is_pending(process, number):
    """Return whether a process has a signal that it has not handled yet."""
    fields = dict(line.split(':', 1) for line in (Path('/proc') / str(process) / 'status').read_text().splitlines())
    return bool(int(fields['ShdPnd'], 16) >> (number - 1) & 1)


def test_a_worker_that_horovodrun_ends_says_why():
    """Worker 1 gets horovodrun's SIGTERM before it can see that worker 0 is dead, as on a busy machine."""
    with start_job(BODY, 'horovodrun', workers=2, args=[0, 'nothing', 0]) as job:
        job.wait_for_output('step 3', timeout=60)
        killed, stopped = (next(process.pid for process in job.processes('worker') if process.rank == rank)
                           for rank in range(2))
        job.kill(stopped, signal.SIGSTOP)
        job.kill(killed)
        job.wait_until(lambda: is_pending(stopped, signal.SIGTERM), 20, 'SIGTERM for worker 1')
        job.kill(stopped, signal.SIGCONT)
        result = job.wait(timeout=DEADLINE_S).failed()
    assert 'worker 0, which watches the job, died unexpectedly' in first_failure(result)


def first_failure(result):
    """Return the first sentence, of workers or of scripts/launch.py, that names the process that failed first."""
    for line in result.output.splitlines():
        if 'ends, because' in line:
            return line.partition('ends, because')[2]
        if line.startswith('launch.py:') and 'failed first' in line:
            return line
    raise AssertionError('no line names the first process that failed:\n%s' % result.tail())


@pytest.mark.parametrize('launcher, rank, what', by_turns(LAUNCHERS, [(0, 'leave'), (1, 'vanish')]))
def test_worker_leaves_without_a_word(launcher, rank, what):
    """A worker ends with a status of its own, and with 0."""
    result = run_job(BODY, launcher, workers=2, args=[rank, what, 4], timeout=60).failed()
    assert 'worker' in first_failure(result)
    if (launcher, what) == ('launch.py', 'vanish'):
        assert re.search('launch.py: worker .* failed first: .*, after worker .* had left with status 0', result.output)


@pytest.mark.parametrize('launcher, role, which', by_turns(LAUNCHERS, [
    ('worker', 0), ('worker', -1), ('server', -1), ('scheduler', 0)]))
def test_killed_process(launcher, role, which):
    with start_job(BODY, launcher, workers=2, servers=2, args=[0, 'nothing', 0]) as job:
        job.wait_for_output('step 3', timeout=60)
        job.kill(job.processes(role)[which].pid)
        result = job.wait(timeout=DEADLINE_S).failed()
    assert role in first_failure(result)
    assert 'step 599' not in result.output


#: Calls in which workers differ, and words of the message.
CALLS = {'pushes': ['waits at standstill.py:', 'worker 0 made push of 1, worker 1 made push of 2'],
         'no backward': ['waits at standstill.py:', 'worker 1 (host', 'has ended its script',
                         'the same backward passes'],
         'a call more': ['number of calls of networks that are split: worker 0 has 2, worker 1 has 3'],
         'an error': ['has kept the other workers waiting', 'worker 0 (host', ') got an error of MXNet after '
                      'call number', 'a call of a network that is split: Check failed', 'potrf failed'],
         'no step': ['worker 1 ended its script after', 'give every worker the same number of steps']}


@pytest.mark.parametrize('what', [slow(name) if name in ('a call more', 'no step') else name for name in CALLS])
def test_workers_that_wait_for_each_other(what):
    """Check that every worker ends by the deadline, and names the calls."""
    result = run_job(BODIES / 'standstill.py', 'horovodrun', workers=2, args=[what], timeout=60,
                     env={'MXHYBRID_STALL_TIMEOUT': '6', 'MXHYBRID_SILENCE_TIMEOUT': '5'}).failed(*CALLS[what])
    for rank in range(2):
        assert any(words in result.output for words in ('worker %d (host' % rank, '[mxhybrid] worker %d' % rank))
    assert result.seconds < 45 * PATIENCE  # before the time limit


STRANGERS_BODY = BODIES / 'strangers.py'


@pytest.mark.parametrize('launcher, said', [
    ('horovodrun', ['closes a connection from',
                    'ignoring a command that is not from worker 0 of this job: it is not sealed', 'sent again']),
    ('launch.py', ['closes a connection from']),  # its servers take pickles from anybody
])
def test_strangers(launcher, said, tmp_path):
    trace = tmp_path / 'trace.json'
    result = run_job(STRANGERS_BODY, launcher, workers=2, servers=2, args=[tmp_path], timeout=120,
                     env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite', 'MXHYBRID_LOG_LEVEL': 'DEBUG',
                          'MXHYBRID_TRACE': trace}).ok()
    for rank in (0, 1):
        np.testing.assert_allclose(result.results[rank]['weight'], result.results[rank]['expected'], rtol=1e-5)
    for words in said:
        assert words in result.output
    assert [path.name for path in tmp_path.iterdir()] == ['trace.json']  # no side effect of a pickle
    (secret,) = result.results[0]['secrets']
    assert len(secret) == 64 and not result.results[1]['secrets']
    assert result.results[0]['seen'] == result.results[0]['own'] == []
    assert secret not in result.output and secret not in trace.read_text()
    assert result.results[0]['commands'] > 3 and not result.results[1]['commands']
