"""Arrays of other kinds than usual: those that oneDNN keeps in layouts of its own, and those of a script that works
``with mx.gpu():`` while everything is on the CPU.
"""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
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
        'scope': body(SCOPE, tmp_path_factory.mktemp('scope')),
        'scope, allreduce': body(SCOPE, tmp_path_factory.mktemp('allreduce'), MXHYBRID_ROUTES='allreduce')},
        'horovodrun', workers=2, timeout=150)


@pytest.mark.parametrize('updates', ['store', 'worker'])
def test_convolutions_equal_one_process(alone, together, updates):
    comparing.assert_cases(alone[updates].results[0], together[updates], 2)


@pytest.mark.parametrize('job', ['scope', 'scope, allreduce', 'launch.py'])
def test_arrays_of_mxhybrid_are_always_on_the_host(request, tmp_path, job):
    if job == 'launch.py':
        result = run_job(SCOPE, job, workers=2, timeout=90, args=[tmp_path],
                         env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'}).ok()
    else:
        result = request.getfixturevalue('together')[job]
    for rank in range(2):
        errors = result.results[rank]['errors']
        assert len(errors) == 2 and max(errors.values()) < 1e-5, errors
