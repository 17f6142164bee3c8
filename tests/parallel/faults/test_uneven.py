"""Workers that differ in a value that must be the same on all: every worker gets an error with both values."""
import numpy as np
import pytest
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'uneven.py'
LAST = 4

#: The step at which the last worker gets the error, that of the others, the setting, and its values on worker 0 and on
#: the last worker.
EXPECTED = {
    'batch-first': (0, 0, 'batch size', '8', '4'), 'batch': (2, 3, 'batch size', '8', '4'),
    'batch-last': (LAST, 'save', 'batch size', '8', '4'), 'batch-table': (0, 0, 'batch size', '8', '4'),
    'rate': (3, 3, 'learning rate', '0.1', '0.05'), 'rate-table': (3, 3, 'learning rate', '0.1', '0.05'),
    'scheduled': (3, 3, 'learning rate', '0.024950025000000008', '0.09980010000000003'),
    'momentum': (3, 3, 'momentum', '0.9', '0.5'), 'momentum-table': (3, 3, 'momentum', '0.9', '0.5'),
    'decay-last': ('save', 'save', 'weight decay', '0', '0.001')}


@pytest.fixture(scope='module', params=[('horovodrun', 2), ('launch.py', 3)], ids=['horovodrun', 'launch.py'])
def job(request):
    """The reports of all workers, and the number of workers."""
    launcher, workers = request.param
    result = run_job(BODY, launcher, workers=workers, timeout=120).ok()
    return result.results, workers


@pytest.mark.parametrize('case', EXPECTED)
def test_every_worker_is_told_both_values(job, case):
    results, workers = job
    odd, others, call, first, last = EXPECTED[case]
    for rank in range(workers):
        found = results[rank][case]
        assert found['step'] == (odd if rank == workers - 1 else others)
        assert 'workers differ in their %s: worker 0 has %s, worker %d has %s;' % (
            call, first, workers - 1, last) in found['said']


def test_other_multipliers_are_refused(job):
    results, workers = job
    for rank in range(workers):
        assert results[rank]['multiplier']['step'] == 3 and 'lr_mult' in results[rank]['multiplier']['said']


def test_an_agreed_error_updates_nothing(job):
    results, workers = job
    assert all(results[rank]['batch-first']['kept'] for rank in range(workers))


def test_logging_the_rate_of_a_schedule_is_no_mistake(job):
    results, workers = job
    assert [results[rank]['logs']['step'] for rank in range(workers)] == [None] * workers


@pytest.mark.parametrize('case', ['given', 'drawn'])
def test_values_of_its_own_on_one_worker_are_refused(job, case):
    results, workers = job
    for rank in range(workers):
        assert results[rank][case]['step'] == 3
        assert 'dense' in results[rank][case]['said'] and 'worker %d now has other values' % (workers - 1) in (
            results[rank][case]['said'])


def test_values_that_are_put_back_are_no_mistake(job):
    results, workers = job
    for rank in range(workers):
        assert results[rank]['given-back']['step'] is None
        np.testing.assert_array_equal(results[rank]['given-back']['weight'], results[0]['given-back']['weight'])
