"""Tables with staleness in real jobs: the rows that workers pull, evaluation, checkpoints and moves of partitions."""
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'stale_rows.py'


def test_rows_lack_at_most_one_push_of_others(tmp_path):
    result = run_job(BODY, 'horovodrun', workers=2, servers=2, timeout=120,
                     env={'MXHYBRID_TEST_CHECKPOINT': str(tmp_path / 'checkpoint')}).ok()
    assert sorted(result.results) == [0, 1]
    text = result.results[0]['text']
    assert 'staleness of the rows that workers of this host pulled' in text
    for name in ('test_sparse_weight', 'test_dynamic_weight'):
        assert any(line.split()[:2] == [name, '1'] for line in text.splitlines()), text


def test_ps_lite_is_refused(tmp_path):
    result = run_job(BODY, 'horovodrun', workers=2, servers=1, timeout=120, env={'MXHYBRID_WIRE': 'ps-lite'})
    result.failed('SettingError: MXHYBRID_STALENESS: pulls with staleness need the lane')
