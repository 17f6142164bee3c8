"""A lane that cannot be used: rows travel by ps-lite on all workers, or the job is refused."""
import os
import re

import pytest
from lab.jobs import run_job

from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'transports.py'
ELSEWHERE = 'a host has workers, but no server that they share memory with'
OTHER_USER = (r'worker \d runs as user %d, and a server of its host as user %d, and only processes of one user share '
              'memory' % (os.getuid() + 1, os.getuid()))


@pytest.mark.parametrize('launcher, arguments, why', [
    ('horovodrun', ['--without', 1], 'worker 1 cannot: the compiled part of mxhybrid is missing: install g\\+\\+'),
    ('horovodrun', ['--elsewhere'], ELSEWHERE), slow('launch.py', ['--elsewhere'], ELSEWHERE),
    ('horovodrun', ['--other-user'], OTHER_USER), slow('launch.py', ['--other-user'], OTHER_USER)])
def test_all_workers_do_without_a_lane_that_one_cannot_use(launcher, arguments, why):
    result = run_job(BODY, launcher, workers=2, args=arguments).ok()
    assert [result.results[rank]['link'] for rank in range(2)] == ['PsLiteLink', 'PsLiteLink']
    assert result.output.count('rows travel by ps-lite') == 1
    assert re.search('rows travel by ps-lite.*: ' + why, result.output), result.tail()


@pytest.mark.parametrize('setting', ['ROW_TRANSPORT', 'DENSE_TRANSPORT'])
def test_an_impossible_lane_is_refused_on_every_worker(setting):
    why = 'worker 1 cannot: the compiled part of mxhybrid is missing'
    job = run_job(BODY, 'horovodrun', workers=2, args=['--without', 1], env={'MXHYBRID_' + setting: 'lane'})
    job.failed("SettingError: MXHYBRID_%s='lane', but %s" % (setting, why))
