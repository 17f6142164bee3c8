"""Checkpoints of tables in jobs: training that is resumed, anywhere, equals training in one process, and the files of
saves in the background, also of split networks, are those of the step of the call.
"""
import os

import numpy as np
import pytest
from lab.jobs import run_job

import mxhybrid

from ...helpers.checkpoints import assert_same_files
from . import BODIES

BODY = BODIES / 'table_checkpoints.py'
USERS = 'tables.users'
SERVERS_WRITE = ['horovodrun', 2, 2, 3]


def run(launcher, workers, servers, partitions, *args, **env):
    return run_job(BODY, launcher, workers=workers, servers=servers, args=list(args), timeout=150,
                   env=dict(env, MXHYBRID_PARTITIONS=str(partitions)))


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """Training in one process, and the directory that it has saved to."""
    directory = str(tmp_path_factory.mktemp('alone'))
    return run('none', 1, 0, 1, '--part', 'save', '--directory', directory).ok().results[0], directory


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """Training in a job, whose servers have written, and the directory."""
    directory = str(tmp_path_factory.mktemp('together'))
    return run(*SERVERS_WRITE, '--part', 'save', '--directory', directory).ok(), directory


def tolerance_of(case, dtype):
    """The tolerance of rounding: sums that differ in float32 may have neighbours of bfloat16, which are 2^-8 apart."""
    return 1e-2 if case == 'bfloat16' else 1e-10 if dtype == np.float64 else 1e-5


def assert_equal(result, expected, workers):
    assert sorted(result.results) == list(range(workers))
    for values in result.results.values():
        for case, arrays in expected.items():
            for name, array in arrays.items():
                tolerance = tolerance_of(case, array.dtype)
                np.testing.assert_allclose(values[case][name], array, rtol=tolerance, atol=tolerance,
                                           err_msg='%s: %s' % (case, name))


def test_servers_write_their_partitions(alone, together):
    assert_same_training(alone, *together)


def test_worker_0_fetches_files_of_hosts_without_the_directory(alone, tmp_path):
    result = run(*SERVERS_WRITE, '--part', 'save', '--directory', str(tmp_path / 'saved'), '--unseen',
                 TMPDIR=str(tmp_path)).ok()
    assert [path.name for path in tmp_path.iterdir()] == ['saved']  # servers leave no files
    assert 'do not see' in result.output and 'pass through worker 0' in result.output
    assert_same_training(alone, result, str(tmp_path / 'saved'))


def assert_same_training(alone, result, directory):
    """Check the results of a job with those of one process, and the checkpoints of both."""
    assert_equal(result, alone[0], 2)
    for case in alone[0]:
        with mxhybrid.checkpoint.open('%s/%s' % (directory, case), verify=True) as tables, \
                mxhybrid.checkpoint.open('%s/%s' % (alone[1], case), verify=True) as expected:
            assert tables.step == expected.step == 5
            for name in ('tables.items', 'tables.users'):
                assert len(tables[name]) == len(expected[name]) > 20
                keys = np.concatenate([keys for keys, _ in expected[name].pieces()])
                np.testing.assert_array_equal(np.concatenate([keys for keys, _ in tables[name].pieces()]), keys)
                np.testing.assert_allclose(tables[name].rows(keys), expected[name].rows(keys), atol=1e-6,
                                           rtol=max(1e-5, tolerance_of(case, np.float64)))


@pytest.mark.parametrize('case', ['adam', 'expiry on store', 'admission', 'bfloat16'])
def test_copies_of_a_job_are_its_rows(together, tmp_path, case):
    """Changes applied to a copy of the first checkpoint, and an export, have the rows of the last one, and no other."""
    directory = os.path.join(together[1], case)
    first, *_, last = sorted(name for name in os.listdir(directory) if not name.startswith('.'))
    with mxhybrid.checkpoint.open(os.path.join(directory, first)) as tables:
        copy = {key: row.tobytes() for keys, rows in tables[USERS].pieces() for key, row in zip(keys.tolist(), rows)}
    keys_before = set(copy)
    with mxhybrid.checkpoint.changes(directory, USERS, first, batch_rows=7) as changed:
        assert (changed.name, changed.step) == (last, 5)
        for batch in changed:
            copy.update(zip(batch.keys.tolist(), map(bytes, batch.rows)))
            for key in batch.removed.tolist():
                copy.pop(key, None)
    exported = mxhybrid.checkpoint.export(directory, tmp_path / 'exported', USERS)
    keys, rows = (np.load(os.path.join(exported, 'table-00000', name)) for name in ('keys.npy', 'rows.npy'))
    assert copy == {key: row.tobytes() for key, row in zip(keys.tolist(), rows)}
    with mxhybrid.checkpoint.open(directory) as tables:
        np.testing.assert_array_equal(tables[USERS].rows(keys), rows)
        assert tables[USERS].contains(keys).all() and len(tables[USERS]) == len(keys)
        gone = np.array(sorted(keys_before - set(keys.tolist())), np.int64)
        assert not tables[USERS].contains(gone).any() and (case != 'expiry on store' or len(gone))


@pytest.mark.parametrize('launcher, workers, servers, partitions, source', [
    ('none', 1, 0, 1, 'together'), ('launch.py', 3, 1, 5, 'together'), ('horovodrun', 2, 2, 2, 'alone')])
def test_another_job_goes_on(alone, together, launcher, workers, servers, partitions, source):
    directory = together[1] if source == 'together' else alone[1]
    result = run(launcher, workers, servers, partitions, '--part', 'resume', '--directory', directory).ok()
    assert_equal(result, alone[0], workers)


def test_worker_0_sends_rows_to_hosts_without_the_files(alone, together):
    result = run(*SERVERS_WRITE, '--part', 'resume', '--directory', together[1], '--unseen').ok()
    assert_equal(result, alone[0], 2)


def test_refused_on_every_rank(together):
    result = run(*SERVERS_WRITE, '--part', 'refused', '--directory', together[1], '--unseen').ok()
    for values in result.results.values():
        rows, unseen = values['errors']
        assert 'items.weight has rows %d in the checkpoint, %d in the net' % (1 << 40, 1 << 41) in rows
        assert 'cannot write rows of a dynamic table' in unseen
        np.testing.assert_array_equal(values['imported'],
                                      np.random.RandomState(0).standard_normal((50, 4)))


@pytest.mark.parametrize('launcher, workers, servers', [('horovodrun', 2, 2), ('launch.py', 2, 1)])
def test_background_saves_write_the_files_of_the_call(tmp_path, launcher, workers, servers):
    result = run_job(BODIES / 'background_saves.py', launcher, workers=workers, servers=servers, args=[tmp_path],
                     env={'MXHYBRID_PARTITIONS': '3'}, timeout=150).ok()
    values = result.results[0]
    for case in ('tables', 'split', 'sharded', 'unseen'):
        waited, later, steps = values[case]
        assert os.path.isdir(waited) and os.path.isdir(later)
        assert_same_files(waited, later)
        assert steps > 0 or case in ('split', 'sharded', 'unseen')
    for case in ('tables', 'unseen'):
        keys, rows, later_rows = values['delta of ' + case]
        assert (rows != later_rows).any(axis=1).all()
        with mxhybrid.checkpoint.open(str(tmp_path / (case + '-later')), verify=True) as tables:
            assert tables.step == 8
            np.testing.assert_array_equal(tables['items'].rows(keys), rows)
    errors = [worker['faults'] for worker in result.results.values()]
    assert errors[0] == errors[1]
    assert 'step 1, saved in the background' in errors[0][0] and 'was removed while' in errors[0][0]
    assert errors[0][1] == '00000001-step-2'
    with mxhybrid.checkpoint.open(str(tmp_path / 'last'), verify=True) as tables:
        assert tables.step == 1
