"""Bad input gets a clear error on every rank that gives it, before anything is sent."""
import re

import numpy as np
import pytest
from lab.jobs import run_job
from lab.processes import PATIENCE

from . import BODIES

BODY = BODIES / 'bad_input.py'
DISAGREE = BODIES / 'disagree.py'
TABLE_INPUT = BODIES / 'table_input.py'

#: Seconds: before the time limit of a job, and long before workers give up waiting (MXHYBRID_TIMEOUT).
PROMPT_S = min(45 * PATIENCE, 110)


@pytest.fixture(scope='module')
def wrong_calls():
    """Two workers whose calls are wrong, and whose table has too few rows for its partitions."""
    return run_job(BODY, 'horovodrun', workers=2, timeout=90).ok()


@pytest.mark.parametrize('launcher, workers', [('none', 1), ('horovodrun', 2), ('launch.py', 2)])
def test_wrong_calls(request, launcher, workers):
    if launcher == 'horovodrun':
        result = request.getfixturevalue('wrong_calls')
    else:
        result = run_job(BODY, launcher, workers=workers, timeout=90).ok()
    assert sorted(result.results) == list(range(workers))
    for values in result.results.values():
        assert not {name: problem for name, problem in values['problems'].items() if problem}
        assert len(values['problems']) > 20
        np.testing.assert_array_equal(values['dense'], np.full((3, 2), workers))
        np.testing.assert_array_equal(values['rows'][0], [workers, workers])
        np.testing.assert_array_equal(values['rows'][1:], np.zeros((len(values['rows']) - 1, 2)))


@pytest.mark.parametrize('launcher, workers', [('none', 1), ('launch.py', 2)])
def test_wrong_input_of_dynamic_tables(tmp_path, launcher, workers):
    result = run_job(TABLE_INPUT, launcher, workers=workers, servers=2, args=[tmp_path / 'saved'], timeout=90,
                     env={'MXHYBRID_MAX_BATCH_ROWS': 100}).ok()
    assert sorted(result.results) == list(range(workers))
    for values in result.results.values():
        assert not {name: problem for name, problem in values['problems'].items() if problem}
        assert len(values['problems']) >= 13


@pytest.mark.parametrize('what, cause', [
    ('one', 'worker 1 .* failed: InputError: net_items_weight: id 1099511627776 is out of range'),
    ('joint', 'a parameter server .* failed: .*net_users_weight: capacity: 8 rows of a partition are fewer than the '
              'distinct keys of one step: give a capacity')])
def test_one_worker_or_all_together_have_wrong_input(what, cause):
    result = run_job(TABLE_INPUT, 'horovodrun', workers=2, servers=1, args=[what], timeout=60).failed()
    for rank in range(2 if what == 'joint' else 1):
        assert re.search('worker %d .* ends, because %s' % (rank, cause), result.output), result.tail()


def test_more_partitions_than_rows_are_reduced_and_reported(wrong_calls):
    assert 'partitions=99 is more than the 5 rows of small: using 5' in wrong_calls.output
    assert wrong_calls.output.count('is more than the') == 1  # tables on workers have no partitions
    assert re.search('^small +5x2 +server weights +5 ', wrong_calls.results[0]['reduced'], re.MULTILINE)


def test_workers_make_different_calls():
    result = run_job(DISAGREE, 'horovodrun', workers=2, args=['calls'], timeout=60)
    result.failed('wait for each other in different calls', 'worker 1 in hybrid0.barrier', 'same order')
    assert result.seconds < PROMPT_S


WRONG_SETTINGS = {
    'MXHYBRID_PARTITIONS=0': ['MXHYBRID_PARTITIONS', "'0'", 'at least 1'],
    'MXHYBRID_PARTITIONS=emb*=many': ['MXHYBRID_PARTITIONS[emb*]', 'many'],
    'MXHYBRID_SERVERS_PER_HOST=-2': ['MXHYBRID_SERVERS_PER_HOST', "'-2'"],
    'MXHYBRID_ROUTES=emb*=ring': ['MXHYBRID_ROUTES[emb*]', 'ring', 'allreduce'],
    'MXHYBRID_TIMEOUT=soon': ['MXHYBRID_TIMEOUT', 'soon']}


@pytest.fixture(scope='module')
def wrong_settings():
    """Two workers that have one wrong setting after the other, and an engine that cannot be used."""
    return run_job(BODIES / 'wrong_settings.py', 'horovodrun', workers=2, args=list(WRONG_SETTINGS), timeout=60,
                   env={'MXNET_ENGINE_TYPE': 'NaiveEngine'}).failed()


@pytest.mark.parametrize('setting', WRONG_SETTINGS)
def test_wrong_environment(wrong_settings, setting):
    for rank in range(2):
        for word in WRONG_SETTINGS[setting]:
            assert word in wrong_settings.results[rank][setting]


def test_the_naive_engine_is_refused(wrong_settings):
    wrong_settings.failed('MXNET_ENGINE_TYPE', 'NaiveEngine', 'unset')
    assert wrong_settings.seconds < PROMPT_S


def test_horovod_without_mxnet(tmp_path):
    (tmp_path / 'horovod').mkdir()
    (tmp_path / 'horovod' / '__init__.py').write_text('')
    assert_refused_early(tmp_path, '', 'Horovod with MXNet support is not installed', 'HOROVOD_WITH_MXNET=1')


def test_horovod_initialised_too_early(tmp_path):
    assert_refused_early(tmp_path, 'import horovod.mxnet as hvd\nhvd.init()\n', 'hvd.size() is 1',
                         'launch.py started 2')


def assert_refused_early(folder, before, *words):
    """Check the error of a script, in a folder that comes first on its path, that runs `before` and makes a store."""
    body = folder / 'body.py'
    body.write_text('import mxnet as mx, mxhybrid\n' + before + 'mx.kv.create("hybrid")\n')
    result = run_job(body, 'launch.py', workers=2, timeout=60).failed(*words)
    assert result.seconds < PROMPT_S


def test_workers_with_other_settings_from_the_start():
    result = run_job(DISAGREE, 'horovodrun', workers=2, args=['settings'], timeout=60)
    result.failed('MXHYBRID_PARTITIONS', 'worker 1')
    assert 'step 0' not in result.output
    assert result.seconds < PROMPT_S


DIFFERENCES = {
    'shape': ['workers disagree', 'layer_bias', '[2]', '[3]'],
    'name': ['workers disagree', 'layer_', 'other_'],
    'number': ['workers disagree', 'net_dense0_bias'],
    'device': ['workers disagree', 'on cpu ', 'on cpu_pinned'],
    'deferred': ['workers disagree', '[2]', '[5]'],
    'partitions': ["MXHYBRID_PARTITIONS is 'layer*=2' on worker 0 but 'layer*=3' on worker 1", 'same value'],
    'on_demand_rows': ['MXHYBRID_ON_DEMAND_ROWS is 1 on worker 0 but 0 on worker 1', 'same value'],
    'wrong': ['partitions=0', 'at least 1']}


@pytest.fixture(scope='module')
def different_workers():
    """Two workers that differ in one thing after the other, and in the end in the number of their steps."""
    return run_job(DISAGREE, 'horovodrun', workers=2, args=[*DIFFERENCES, 'steps'], timeout=120).failed()


@pytest.mark.parametrize('difference', DIFFERENCES)
def test_workers_disagree(different_workers, difference):
    for rank in range(2):
        assert different_workers.results[rank][difference + ' seconds'] < PROMPT_S
        error = different_workers.results[rank][difference]
        for word in DIFFERENCES[difference]:
            assert word in error
    assert '%s: step 0' % difference not in different_workers.output
    if difference == 'wrong':
        assert different_workers.results[0][difference].startswith('worker 1 cannot make this store')


def test_one_worker_makes_more_steps(different_workers):
    assert 'steps: step 1' in different_workers.output
    different_workers.failed('worker 0 ended its script after', 'same number of steps')
