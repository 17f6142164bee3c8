"""A lane that cannot be used: rows travel by ps-lite on all workers, or the job is refused."""
import os
import re

import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'transports.py'


def test_all_do_without_the_lane_if_one_must():
    result = run_job(BODY, 'horovodrun', workers=2, args=['--without', '1']).ok()
    assert [result.results[rank]['link'] for rank in range(2)] == ['PsLiteLink', 'PsLiteLink']
    assert result.output.count('rows travel by ps-lite') == 1
    assert 'worker 1 cannot: the compiled part of mxhybrid is missing: install g++' in result.output


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_workers_that_share_memory_with_no_server_do_without(launcher):
    result = run_job(BODY, launcher, workers=2, args=['--elsewhere']).ok()
    assert [result.results[rank]['link'] for rank in range(2)] == ['PsLiteLink', 'PsLiteLink']
    assert result.output.count('rows travel by ps-lite') == 1
    assert 'a host has workers, but no server that they share memory with' in result.output


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_workers_of_two_users_do_without_the_lane(launcher):
    result = run_job(BODY, launcher, workers=2, args=['--other-user']).ok()
    assert [result.results[rank]['link'] for rank in range(2)] == ['PsLiteLink', 'PsLiteLink']
    why = r'worker \d runs as user %d, and a server of its host as user %d, and only processes of one user share memory'
    assert re.search('rows travel by ps-lite.*: ' + why % (os.getuid() + 1, os.getuid()), result.output)


@pytest.mark.parametrize('setting', ['ROW_TRANSPORT', 'DENSE_TRANSPORT'])
def test_an_impossible_lane_is_refused_on_every_worker(setting):
    why = 'worker 1 cannot: the compiled part of mxhybrid is missing'
    job = run_job(BODY, 'horovodrun', workers=2, args=['--without', '1'], env={'MXHYBRID_' + setting: 'lane'})
    result = job.failed(why)
    assert result.output.count("SettingError: MXHYBRID_%s='lane', but %s" % (setting, why)) >= 1
