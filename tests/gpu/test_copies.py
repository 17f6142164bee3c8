"""Workers push, pull and sum arrays of a GPU by copies alone, also where MXNet has no kernels for the GPU."""
import pytest
from lab.jobs import run_job

from . import BODIES

LANE = {'MXHYBRID_DENSE_TRANSPORT': 'lane'}
#: Launcher, workers, environment.
JOBS = [('horovodrun', 2, LANE), ('launch.py', 3, LANE), ('horovodrun', 2, dict(LANE, MXHYBRID_ROUTES='allreduce'))]

#: Launcher, workers, arguments of tables.py.
TABLE_JOBS = [('horovodrun', 2, []), ('launch.py', 3, ['--staleness', '1']),
              ('launch.py', 2, ['--wire-dtype', 'int8', '--staleness', '1']),
              ('launch.py', 2, ['--wire-dtype', 'float16'])]


@pytest.mark.timeout(300)
@pytest.mark.parametrize('launcher, workers, env', JOBS)
def test_values_equal_numpy(launcher, workers, env):
    result = run_job(BODIES / 'copies.py', launcher, workers=workers, env=env, timeout=240).ok()
    assert sorted(result.results) == list(range(workers))


@pytest.mark.timeout(300)
@pytest.mark.parametrize('launcher, workers, arguments', TABLE_JOBS)
def test_tables_count_pushes(tmp_path, launcher, workers, arguments):
    result = run_job(BODIES / 'tables.py', launcher, workers=workers, servers=2,
                     args=['--directory', str(tmp_path)] + arguments, timeout=240).ok()
    assert sorted(result.results) == list(range(workers))
