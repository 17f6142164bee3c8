"""Redistributions of float32 are operators that MXNet calls without Python, and all workers number them alike."""
import numpy as np
import pytest
from lab.jobs import run_job

from . import BODIES

#: Redistributions of each network, with and without a gradient of its data: compiled ones, and those that Python
#: begins.
COUNTS = {'Residual False': (4, 0), 'Residual True': (4, 0), 'Frozen False': (3, 1), 'Freezing True': (4, 0),
          'Crowd True': (2, 2), 'Chain False': (4, 0), 'Chain True': (4, 0), 'Doubled True': (2, 0),
          'Added True': (3, 0), 'AddedSoftmax True': (2, 0)}

#: Freed memory is NaN: no redistribution may read it, and its other bytes are often still right.
ENVIRONMENT = {'MALLOC_PERTURB_': '255'}


@pytest.fixture(scope='module')
def results():
    return run_job(BODIES / 'transfer_operators.py', 'horovodrun', workers=2, timeout=100,
                   env=ENVIRONMENT).ok().results


@pytest.mark.parametrize('network', COUNTS)
def test_equals_one_process(results, network):
    found = [results[rank][network] for rank in range(2)]
    for one in found:
        assert (one['compiled'], one['in_python']) == COUNTS[network]
    for steps in zip(*[one['steps'] for one in found]):
        for step in steps:
            for mine, expected in step['own']:
                np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)
        for name, expected in steps[0]['sums'].items():
            total = sum(step['gradients'][name] for step in steps)
            np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max(), err_msg=name)


def test_redistributions_have_the_same_numbers_on_all_workers():
    results = run_job(BODIES / 'idle_worker.py', 'horovodrun', workers=3, timeout=60).ok().results
    assert [results[rank]['takes_part'] for rank in range(3)] == [True, True, False]
    assert len({results[rank]['number'] for rank in range(3)}) == 1
    for rank in range(3):
        assert results[rank]['redistributions'] > 0
        np.testing.assert_array_equal(results[rank]['gradients'], np.full(4, 2.0))
        np.testing.assert_array_equal(results[rank]['output'], np.full((1, 6), 2.0))
