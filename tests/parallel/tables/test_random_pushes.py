"""Values under random pushes and pulls by both wires, and the workers that talk to the servers."""
import numpy as np
import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'random_pushes.py'


@pytest.mark.parametrize('launcher, workers, wire, link, clients', [
    ('horovodrun', 3, 'lane', 'Lane', [True, False, False]),
    ('horovodrun', 3, 'ps-lite', 'PsLiteLink', [True] * 3),
    ('launch.py', 3, 'auto', 'Lane', [True] * 3),
    slow('launch.py', 2, 'ps-lite', 'PsLiteLink', [True] * 2)])
def test_random_pushes_and_pulls_equal_a_model(launcher, workers, wire, link, clients):
    result = run_job(BODY, launcher, workers=workers, servers=2, timeout=120, env={'MXHYBRID_WIRE': wire}).ok()
    assert sorted(result.results) == list(range(workers))
    found = [result.results[rank] for rank in range(workers)]
    assert [one['link'] for one in found] == [link] * workers
    assert [one['client'] for one in found] == clients
    assert all(one['pulled'] > 0 for one in found)
    # Worker 0 pulls once a step; rows that were asked for early come otherwise.
    assert all((one['delivered'] > 5) == (one['few'] > 5) == (link == 'Lane') for one in found)
    for one in found:
        assert np.abs(one['tables'][0]).sum() > 0
        assert one['descriptors'] < 200
        for mine, theirs in zip(one['tables'], found[0]['tables']):
            np.testing.assert_array_equal(mine, theirs)
