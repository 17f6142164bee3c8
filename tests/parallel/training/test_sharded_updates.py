"""Sharded updates: each worker updates rows of the weights and keeps their state; the results equal one process."""
import re

import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.joint_jobs import body, run_together
from . import BODIES

BODY, TRAIN = BODIES / 'sharded_updates.py', BODIES / 'train.py'
WORKERS = 3
SHARDED = {'MXHYBRID_SHARD_UPDATES': '1'}
RESUMED = ['resume/dense/sgd-momentum', 'resume/dense/adam']
#: Cases of dense weights that workers update, by script.
CASES = {'train.py': ['dense', 'dense-momentum', 'half', 'add', 'stale-dense'],
         'promises.py': ['scheduler/dense', 'batch_size/dense', 'multipliers/dense', 'freezes/dense', 'clip/dense',
                         'overflow/dense', 'head/dense/sgd-momentum', 'anew/dense', 'parameters/dense',
                         'back/dense/sgd-momentum', 'restore/dense/sgd-momentum', 'save/dense/sgd-momentum',
                         'save/dense/adam', *RESUMED]}


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
def alone(tmp_path_factory):
    """The results of MXNet alone, by script, and the folder of its files."""
    folder = tmp_path_factory.mktemp('alone')
    return {script: comparing.reference(BODIES / script, '--directory', folder, '--cases', ','.join(cases))
            for script, cases in CASES.items()}, folder


@pytest.fixture(scope='module')
def together(alone, tmp_path_factory):
    """The results of workers by script, and of training that is resumed by the way of its updates before and after."""
    folder = tmp_path_factory.mktemp('together')
    bodies = {script: body(BODIES / script, '--directory', folder, '--cases', ','.join(cases), **SHARDED)
              for script, cases in CASES.items()}
    resumed = BODIES / 'promises.py', '--cases', ','.join(RESUMED), '--directory'
    bodies.update({'sharded, then whole': body(*resumed, folder),
                   'alone, then sharded': body(*resumed, alone[1], **SHARDED), 'own cases': body(BODY)})
    return run_together(bodies, 'horovodrun', workers=WORKERS, timeout=280)


@pytest.fixture
def results(together):
    assert sorted(together['own cases'].results) == list(range(WORKERS))
    return together['own cases']


def test_every_case_equals_one_process(results):
    assert_cases_near(results, 13)


@pytest.mark.parametrize('script', CASES)
def test_cases_of_other_scripts_equal_one_process(alone, together, script):
    comparing.assert_cases({case: alone[0][script][case] for case in CASES[script]}, together[script], WORKERS)


@pytest.mark.parametrize('way', ['sharded, then whole', 'alone, then sharded'])
def test_states_are_those_of_whole_updates(alone, together, way):
    comparing.assert_cases({case: alone[0]['promises.py'][case] for case in RESUMED}, together[way], WORKERS)


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
    result = run_job(BODY, 'launch.py', workers=2, args=[tmp_path], timeout=180).ok()
    assert_cases_near(result, 3)


@pytest.mark.slow
def test_all_kinds_of_parameters_and_optimizers():
    """Tables, several devices and updates on the store work as without sharding, together with weights that are
    sharded.
    """
    expected = comparing.reference(TRAIN)
    cases = {name: values for name, values in expected.items()
             if isinstance(values, dict) and not name.endswith(('-groupadagrad', '-lamb'))}
    assert len(cases) > 40
    result = run_job(TRAIN, 'horovodrun', workers=2, args=['--cases', ','.join(cases)], env=SHARDED,
                     timeout=240).ok()
    comparing.assert_cases(cases, result, 2)
