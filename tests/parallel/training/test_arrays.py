"""Arrays of other kinds than usual: those that oneDNN keeps in layouts of its own, and those of a script that works
``with mx.gpu():`` while everything is on the CPU.
"""
import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.joint_jobs import body, run_together
from . import BODIES

CONVOLUTIONS, SCOPE = BODIES / 'convolutions.py', BODIES / 'another_scope.py'


@pytest.fixture(scope='module')
def alone():
    """The results of one process with the joint batch."""
    return run_together({updates: body(CONVOLUTIONS, 2, updates) for updates in ('store', 'worker')}, 'none')


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """The results of two workers."""
    return run_together({
        'store': body(CONVOLUTIONS, 0, 'store'), 'worker': body(CONVOLUTIONS, 0, 'worker'),
        'scope': body(SCOPE, SCOPE_DIRECTORY=scope_directory(tmp_path_factory.mktemp('scope'))),
        'scope, allreduce': body(SCOPE, SCOPE_DIRECTORY=scope_directory(tmp_path_factory.mktemp('allreduce')),
                                 MXHYBRID_ROUTES='allreduce')}, 'horovodrun', workers=2, timeout=150)


def scope_directory(path):
    """Make the folders that the body wants."""
    for name in ('False', 'True'):
        (path / name).mkdir()
    return path


@pytest.mark.parametrize('updates', ['store', 'worker'])
def test_convolutions_equal_one_process(alone, together, updates):
    expected = alone[updates].results[0]['weights']
    result = together[updates]
    for rank in range(2):
        found = result.results[rank]['weights']
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
            np.testing.assert_array_equal(found[name], result.results[0]['weights'][name])


@pytest.mark.parametrize('job', ['scope', 'scope, allreduce', 'launch.py'])
def test_arrays_of_mxhybrid_are_always_on_the_host(request, tmp_path, job):
    if job == 'launch.py':
        result = run_job(SCOPE, job, workers=2, timeout=90, env={
            'MXHYBRID_ROW_TRANSPORT': 'ps-lite', 'SCOPE_DIRECTORY': str(scope_directory(tmp_path))}).ok()
    else:
        result = request.getfixturevalue('together')[job]
    for rank in range(2):
        errors = {name: value for name, value in result.results[rank].items() if name.startswith('error')}
        assert len(errors) == 2 and max(errors.values()) < 1e-5, errors
