"""Workers whose values differ begin with worker 0's: the first step equals one process's."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'first_values.py'


@pytest.fixture(scope='module')
def expected():
    """MXNet alone, with worker 0's network."""
    return comparing.reference(BODY)


@pytest.mark.parametrize('launcher, env', [('horovodrun', {}), slow('launch.py', {}),
                                           slow('horovodrun', {'MXHYBRID_ROW_TRANSPORT': 'ps-lite'})])
def test_first_steps_equal_one_process(expected, launcher, env):
    result = run_job(BODY, launcher, workers=2, env=env, timeout=200).ok()
    assert len(expected) > 20
    comparing.assert_cases(expected, result, 2)
    said = [line for line in result.output.splitlines() if 'gradients of its first step' in line]
    assert len(said) == 1 and 'worker 1 has computed' in said[0] and 'weight than worker 0' in said[0], said
