"""Nets with dynamic tables in a job: equal to one process on the joint batch, for every number of partitions."""
import numpy as np
import pytest
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'table_blocks.py'
CASES = ['sgd', 'momentum', 'adam', 'adam on store', 'adagrad', 'groupadagrad', 'ftrl', 'halves', 'amp']


@pytest.fixture(scope='module')
def expected():
    """The results of one process, which the unit tests compare with MXNet's own tables."""
    return run_job(BODY, 'none', args=['--cases', ','.join(CASES)], timeout=120).ok().results[0]


@pytest.mark.parametrize('launcher, workers, servers, partitions, cases', [
    ('horovodrun', 2, 2, 3, CASES), ('launch.py', 3, 2, 7, ['adam', 'adagrad', 'momentum', 'halves', 'amp'])],
    ids=['horovodrun', 'launch.py'])
def test_equals_one_process(expected, launcher, workers, servers, partitions, cases):
    result = run_job(BODY, launcher, workers=workers, servers=servers, args=['--cases', ','.join(cases)],
                     env={'MXHYBRID_PARTITIONS': str(partitions)}, timeout=150).ok()
    assert_equal(expected, result, workers, cases)
    halves = result.results[0]['halves']['users']  # rows that are kept as float16
    assert np.array_equal(halves, halves.astype(np.float16)) and len(np.unique(halves)) > 50
    assert expected['amp']['scale'] == 2 ** 13  # three steps were left out
    assert_reports(result, partitions)
    for messages in (result.results[rank]['disagreements'] for rank in range(workers)):
        assert messages['width'].startswith('dynamic table net_items_weight: workers disagree: worker 0 has width=4, '
                                            'worker 1 has 5')
        assert 'worker 0 has admit=1, worker 1 has 2' in messages['admit']


def assert_equal(expected, result, workers, cases):
    """Compare the rows, the dense weights and the numbers of rows with those of one process."""
    assert sorted(result.results) == list(range(workers))
    for case in cases:
        for name, values in expected[case].items():
            tolerance = 1e-10 if values.dtype == np.float64 else 4e-3 if case == 'halves' else 1e-5
            for rank in range(workers):
                np.testing.assert_allclose(result.results[rank][case][name], values, rtol=tolerance, atol=tolerance,
                                           err_msg='%s: %s on rank %d' % (case, name, rank))
        assert result.results[0]['rows of ' + case] == expected['rows of ' + case], case


def test_rows_in_files_equal_those_in_memory(expected, tmp_path):
    cases = ['adam', 'adagrad']
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=['--cases', ','.join(cases), '--files'],
                     env={'MXHYBRID_STORAGE': '*users*=%s,*=memory' % tmp_path, 'MXHYBRID_STORAGE_MEMORY': '1M',
                          'MXHYBRID_PARTITIONS': '3'}, timeout=150).ok()
    assert_equal(expected, result, 2, cases)
    assert result.results[0]['file_bytes']['users'] > 0 == result.results[0]['file_bytes']['items']
    assert not list(tmp_path.iterdir())


def test_tables_whose_directory_is_gone_are_freed(tmp_path):
    directory = tmp_path / 'rows'
    directory.mkdir()
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=['--dropped', directory], timeout=120,
                     env={'MXHYBRID_STORAGE': 'net_*=%s,*=memory' % directory}).ok()
    for name in ('items', 'users', 'out'):
        np.testing.assert_array_equal(result.results[0][name], result.results[1][name])
    assert not directory.exists()


def test_a_missing_directory_is_refused_on_every_worker(tmp_path):
    directory = tmp_path / 'none'
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=['--refused'], timeout=120,
                     env={'MXHYBRID_STORAGE': directory}).ok()
    for rank in range(2):
        assert result.results[rank]['refusal'].startswith(
            "net_items_weight: storage='%s' is missing on host " % directory)


def assert_reports(result, partitions):
    """Check that worker 0 reports the rows, and every worker the rows that it has moved."""
    for rank, reports in result.results.items():
        row = next(line.split() for line in reports['report'].split('\n') if line.startswith('net_users_weight'))
        assert row[1:3] == ['any', '4'] and (int(row[3]) > 0 if rank == 0 else row[3] == '-')
        assert str(partitions) in row


def test_a_table_that_one_worker_freezes_ends_the_job():
    run_job(BODY, 'horovodrun', workers=2, args=['--freeze'], timeout=120).failed(
        'workers differ in their dynamic tables that are frozen or were initialised again')


def test_ps_lite_alone_is_refused():
    result = run_job(BODY, 'horovodrun', workers=2, args=['--cases', 'sgd'], timeout=120,
                     env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})
    result.failed('net_items_weight: the rows of a dynamic table travel by the lane only', 'MXHYBRID_ROW_TRANSPORT')
