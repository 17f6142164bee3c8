"""A worker that holds the interpreter lock: its host sees that it computes, and tells the other hosts."""
import numpy as np
import pytest
from lab.launchers import over_hosts

from ..parallel.faults import BODIES

BODY = BODIES / 'busy.py'

#: Seconds: the shortest limit; how long the lock is kept, beyond what silence takes to be noticed.
SILENCE_S, HELD_S = 3, 7


pytestmark = pytest.mark.alone


def start(cluster, *args):
    """Two workers on each of two hosts, the job's last word."""
    return cluster.start(0, over_hosts([('hosta', 2), ('hostb', 2)], [BODY, *args]), body=BODY,
                         env={'MXHYBRID_SILENCE_TIMEOUT': str(SILENCE_S)})


def test_workers_that_compute_are_waited_for_across_hosts(cluster):
    with start(cluster, 'computes', HELD_S, 3, 0) as job:
        result = job.wait(200).ok()
    assert all(result.results[rank]['held'] > SILENCE_S + 3 for rank in (0, 3))
    for rank in range(1, 4):
        np.testing.assert_array_equal(result.results[0]['weight'], result.results[rank]['weight'])
    assert 'worker 3 (host hostb' in result.output and 'though it computes' in result.output
    assert 'ends, because' not in result.output
    cluster.assert_idle()


def test_a_hanging_worker_0_is_noticed_elsewhere(cluster):
    with start(cluster, 'sleeps', 600, 0) as job:
        result = job.wait(90).failed('worker 0, which watches the job,', 'it hangs')
    cluster.assert_idle()
    assert '[3]' in result.output
