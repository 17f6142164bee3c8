"""Dynamic tables in real jobs: rows equal those of one process, and servers hold the touched rows alone."""
import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'dynamic_rows.py'


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_rows_equal_those_of_one_process(launcher):
    result = run_job(BODY, launcher, workers=2, servers=2, timeout=120).ok()
    assert sorted(result.results) == [0, 1]
    for worker in result.results.values():
        assert worker['last_loss'] < worker['first_loss'] / 2
    statistics = result.results[0]['statistics']
    assert [table['rows'] for table in statistics] == result.results[0]['rows']


def test_ps_lite_alone_is_refused():
    result = run_job(BODY, 'horovodrun', workers=2, servers=1, timeout=120, env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})
    result.failed('test.users: the rows of a dynamic table travel by the lane only', 'MXHYBRID_ROW_TRANSPORT')
