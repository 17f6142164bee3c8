"""Tables in real jobs: gradients are copied from NumPy, workers hold no copy of a table, and rows may be stale."""
import numpy as np
import pytest
from lab.jobs import run_job
from lab.launchers import MEASURED_MEMORY

from ...gpu import BODIES as GPU_BODIES
from ...helpers.turns import slow
from . import BODIES


def test_tables_count_pushes(tmp_path):
    result = run_job(GPU_BODIES / 'tables.py', 'launch.py', workers=2, servers=2, timeout=120,
                     args=['--device', 'cpu', '--directory', tmp_path]).ok()
    assert sorted(result.results) == [0, 1]
    text = result.results[0]['text']
    for name in ('sparse', 'numbered', 'hashed', 'bags'):
        assert 'net_%s_weight' % name in text, text


def test_worker_lets_go_of_tables(tmp_path):
    result = run_job(BODIES / 'memory.py', 'horovodrun', workers=2, servers=2, timeout=120, args=[tmp_path],
                     env=MEASURED_MEMORY).ok()
    for values in result.results.values():
        assert values['full'] > values['empty'] + 0.9 * values['table']
        # The store's own buffers and connections take some 30 MB.
        assert values['seen'][-1] < values['empty'] + 0.5 * values['table']
        assert values['rows'][1] == 0.5 and (values['rows'][[0, 2]] < 0.5).all()
        assert np.isfinite(values['rows']).all()
        # Saving and loading, the table and as much of optimizer state passes through worker 0.
        assert max(values['peaks']) < 0.35 * values['table'], values['peaks']


STALE_BODY = BODIES / 'stale_rows.py'


@pytest.mark.parametrize('wire', ['float32', slow('float16'), 'int8'])
def test_rows_lack_at_most_one_push_of_others(tmp_path, wire):
    result = run_job(STALE_BODY, 'horovodrun', workers=2, servers=2, args=[wire, tmp_path], timeout=120).ok()
    assert sorted(result.results) == [0, 1]
    for values in result.results.values():
        # Sums of workers are synchronous.  Dense weights whose rows are rounded stay in the workers.
        assert values['lagging']['summed'] == 0
        assert (values['kind'] == 'on-demand rows') == (wire == 'float32'), values['kind']
    text = result.results[0]['text']
    assert 'staleness of the rows that workers of this host pulled' in text
    for name in ('sparse', 'numbered', 'hashed'):
        assert any(line.split()[:2] == ['test_%s_weight' % name, '1'] for line in text.splitlines()), text


def test_ps_lite_with_staleness_is_refused(tmp_path):
    result = run_job(STALE_BODY, 'horovodrun', workers=2, servers=1, args=['float32', tmp_path], timeout=120,
                     env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})
    result.failed('SettingError: MXHYBRID_STALENESS: pulls with staleness need the lane')
