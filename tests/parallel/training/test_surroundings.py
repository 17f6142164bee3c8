"""Training equals MXNet alone with all code around the loop of a script: every case of ``surroundings.py``.

.ci/run has it on CPython 3.8 as well, where every subprocess is forked.
"""
import functools

import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import by_turns, slow
from . import BODIES

pytestmark = pytest.mark.both_pythons

BODY = BODIES / 'surroundings.py'
LAUNCHERS = ['horovodrun', 'launch.py']


@pytest.fixture
def cluttered(tmp_path):
    """A working directory with modules that nobody means to import."""
    for name in ('secrets', 'queue', 'json', 'numpy', 'mxnet', 'horovod', 'mxhybrid'):
        (tmp_path / (name + '.py')).write_text('raise SystemExit("imported from the working directory")')
    return tmp_path


@pytest.mark.parametrize('launcher, arguments', [
    ('horovodrun', []), slow('launch.py', []), ('launch.py', ['--cases', 'forks,programs,pictures,evaluates']),
    # MXNet's data loader, and signals, want the main thread.
    ('horovodrun', ['--in-thread', '--cases', 'forks,programs,mid-step,spawned,in-threads,evaluates,renewed'])])
def test_equals_one_process(expected, launcher, arguments, cluttered):
    result = run_job(BODY, launcher, workers=2, args=arguments, cwd=cluttered, timeout=280).ok()
    wanted = arguments[-1].split(',') if arguments else list(expected)
    comparing.assert_cases({case: expected[case] for case in wanted if case != 'evaluated'}, result, 2)
    if 'evaluates' in wanted:  # by worker 0 alone
        comparing.assert_equal(expected['evaluated'], result.results[0]['evaluated'], 'evaluated')
    assert sorted(result.results[rank]['seen'] for rank in range(2)) == [(0, 2), (1, 2)]
    assert 'Exception ignored' not in result.output


@pytest.fixture(scope='module')
def alone():
    """MXNet alone, which leaves the script in some way."""
    @functools.lru_cache(None)
    def leave(how):
        return run_job(BODY, 'none', args=['--kvstore', 'device', '--end', how], timeout=90)
    return leave


@pytest.mark.parametrize('launcher, how', by_turns(LAUNCHERS, ['exit', 'thread', 'child', 'status']))
def test_the_end(alone, launcher, how):
    result = run_job(BODY, launcher, workers=2, args=['--end', how], timeout=90)
    assert (result.returncode == 0) == (alone(how).returncode == 0) == (how != 'status'), result.tail()
    for rank in range(2):
        assert sorted(result.results[rank]) == sorted(alone(how).results[0])
        for name in {how, 'late'} & result.results[rank].keys():
            comparing.assert_equal(alone(how).results[0][name], result.results[rank][name], name)
