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
def workers(request):
    """The reports of all workers, in the order of their ranks."""
    launcher, count = request.param
    results = run_job(BODY, launcher, workers=count, timeout=120).ok().results
    return [results[rank] for rank in range(count)]


@pytest.mark.parametrize('case', EXPECTED)
def test_every_worker_is_told_both_values(workers, case):
    odd, others, setting, first, last = EXPECTED[case]
    assert [reports[case]['step'] for reports in workers] == [others] * (len(workers) - 1) + [odd]
    for reports in workers:
        assert 'workers differ in their %s: worker 0 has %s, worker %d has %s;' % (
            setting, first, len(workers) - 1, last) in reports[case]['said']


@pytest.mark.parametrize('case, words', [
    ('multiplier', ['lr_mult']), ('given', ['dense', 'worker %d now has other values']),
    ('drawn', ['dense', 'worker %d now has other values'])])
def test_other_multipliers_and_values_are_refused(workers, case, words):
    for reports in workers:
        assert reports[case]['step'] == 3
        for text in words:
            assert text.replace('%d', str(len(workers) - 1)) in reports[case]['said']


def test_an_agreed_error_updates_nothing(workers):
    assert all(reports['batch-first']['kept'] for reports in workers)


@pytest.mark.parametrize('case', ['logs', 'given-back'])
def test_reading_a_rate_and_restoring_values_are_allowed(workers, case):
    for reports in workers:
        assert reports[case]['step'] is None
        np.testing.assert_array_equal(reports[case]['weight'], workers[0][case]['weight'])
