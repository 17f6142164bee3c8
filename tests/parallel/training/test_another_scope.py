"""The device that a script works on at the moment is not where mxhybrid keeps what it needs for itself."""
import pytest
from lab.jobs import run_job

from . import BODIES


@pytest.mark.parametrize('launcher, env', [
    ('horovodrun', {}), ('horovodrun', {'MXHYBRID_ROUTES': 'allreduce'}), ('launch.py', {'MXHYBRID_WIRE': 'ps-lite'})])
def test_arrays_of_our_own_are_on_the_host(launcher, env, tmp_path):
    for name in ('False', 'True'):
        (tmp_path / name).mkdir()
    result = run_job(BODIES / 'another_scope.py', launcher, workers=2, timeout=90,
                     env=dict(env, SCOPE_DIRECTORY=str(tmp_path))).ok()
    for rank in range(2):
        errors = {name: value for name, value in result.results[rank].items() if name.startswith('error')}
        assert len(errors) == 2 and max(errors.values()) < 1e-5, errors
