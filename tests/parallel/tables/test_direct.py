"""The store used directly gives what MXNet's own store gives, for int and str keys and lists."""
import pytest
from lab.jobs import run_job

from ...helpers import comparing
from ...helpers.turns import slow
from . import BODIES

BODY = BODIES / 'direct.py'


@pytest.mark.parametrize('launcher, workers, servers, strings', [
    ('horovodrun', 2, 2, False), slow('horovodrun', 3, 1, True), ('launch.py', 2, 1, True), ('none', 1, 0, False)])
def test_equals_local_store(launcher, workers, servers, strings):
    args = ['--strings'] if strings else []
    expected = run_job(BODY, 'none', args=args + ['--alone', str(workers)], timeout=100).ok().results[0]['found']
    result = run_job(BODY, launcher, workers=workers if workers > 1 else None, servers=servers, args=args,
                     timeout=100).ok()
    for rank in range(workers):
        comparing.assert_equal(expected, result.results[rank]['found'], 'rank %d' % rank)
        assert result.results[rank]['kind'] == ('hybrid', rank, workers, True)
