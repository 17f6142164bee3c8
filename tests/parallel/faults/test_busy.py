"""A worker that holds the interpreter lock beyond the silence limit is waited for if it computes."""
import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'busy.py'

#: Seconds: the shortest limit of silence; how long the lock is held, beyond what silence takes to be noticed.
SILENCE_S, HELD_S = 3, 7

pytestmark = pytest.mark.alone

SETTINGS = {'MXHYBRID_SILENCE_TIMEOUT': str(SILENCE_S)}


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_a_worker_that_computes_is_waited_for(launcher):
    result = run_job(BODY, launcher, workers=2, args=['computes', HELD_S, 1, 0], env=SETTINGS, timeout=240).ok()
    assert all(result.results[rank]['held'] > SILENCE_S + 3 for rank in range(2))
    np.testing.assert_array_equal(result.results[0]['weight'], result.results[1]['weight'])
    assert 'worker 1 (host' in result.output and 'though it computes' in result.output
    assert 'ends, because' not in result.output


@pytest.mark.parametrize('launcher, rank', [slow('horovodrun', 1), ('launch.py', 0)])
def test_a_worker_that_sleeps_with_the_lock_hangs(launcher, rank):
    result = run_job(BODY, launcher, workers=2, args=['sleeps', 600, rank], env=SETTINGS, timeout=60)
    result.failed('worker %d' % rank, 'has been silent for', 'it hangs')
