"""Checkpoints in jobs: training that is resumed, on any number of processes, equals training that went on."""
import os

import pytest
from lab.jobs import run_job

from ...helpers import comparing
from . import BODIES

BODY = BODIES / 'checkpoints.py'


@pytest.fixture(scope='module')
def alone():
    """MXNet alone, without any checkpoint."""
    return comparing.reference(BODY, '--part', 'alone')


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """Two workers that save and resume, with two servers and three partitions, and where they saved."""
    directory = tmp_path_factory.mktemp('together')
    args = ['--part', 'save', '--partitions', 3, '--directory', directory]
    return run_job(BODY, 'horovodrun', workers=2, servers=2, args=args, timeout=150).ok(), directory


def test_the_same_job_goes_on_with_the_same_bits(alone, together):
    """Loaded into a fresh model, and into the one that went on."""
    result = together[0]
    comparing.assert_cases(alone, result, 2)
    for case in alone:
        expected = result.results[0]['went on/' + case]
        for values in result.results.values():
            comparing.assert_same_bits(expected, values[case], case)
            comparing.assert_same_bits(expected, values['again/' + case], case + ' again')


@pytest.mark.parametrize('launcher, workers, servers, partitions', [('none', 1, 0, 1), ('launch.py', 3, 1, 5)])
def test_another_job_goes_on(alone, together, launcher, workers, servers, partitions):
    result = run_job(BODY, launcher, workers=workers, servers=servers, timeout=150,
                     args=['--part', 'resume', '--partitions', partitions, '--directory', together[1]]).ok()
    comparing.assert_cases(alone, result, workers)


def test_errors_of_worker_0_are_raised_on_all(together):
    result, directory = together
    first, second = (result.results[rank]['faults'] for rank in (0, 1))
    assert [first[name] for name in ('errors', 'gathered')] == [second[name] for name in ('errors', 'gathered')]
    full, step, changed, none = first['errors']
    assert full.startswith('checkpoint.save failed on worker 0: ') and 'File too large' in full
    assert first['left'] == ['00000001-step-1']
    assert step == '1'
    assert 'damaged checkpoint: %s' % os.path.join(str(directory), 'faults', '00000002-step-3') in result.output
    assert changed.startswith('checkpoint.load failed on worker 0: ') and 'partly' in changed
    assert 'no checkpoint in ' in none and 'manifest.json' in none
    assert first['gathered'] == [0, 10]
