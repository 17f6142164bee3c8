"""Sharded updates: each worker updates rows of the weights and keeps their state; the results equal one process."""
import re

import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from . import BODIES

BODY = BODIES / 'sharded_updates.py'
WORKERS = 3


def assert_near(expected, actual, case):
    """Compare the arrays of a case: float64 to 1e-10."""
    assert sorted(expected) == sorted(actual), case
    for name, values in expected.items():
        tolerance = {'float64': 1e-10, 'float32': 1e-5, 'float16': 2e-3}[actual[name].dtype.name]
        np.testing.assert_allclose(actual[name], values, rtol=tolerance, atol=tolerance,
                                   err_msg='%s: %s' % (case, name))


def assert_cases_near(result, least):
    """Compare all cases, of which there are at least some, on every worker."""
    for rank, values in result.results.items():
        assert len(values['expected']) >= least
        for case, expected in values['expected'].items():
            assert_near(expected, values['outcomes'][case], 'rank %d, %s' % (rank, case))


@pytest.fixture(scope='module')
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp('states')
    result = run_job(BODY, 'horovodrun', workers=WORKERS, args=[folder], timeout=240).ok()
    assert sorted(result.results) == list(range(WORKERS))
    return result


def test_every_case_equals_one_process(results):
    assert_cases_near(results, 29)


def test_report_has_the_bytes_of_state(results):
    held = 0
    for values in results.results.values():
        found = re.search(r'this worker updates (\d+) B of 1.3 kB of weights, with (.*) of optimizer state',
                          values['table'])
        assert found, values['table']
        held += int(found.group(1))
        assert 300 < int(found.group(1)) < 600
    assert abs(held - 8 * (7 * 6 + 11 * 8 + 3 * 12)) < 3


def test_impossible_sharding_is_refused_everywhere(results):
    for values in results.results.values():
        for name, said in values['said'].items():
            words = (['without allreduce_grads()', 'shard_updates=1', 'trainer.step(batch_size)'] if name == 'update'
                     else ['optimizer %s ' % name, 'sgd or adam', 'leave shard_updates out'])
            assert all(word in said for word in words), (name, said)


def test_updates_on_the_store_are_logged_as_unsharded(results):
    assert results.output.count('shard_updates=1 has no effect: the store updates the weights '
                                '(update_on_kvstore=True)') == 1
    for values in results.results.values():
        assert_near(values['expected']['momentum'], values['left'], 'update_on_kvstore')


def test_split_networks(tmp_path):
    result = run_job(BODY, 'launch.py', workers=2, args=['plan', tmp_path], timeout=180).ok()
    assert_cases_near(result, 3)


@pytest.mark.slow
def test_all_kinds_of_parameters_and_optimizers():
    """Tables, several devices and updates on the store work as without sharding, together with weights that are
    sharded.
    """
    body = BODIES / 'train.py'
    expected = comparing.reference(body)
    cases = {name: values for name, values in expected.items()
             if isinstance(values, dict) and not name.endswith(('-groupadagrad', '-lamb'))}
    assert len(cases) > 40
    result = run_job(body, 'horovodrun', workers=2, args=['--cases', ','.join(cases)],
                     env={'MXHYBRID_SHARD_UPDATES': '1'}, timeout=240).ok()
    comparing.assert_cases(cases, result, 2)
