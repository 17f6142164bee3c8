"""Tables with staleness in real jobs: the rows that workers pull, evaluation, checkpoints and moves of partitions."""
import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'stale_rows.py'


@pytest.mark.parametrize('wire_dtype', ['float32', slow('float16'), 'int8'])
def test_rows_lack_at_most_one_push_of_others(tmp_path, wire_dtype):
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, args=[wire_dtype], timeout=120,
                     env={'MXHYBRID_TEST_CHECKPOINT': str(tmp_path / 'checkpoint')}).ok()
    assert sorted(result.results) == [0, 1]
    for values in result.results.values():
        # Sums of workers are synchronous.  Dense weights whose rows are rounded stay in the workers.
        assert values['lagging']['summed'] == 0
        assert (values['kind'] == 'on-demand rows') == (wire_dtype == 'float32'), values['kind']
    text = result.results[0]['text']
    assert 'staleness of the rows that workers of this host pulled' in text
    for name in ('sparse', 'numbered', 'hashed'):
        assert any(line.split()[:2] == ['test_%s_weight' % name, '1'] for line in text.splitlines()), text


def test_ps_lite_is_refused(tmp_path):
    result = run_job(BODY, 'horovodrun', workers=2, servers=1, args=['float32'], timeout=120,
                     env={'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})
    result.failed('SettingError: MXHYBRID_STALENESS: pulls with staleness need the lane')
