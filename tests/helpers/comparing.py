"""References for tests of equality: MXNet alone on the joint batch, and the differences that rounding may make."""
import numpy as np
from lab.jobs import run_job

#: float32 after 20 steps.
TOLERANCE = {'rtol': 1e-5, 'atol': 1e-6}

#: float16: sums over workers round in another order, by a unit in the last place.
HALF_TOLERANCE = {'rtol': 2e-3, 'atol': 2e-3}


def reference(body, *args):
    """Return the report of one process with MXNet's own store."""
    result = run_job(body, launcher='none', args=('--kvstore', 'device') + args, timeout=150).ok()
    assert 'Exception ignored' not in result.output, 'MXNet swallowed an error: the reference is wrong'
    return result.results[0]


def assert_equal(expected, actual, case):
    """Compare the arrays of one case."""
    assert sorted(expected) == sorted(actual)
    for name, values in expected.items():
        assert actual[name].dtype == values.dtype
        tolerance = HALF_TOLERANCE if values.dtype == np.float16 else TOLERANCE
        np.testing.assert_allclose(actual[name], values, err_msg='%s: %s' % (case, name), **tolerance)


def assert_same_bits(expected, actual, case):
    """Compare the arrays of one case bit for bit."""
    assert sorted(expected) == sorted(actual)
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg='%s: %s' % (case, name))


def assert_cases(expected, result, workers):
    """Check that every worker reports every case, all workers with the same bits, equal to the expected values."""
    assert sorted(result.results) == list(range(workers))
    for case, arrays in expected.items():
        if not isinstance(arrays, dict):
            continue
        assert_equal(arrays, result.results[0][case], case)
        for rank in range(1, workers):
            assert_same_bits(result.results[0][case], result.results[rank][case], '%s on rank %d' % (case, rank))
