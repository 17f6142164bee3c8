"""Dense sums and gathers: NumPy's bits by every transport; and the death of a worker among them."""
import numpy as np
import pytest
from lab.jobs import run_job

from mxhybrid.routes.dense_buckets import MOST_SELECTIONS

from . import BODIES

BODY = BODIES / 'sums.py'


@pytest.mark.parametrize('launcher, dense, by_lane', [
    ('horovodrun', 'auto', True), ('horovodrun', 'horovod', False), ('launch.py', 'lane', True)])
def test_sums_equal_numpys(launcher, dense, by_lane):
    result = run_job(BODY, launcher, workers=3, args=[3], env={'MXHYBRID_DENSE': dense}, timeout=120).ok()
    assert sorted(result.results) == [0, 1, 2]
    for rank in range(3):
        np.testing.assert_array_equal(result.results[rank]['fractions'], result.results[0]['fractions'])
        assert result.results[rank]['by_lane'] == by_lane
        assert result.results[rank]['selections'] == (MOST_SELECTIONS if by_lane else 0)


def test_a_worker_that_dies_among_sums_is_named():
    result = run_job(BODY, 'horovodrun', workers=3, args=[3, 1], timeout=60).failed()
    causes = [line.partition('ends, because ')[2] for line in result.output.splitlines() if 'ends, because' in line]
    assert causes
    assert all(cause.startswith('worker 1 ') for cause in causes), result.output
