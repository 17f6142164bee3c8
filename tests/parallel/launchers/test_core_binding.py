"""Workers that are bound to cores of their own, and hosts that have too few."""
import os

import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import by_turns
from . import BODIES

BODY = BODIES / 'bound.py'
SETTING = {'MXHYBRID_BIND_TO_CORES': '1'}


@pytest.mark.parametrize('launcher, bind', by_turns(['horovodrun', 'launch.py'], [True, False]))
def test_each_worker_has_cores_of_its_own(launcher, bind):
    result = run_job(BODY, launcher, workers=2, env=SETTING if bind else {}, timeout=90).ok()
    cores_by_rank = [result.results[rank]['threads'][0] for rank in range(2)]
    for rank, values in result.results.items():
        np.testing.assert_array_equal(values['value'], np.full((3, 2), 3.0))
        assert values['threads'] == [cores_by_rank[rank]] * len(values['threads'])
        assert values['child'] == values['allowed']
    assert sorted(result.results) == [0, 1]
    if bind:
        assert sorted(sum(cores_by_rank, [])) == result.results[0]['allowed'] and all(cores_by_rank)
    else:
        assert cores_by_rank == [values['allowed'] for values in result.results.values()]


def test_too_few_cores():
    available = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(available)})
    try:
        result = run_job(BODY, workers=2, env=SETTING, timeout=90)
    finally:
        os.sched_setaffinity(0, available)
    result.failed('MXHYBRID_BIND_TO_CORES=1: host ', ' has 1 core for 2 workers', 'start fewer workers on it')
    assert result.output.count('has 1 core for 2 workers') >= 2  # on every worker
