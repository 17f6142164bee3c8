"""A worker does not keep tables that servers hold."""
import numpy as np
from lab.jobs import run_job
from lab.launchers import MEASURED_MEMORY

from . import BODIES


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
