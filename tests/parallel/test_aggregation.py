"""Local aggregation: values under random pushes and pulls, and who talks to the servers."""
import numpy as np
import pytest
from lab.jobs import run_job

from ..helpers.turns import slow
from . import BODIES

BODY = BODIES / 'aggregation.py'


@pytest.mark.parametrize('launcher, workers, switch, wire, links, clients', [
    ('horovodrun', 3, '1', 'lane', ['Lane'] * 3, [True, False, False]),
    ('horovodrun', 3, '1', 'ps-lite', ['Leader', 'Follower', 'Follower'], [True, False, False]),
    ('launch.py', 3, '1', 'auto', ['Leader', 'Follower', 'Follower'], [True, True, True]),
    slow('horovodrun', 3, '0', 'auto', ['Direct'] * 3, [True] * 3),
    ('launch.py', 2, '0', 'auto', ['Direct'] * 2, [True] * 2)])
def test_random_pushes_and_pulls_equal_a_model(launcher, workers, switch, wire, links, clients):
    result = run_job(BODY, launcher, workers=workers, servers=2, timeout=120,
                     env={'MXHYBRID_LOCAL_AGGREGATION': switch, 'MXHYBRID_WIRE': wire}).ok()
    assert sorted(result.results) == list(range(workers))
    found = [result.results[rank] for rank in range(workers)]
    assert [one['link'] for one in found] == links
    assert [one['client'] for one in found] == clients
    assert all(one['pulled'] > 0 for one in found)
    for one in found:
        assert np.abs(one['tables'][0]).sum() > 0
        assert one['descriptors'] < 200
        for mine, theirs in zip(one['tables'], found[0]['tables']):
            np.testing.assert_array_equal(mine, theirs)
