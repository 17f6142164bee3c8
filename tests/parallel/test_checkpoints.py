"""Checkpoints in jobs: training that is resumed, on any number of processes, equals training that went on."""
import os

import comparing
import pytest
from jobs import BODIES, run_job

BODY = BODIES / 'checkpoints.py'


@pytest.fixture(scope='module')
def alone():
    """MXNet alone, without any checkpoint."""
    return comparing.reference(BODY, '--part', 'alone')


def saved(directory, cases=None, **env):
    """Two workers that save and resume, with two servers and three partitions."""
    options = ['--cases', cases] if cases else []
    return run_job(BODY, 'horovodrun', workers=2, servers=2, timeout=150, env=env,
                   args=['--part', 'save', '--partitions', '3', '--directory', str(directory)] + options).ok()


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """A job that saved, and where it did."""
    directory = tmp_path_factory.mktemp('together')
    return saved(directory), directory


def assert_resumed(result):
    """Every case went on after a load, twice, with the same bits as without one."""
    cases = [name for name in result.results[0] if 'went on/' + name in result.results[0]]
    assert cases
    for rank in result.results:
        for case in cases:
            for other in (case, 'again/' + case):
                comparing.assert_same_bits(result.results[0]['went on/' + case], result.results[rank][other], other)
    return cases


def test_the_same_job_goes_on_with_the_same_bits(alone, together):
    result = together[0]
    assert len(assert_resumed(result)) == len(alone)
    comparing.assert_cases(alone, result, 2)


@pytest.mark.parametrize('launcher, workers, servers, partitions', [('none', 1, 0, 1), ('launch.py', 3, 1, 5)])
def test_another_job_goes_on(alone, together, launcher, workers, servers, partitions):
    result = run_job(BODY, launcher, workers=workers, servers=servers, timeout=150,
                     args=['--part', 'resume', '--partitions', partitions, '--directory', str(together[1])]).ok()
    comparing.assert_cases(alone, result, workers)


@pytest.mark.parametrize('variable, value', [('MXHYBRID_ROUTES', 'allreduce'), ('MXHYBRID_WIRE_DTYPE', 'float16')])
def test_other_ways_of_tables(alone, tmp_path, variable, value):
    result = saved(tmp_path, 'weight/adam,gradient/adam,weight/rmsprop-centered', **{variable: value})
    assert len(assert_resumed(result)) == 3
    if value == 'allreduce':
        comparing.assert_cases({case: alone[case] for case in ('weight/adam', 'gradient/adam')}, result, 2)


def test_what_fails_on_worker_0_is_raised_on_all(together):
    result, directory = together
    first, second = (result.results[rank]['faults'] for rank in (0, 1))
    assert first == second
    full, step, changed, none = first['errors']
    assert full.startswith('CheckpointError: checkpoint.save failed on worker 0: ') and 'File too large' in full
    assert first['left'] == ['00000001-step-1']
    assert step == '1'
    assert 'damaged checkpoint: %s' % os.path.join(str(directory), 'faults', '00000002-step-3') in result.output
    assert changed.startswith('CheckpointError: checkpoint.load failed on worker 0: ') and 'on the way' in changed
    assert 'no checkpoint in ' in none and 'manifest.json' in none
    assert first['gathered'] == [0, 10]
