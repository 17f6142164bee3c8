"""Tables updated by optimizer classes of the user's own: equal to one process, and refused where servers lack them."""
import os

import numpy as np
import pytest
from lab.jobs import run_job
from lab.launchers import PYTHON_PATH

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'row_wise.py'
PATH = {'PYTHONPATH': os.pathsep.join([PYTHON_PATH, str(BODIES)])}
FEW = ['moved-anchored', 'saved-heavyball', 'resumed-anchored', 'changed-heavyball', 'tested']


def sums(workers):
    """Compute the results of the case 'tested', which MXNet alone does not have."""
    table, found = np.ones((40, 3), 'f4'), {}
    for step in range(3):
        table[step:12] += (0.5 * (np.arange(step, 12) + step)).astype('f4')[:, None]
        found['%d' % step] = table.copy()
    return dict(found, dense=np.full((40, 3), 1 + 3 * 0.5 * sum(range(1, workers + 1)), 'f4'))


@pytest.mark.parametrize('launcher, workers, cases, args', [
    ('horovodrun', 2, None, ['--partitions', 3]), ('launch.py', 3, FEW, ['--cases', ','.join(FEW)])])
def test_equals_one_process(expected, tmp_path, launcher, workers, cases, args):
    result = run_job(BODY, launcher, workers=workers, servers=2, args=['--directory', tmp_path, *args], env=PATH,
                     timeout=200).ok()
    all_expected = dict(expected, tested=sums(workers))
    assert len(all_expected) == 12
    comparing.assert_cases({case: all_expected[case] for case in cases or all_expected}, result, workers)


@pytest.mark.parametrize('launcher', ['horovodrun', slow('launch.py')])
def test_a_class_unknown_to_servers_ends_the_job_early(launcher):
    result = run_job(BODY, launcher, workers=2, args=['--only-here'], env=PATH, timeout=90)
    result.failed('cannot import optimizer class Ball from module nowhere', 'No module named', 'PYTHONPATH')
    assert not result.results
