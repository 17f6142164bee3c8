"""Workers that are bound to cores of their own, and hosts whose cores cannot be divided."""
import os

import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import by_turns
from . import BODIES

BODY = BODIES / 'bound.py'

def switched(value):
    return {'MXHYBRID_BIND_TO_CORES': value}


@pytest.fixture
def allowed():
    """Two cores of this machine, which jobs are limited to."""
    available = os.sched_getaffinity(0)
    cores = sorted(available)[:2]
    os.sched_setaffinity(0, cores)
    yield cores
    os.sched_setaffinity(0, available)


@pytest.mark.parametrize('launcher, env, binds', by_turns(
    ['horovodrun', 'launch.py'], [({}, True), (switched('0'), False),
                                  (dict(switched('1'), OMP_NUM_THREADS='2'), True)]))
def test_workers_have_cores_of_their_own(launcher, env, binds, allowed):
    result = run_job(BODY, launcher, workers=2, env=dict({'OMP_NUM_THREADS': '1'}, **env), timeout=90).ok()
    cores_by_rank = [result.results[rank]['threads'][0] for rank in range(2)]
    for rank, values in result.results.items():
        np.testing.assert_array_equal(values['value'], np.full((3, 2), 3.0))
        assert values['threads'] == [cores_by_rank[rank]] * len(values['threads'])
        assert values['child'] == values['allowed'] == allowed
    assert sorted(result.results) == [0, 1]
    assert cores_by_rank == ([[core] for core in allowed] if binds else [allowed] * 2)


def test_cores_that_workers_cannot_share_equally(allowed):
    result = run_job(BODY, workers=3, env=switched('1'), timeout=90)
    result.failed('MXHYBRID_BIND_TO_CORES=1: host ', ' has 2 cores for 3 workers', 'start 2 or 4 workers on it')
    assert result.output.count('has 2 cores for 3 workers') >= 3  # on every worker
