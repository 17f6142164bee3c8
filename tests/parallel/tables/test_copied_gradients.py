"""Tables whose gradients are copied from NumPy: the script that scripts/gpu runs on GPUs, on CPUs."""
from lab.jobs import run_job

from ...gpu import BODIES


def test_tables_count_pushes(tmp_path):
    result = run_job(BODIES / 'tables.py', 'launch.py', workers=2, servers=2, timeout=120,
                     args=['--device', 'cpu', '--directory', str(tmp_path)]).ok()
    assert sorted(result.results) == [0, 1]
    text = result.results[0]['text']
    for name in ('sparse', 'numbered', 'hashed', 'bags'):
        assert 'net_%s_weight' % name in text, text
