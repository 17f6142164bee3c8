"""Strangers that reach the servers and the job monitor change nothing, and no process sees the job's secret."""
import numpy as np
import pytest
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'strangers.py'


@pytest.mark.parametrize('launcher, said', [
    ('horovodrun', ['closes a connection from',
                    'ignoring a command that is not from worker 0 of this job: it is not sealed', 'sent again']),
    ('launch.py', ['closes a connection from']),  # its servers take pickles from anybody
])
def test_strangers(launcher, said, tmp_path):
    trace = tmp_path / 'trace.json'
    result = run_job(BODY, launcher, workers=2, servers=2, args=[tmp_path], timeout=120,
                     env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite', 'MXHYBRID_LOG_LEVEL': 'DEBUG',
                          'MXHYBRID_TRACE': trace}).ok()
    for rank in (0, 1):
        np.testing.assert_allclose(result.results[rank]['weight'], result.results[rank]['expected'], rtol=1e-5)
    for words in said:
        assert words in result.output
    assert [path.name for path in tmp_path.iterdir()] == ['trace.json']  # no side effect of a pickle
    (secret,) = result.results[0]['secrets']
    assert len(secret) == 64 and not result.results[1]['secrets']
    assert result.results[0]['seen'] == result.results[0]['own'] == []
    assert secret not in result.output and secret not in trace.read_text()
    assert result.results[0]['commands'] > 3 and not result.results[1]['commands']
