"""What rows travel by: as asked for, where it can be, and the same on all workers."""
import pytest
from lab.jobs import run_job

from . import BODIES

BODY = BODIES / 'wires.py'


@pytest.mark.parametrize('launcher, wire, link', [
    ('horovodrun', 'auto', 'Lane'), ('horovodrun', 'lane', 'Lane'), ('horovodrun', 'ps-lite', 'Leader'),
    ('launch.py', 'auto', 'Leader')])
def test_rows_travel_as_asked(launcher, wire, link):
    result = run_job(BODY, launcher, workers=2, env={'MXHYBRID_WIRE': wire}).ok()
    assert result.results[0]['link'] == link


def test_where_one_worker_lacks_the_compiled_part_all_do_without_and_that_is_said_once():
    result = run_job(BODY, 'horovodrun', workers=2, args=['--without', '1']).ok()
    assert [result.results[rank]['link'] for rank in range(2)] == ['Leader', 'Follower']
    assert result.output.count('rows travel by ps-lite') == 1
    assert 'on worker 1 the compiled part of mxhybrid is missing: install g++' in result.output


@pytest.mark.parametrize('launcher, arguments, why', [
    ('horovodrun', ['--without', '1'], 'worker 1 cannot: the compiled part of mxhybrid is missing'),
    ('launch.py', [], 'worker 0 cannot: servers that launch.py started do not know it')])
def test_a_lane_that_cannot_be_is_refused_on_every_worker(launcher, arguments, why):
    result = run_job(BODY, launcher, workers=2, args=arguments, env={'MXHYBRID_WIRE': 'lane'}).failed(why)
    assert result.output.count("SettingError: MXHYBRID_WIRE='lane', but " + why) >= 1
