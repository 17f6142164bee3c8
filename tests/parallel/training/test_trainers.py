"""Trainers and stores that are gone leave nothing on servers and workers, and none reads old values."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'trainers.py'

KINDS = {'kind/own': 'on-demand rows', 'kind/gradients': 'server gradients', 'kind/sums': 'row allreduce'}


@pytest.fixture(scope='module')
def expected():
    """MXNet alone."""
    return comparing.reference(BODY)


@pytest.mark.parametrize('launcher, servers', [('horovodrun', 1), slow('launch.py', 2)])
def test_one_trainer_after_the_other(expected, launcher, servers):
    result = run_job(BODY, launcher, workers=2, servers=servers, timeout=240).ok()
    first = result.results[0]
    comparing.assert_cases({name: found for name, found in expected.items() if isinstance(found, dict)}, result, 2)
    assert {name: first[name] for name in KINDS} == KINDS
    assert first['servers'] == servers
    for case, readings in first['seen'].items():
        # The first few may hold two tables at a time, or buffers that stay.  A leak is a table or more for each one.
        slack = 4 * first['table']
        assert len(readings) >= 10 and (len(readings) - 3) * first['table'] > 1.5 * slack
        assert len({reading['keys'] for reading in readings[3:]}) == 1, (case, readings)
        assert max(reading['sums'] for reading in readings) < readings[0]['sums'] + 10, (case, readings)
        seen = {who: [reading[who] for reading in readings] for who in ('servers', 'load')}
        seen.update((rank, [reading['worker'] for reading in values['seen'][case]])
                    for rank, values in result.results.items())
        for who, held in seen.items():
            assert max(held[3:]) < max(held[:3]) + slack, (case, who, held)
